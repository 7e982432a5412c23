"""What a placement costs: seconds per atom, per value that crosses and per segment, and their sum for real segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from partition.graph import Graph, GraphError
from partition.segments import Segment, cut
from partition.topology import Flags, Indices, Seconds, Topology, topology_of


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """All that placement knows of time, in seconds."""

    devices: tuple[str, ...]
    """Labels, one per row."""
    host: str
    """The label whose memory holds the model's inputs and outputs; it need not be one of `devices`."""
    run: Seconds
    """[devices, atoms] An atom; infinite where the device does not take it."""
    into: Seconds
    """[devices, values] To bring a value to a segment; infinite where it may not cross."""
    out: Seconds
    """[devices, values] To take a value from a segment; infinite where it may not cross."""
    launch: Seconds
    """[devices] A segment."""
    values: tuple[str, ...]
    """Names of the columns: every value that a node makes or reads, constants left out."""
    again: Seconds | None = None
    """[devices, values] A value that is read where it was made or brought to before, by another segment of the device:
    at either end, in the place of `into` and `out`. Infinite where it does not stay there; None where none does."""

    def __post_init__(self) -> None:
        """Check shapes and numbers.

        Raises:
            GraphError: a device or a value is named twice, an array has another shape or data type, or holds a NaN or a
                negative number, or a launch is infinite.
        """
        for kind, names in (("device", self.devices), ("value", self.values)):
            if len(set(names)) != len(names):
                twice = next(name for at, name in enumerate(names) if name in names[:at])
                raise GraphError(f"prices name the {kind} {twice!r} twice; name each once")
        rows, columns = len(self.devices), len(self.values)
        atoms = self.run.shape[-1] if self.run.ndim else 0
        shapes = {"run": (rows, atoms), "into": (rows, columns), "out": (rows, columns), "launch": (rows,)}
        if self.again is not None:
            shapes["again"] = (rows, columns)
        for field in fields(self):
            if field.name in shapes:
                _check_array(field.name, getattr(self, field.name), shapes[field.name])
        if np.isinf(self.launch).any():
            device = self.devices[int(np.isinf(self.launch).argmax())]
            raise GraphError(f"a launch on {device!r} costs infinitely much; leave the device out instead")

    def of_rows(self, rows: Sequence[int]) -> Prices:
        """Return the prices of some devices, by the positions of their rows."""
        chosen = list(rows)
        return Prices(
            tuple(self.devices[row] for row in chosen),
            self.host,
            self.run[chosen],
            self.into[chosen],
            self.out[chosen],
            self.launch[chosen],
            self.values,
            None if self.again is None else self.again[chosen],
        )


def _check_array(name: str, array: Seconds, shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.dtype != np.float64:
        raise GraphError(f"prices of {name!r} are {array.dtype}{list(array.shape)}; expected float64{list(shape)}")
    wrong = np.isnan(array) | (array < 0)
    if wrong.any():
        place = tuple(int(index) for index in np.unravel_index(int(wrong.argmax()), shape))
        raise GraphError(f"prices of {name!r} hold {array[place]} at {list(place)}; seconds are never negative or NaN")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPrice:
    """What one segment costs, in seconds."""

    device: str
    """The label of its device."""
    run: float
    """Its atoms."""
    launch: float
    """Starting it."""
    into: float
    """Bringing its inputs."""
    out: float
    """Taking its outputs."""

    @property
    def total(self) -> float:
        """All four."""
        return self.run + self.launch + self.into + self.out


def price(graph: Graph, prices: Prices, placement: Sequence[str], segments: Sequence[Segment] | None = None) -> float:
    """Return the seconds that a run of `placement` takes, infinite where it cannot run.

    It is what the executor does: every atom runs on its device; every segment is launched, each value that it reads
    and does not make is brought to it, and each value that it makes and another segment or the caller reads is taken
    from it. Constants stay where they are.

    Args:
        graph: the graph.
        prices: its prices; columns in any order.
        placement: the label of every atom.
        segments: the segments that hold the placement; found by `partition.segments.cut` if not given.

    Raises:
        GraphError: the prices are of another graph, or have no row for a label.
    """
    return float(_totals(graph, prices, placement, segments)[0].sum())


def price_segments(
    graph: Graph, prices: Prices, placement: Sequence[str], segments: Sequence[Segment] | None = None
) -> tuple[SegmentPrice, ...]:
    """Return what every segment of `placement` costs, in the order in which they run.

    Arguments and errors are those of `price`; the totals add up to what it returns.
    """
    parts, devices = _totals(graph, prices, placement, segments)
    rows = zip(devices.tolist(), *parts.tolist(), strict=True)
    return tuple(
        SegmentPrice(device=prices.devices[device], run=run, launch=launch, into=into, out=out)
        for device, run, launch, into, out in rows
    )


def device_seconds(graph: Graph, prices: Prices, placement: Sequence[str]) -> Seconds:
    """Return what every device has to do in a run of `placement` [devices]: all that its segments cost.

    Arguments and errors are those of `price`; the seconds add up to what it returns.
    """
    parts, devices = _totals(graph, prices, placement, None)
    return np.bincount(devices, parts.sum(axis=0), len(prices.devices)).astype(np.float64)


def aligned(graph: Graph, prices: Prices) -> Prices:
    """Return `prices` with the columns in the order of `topology_of(graph).values`.

    Raises:
        GraphError: the prices are of another graph.
    """
    topology = topology_of(graph)
    if prices.run.shape[1] != topology.atoms:
        raise GraphError(f"prices are of {prices.run.shape[1]} atoms; the graph has {topology.atoms}")
    if prices.values == topology.values:
        return prices
    column = {name: at for at, name in enumerate(prices.values)}
    missing = next((name for name in topology.values if name not in column), None)
    if missing is not None:
        raise GraphError(f"prices have no column for the value {missing!r}; every value that crosses needs one")
    order = np.fromiter((column[name] for name in topology.values), np.int64, len(topology.values))
    into, out = prices.into[:, order], prices.out[:, order]
    repeat_seconds = None if prices.again is None else prices.again[:, order]
    return Prices(prices.devices, prices.host, prices.run, into, out, prices.launch, topology.values, repeat_seconds)


def rows_of(prices: Prices, placement: Sequence[str]) -> Indices:
    """Return, for every atom, the row of its device.

    Raises:
        GraphError: a label has no row.
    """
    row = {device: at for at, device in enumerate(prices.devices)}
    try:
        return np.fromiter((row[label] for label in placement), np.int64, len(placement))
    except KeyError as missing:
        raise GraphError(f"there are no prices for the device {missing}; priced are {list(prices.devices)}") from None


def _totals(
    graph: Graph, prices: Prices, placement: Sequence[str], segments: Sequence[Segment] | None
) -> tuple[Seconds, Indices]:
    """Return seconds of run, launch, into and out [4, segments], and the row of each segment's device."""
    ordered = aligned(graph, prices)
    all_segments = cut(graph, placement, host=prices.host).segments if segments is None else segments
    home = np.full(len(graph.atoms), -1, np.int64)
    for at, segment in enumerate(all_segments):
        home[list(segment.atoms)] = at
    if (home < 0).any():
        raise GraphError(f"atom {int((home < 0).argmax())} is in no segment; segments must hold every atom")
    device = rows_of(prices, [segment.device for segment in all_segments])
    return _sums(topology_of(graph), ordered, home, device), device


def _sums(topology: Topology, prices: Prices, home: Indices, device: Indices) -> Seconds:
    count = len(device)
    is_produced = topology.producer >= 0
    maker = np.where(is_produced, home[topology.producer] if topology.atoms else -1, -1)
    reading = home[topology.reader]
    crosses = reading != maker[topology.read_value]
    value, segment = np.divmod(np.unique(topology.read_value[crosses] * count + reading[crosses]), max(1, count))
    reader = device[segment]
    at_home = is_produced[value] & (device[maker[value]] == reader)
    bring, take = prices.into[reader, value], prices.out
    leaves = topology.output.copy()
    if prices.again is None:
        leaves[value] = True
    else:
        repeat_seconds = prices.again[reader, value]
        is_present = np.isfinite(repeat_seconds) & (at_home | _followers(value * len(prices.devices) + reader))
        bring = np.where(is_present, repeat_seconds, bring)
        leaves[value[~(is_present & at_home)]] = True
        stay = np.setdiff1d(value, np.flatnonzero(leaves))
        take = prices.out.copy()
        take[:, stay] = prices.again[:, stay]
        leaves[stay] = True
    leaving = np.flatnonzero(leaves & is_produced)
    run = np.bincount(home, prices.run[device[home], np.arange(topology.atoms)], count)
    into = np.bincount(segment, bring, count)
    out = np.bincount(maker[leaving], take[device[maker[leaving]], leaving], count)
    return np.stack([run, prices.launch[device], into, out])


def _followers(keys: Indices) -> Flags:
    """Which of them stand behind an equal one."""
    follows = np.ones(len(keys), bool)
    follows[np.unique(keys, return_index=True)[1]] = False
    return follows
