"""Costs of placements: prices per atom, transfer and segment, for one placement or many at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from partition.graph import Graph, GraphError
from partition.plan import Segment, cut

Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]
Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """Values of a graph in a fixed order, with their producers and readers."""

    values: tuple[str, ...]
    """Every value of a node, without constants, in order of first appearance."""
    producer: Indices
    """[values] Producing atom; -1 for model inputs."""
    output: Flags
    """[values] True for model outputs that an atom produces."""
    read_value: Indices
    """[reads] Values of distinct (value, reading atom) pairs, ascending, without producers' own reads."""
    reader: Indices
    read_producer: Indices
    """[reads] Producing atom of the value; -1 for model inputs."""
    atoms: int


def topology_of(graph: Graph) -> Topology:
    """Return the topology of `graph`, cached as an attribute that `Graph.revalued` shares."""
    topology: Topology | None = graph.__dict__.get("topology")
    if topology is None:
        topology = graph.__dict__["topology"] = _derive(graph)
    return topology


def _derive(graph: Graph) -> Topology:
    position: dict[str, int] = {}
    producer: list[int] = []
    reads: list[int] = []
    for atom, node in zip(graph.atom_of, graph.nodes, strict=True):
        for name in node.reads:
            if name not in graph.constants:
                at = position.setdefault(name, len(position))
                if at == len(producer):
                    producer.append(-1)
                if producer[at] != atom:
                    reads.append(at * len(graph.atoms) + atom)
        for name in node.outputs:
            if name:
                position.setdefault(name, len(position))
                producer.append(atom)
    names = tuple(position)
    producers = np.array(producer, np.int64)
    output_names = frozenset(graph.outputs)
    output = np.fromiter((name in output_names for name in names), np.bool_, len(names)) & (producers >= 0)
    value, reader = np.divmod(np.unique(np.array(reads, np.int64)), max(1, len(graph.atoms)))
    return Topology(names, producers, output, value, reader, producers[value], len(graph.atoms))


class OriginKind(StrEnum):
    """Method that found a placement. The values are stable, since files have them."""

    ALL_ON = "all_on"
    """Parameter: the device."""
    EVERYTHING_SUPPORTED = "everything_supported"
    """Each atom on the first device other than the host that takes it, otherwise on the host."""
    ENUMERATION = "enumeration"
    CUT = "cut"
    CUT_ALONG_PATHS = "cut_along_paths"
    """Parameter: number of paths with surcharges."""
    CUT_WITH_SHARES = "cut_with_shares"
    """Parameter: share of a launch added per crossing value."""
    CUT_WITH_RETURNS = "cut_with_returns"
    """Parameter: index of the cut in its series."""
    CHEAPEST_DEVICES = "cheapest_devices"
    PAIR = "pair"
    """Parameters: both devices."""
    SEARCH = "search"
    PAIRS_MOVED = "pairs_moved"
    ATOMS_MOVED = "atoms_moved"
    MOVED_ALIKE = "moved_alike"
    ONE_REPEAT = "one_repeat"
    """Parameter: number of repeats."""
    ONE_REPEAT_PER_RUN = "one_repeat_per_run"
    """Parameter: number of runs of repeats."""
    REPEATS_ALIKE = "repeats_alike"


@dataclass(frozen=True, slots=True)
class Origin:
    """Method that found a placement, with its parameters."""

    kind: OriginKind
    parameters: tuple[str | int | float, ...] = ()
    base: Origin | None = None

    def __post_init__(self) -> None:
        try:
            str(self)
        except (IndexError, ValueError) as error:
            raise ValueError(f"{self.kind} cannot have the parameters {self.parameters}") from error

    def __str__(self) -> str:
        return _WORDS[self.kind].format(*self.parameters, base=self.base)


def all_on(device: str) -> Origin:
    """Return the origin of a placement on one device."""
    return Origin(OriginKind.ALL_ON, (device,))


_WORDS: Mapping[OriginKind, str] = {
    OriginKind.ALL_ON: "all on {}",
    OriginKind.EVERYTHING_SUPPORTED: "everything supported",
    OriginKind.ENUMERATION: "enumeration",
    OriginKind.CUT: "cut without launches",
    OriginKind.CUT_ALONG_PATHS: "cut along {} paths",
    OriginKind.CUT_WITH_SHARES: "cut with {:g} launches per crossing",
    OriginKind.CUT_WITH_RETURNS: "cut {} with returns",
    OriginKind.CHEAPEST_DEVICES: "cheapest device per atom",
    OriginKind.PAIR: "{} and {}",
    OriginKind.SEARCH: "search from {base}",
    OriginKind.PAIRS_MOVED: "moves from {base}",
    OriginKind.ATOMS_MOVED: "{base}, atoms moved",
    OriginKind.MOVED_ALIKE: "{base}, all moved together",
    OriginKind.ONE_REPEAT: "one of {} repeats: {base}",
    OriginKind.ONE_REPEAT_PER_RUN: "one repeat of each of {} runs: {base}",
    OriginKind.REPEATS_ALIKE: "equal repeats",
}


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """Seconds of each atom, transfer and launch of a graph; infinite means infeasible."""

    devices: tuple[str, ...]
    host: str
    """Device of the model's inputs and outputs; need not be one of `devices`."""
    run: Seconds
    """[devices, atoms] Seconds to run an atom."""
    transfer_in: Seconds
    """[devices, values] Seconds to bring a value to a segment."""
    transfer_out: Seconds
    """[devices, values] Seconds to take a value from a segment."""
    launch: Seconds
    values: tuple[str, ...]
    """Values of the columns: every value of a node, without constants."""
    resident_read: Seconds | None = None
    """[devices, values] Seconds to read a value from another segment of the device, in place of both transfers.

    None if no device keeps values.
    """

    def __post_init__(self) -> None:
        for kind, names in (("device", self.devices), ("value", self.values)):
            if len(set(names)) != len(names):
                twice = next(name for at, name in enumerate(names) if name in names[:at])
                raise GraphError(f"prices name the {kind} {twice!r} twice, expected each once")
        rows, columns = len(self.devices), len(self.values)
        atoms = self.run.shape[-1] if self.run.ndim else 0
        _check_array("run", self.run, (rows, atoms))
        _check_array("transfer_in", self.transfer_in, (rows, columns))
        _check_array("transfer_out", self.transfer_out, (rows, columns))
        _check_array("launch", self.launch, (rows,))
        if self.resident_read is not None:
            _check_array("resident_read", self.resident_read, (rows, columns))
        if np.isinf(self.launch).any():
            device = self.devices[int(np.isinf(self.launch).argmax())]
            raise GraphError(f"a launch on {device!r} costs infinitely much; leave the device out instead")

    @property
    def host_row(self) -> int | None:
        return self.devices.index(self.host) if self.host in self.devices else None

    def of_rows(self, rows: list[int]) -> Prices:
        return replace(
            self,
            devices=tuple(self.devices[row] for row in rows),
            run=self.run[rows],
            transfer_in=self.transfer_in[rows],
            transfer_out=self.transfer_out[rows],
            launch=self.launch[rows],
            resident_read=None if self.resident_read is None else self.resident_read[rows],
        )

    def of_columns(self, columns: Sequence[int], values: tuple[str, ...]) -> Prices:
        return replace(
            self,
            transfer_in=self.transfer_in[:, columns],
            transfer_out=self.transfer_out[:, columns],
            values=values,
            resident_read=None if self.resident_read is None else self.resident_read[:, columns],
        )


def _check_array(name: str, array: Seconds, shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.dtype != np.float64:
        raise GraphError(f"array {name!r} of prices is {array.dtype}{list(array.shape)}, expected float64{list(shape)}")
    wrong = np.isnan(array) | (array < 0)
    if wrong.any():
        place = tuple(int(index) for index in np.unravel_index(int(wrong.argmax()), shape))
        raise GraphError(
            f"the array {name!r} of prices has {array[place]} at {list(place)}, expected seconds of at least 0"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPrice:
    """Cost of one segment, in seconds."""

    device: str
    run: float
    launch: float
    transfer_in: float
    transfer_out: float

    @property
    def total(self) -> float:
        return self.run + self.launch + self.transfer_in + self.transfer_out


def price(graph: Graph, prices: Prices, placement: Sequence[str], segments: Sequence[Segment] | None = None) -> float:
    """Return the seconds of a run of `placement`, a label per atom; infinite if it cannot run.

    As in the executor, atoms run, and segments are launched; their inputs, and outputs read elsewhere, are transferred.
    Segments are by default from `partition.plan.cut`; columns of `prices` are in any order.

    Raises:
        GraphError: prices are of another graph, or lack a row for a label.
    """
    return float(_totals(graph, prices, placement, segments)[0].sum())


def price_segments(
    graph: Graph, prices: Prices, placement: Sequence[str], segments: Sequence[Segment] | None = None
) -> tuple[SegmentPrice, ...]:
    """Return the cost of every segment of `placement`; see `price`."""
    parts, devices = _totals(graph, prices, placement, segments)
    rows = zip(devices.tolist(), *parts.tolist(), strict=True)
    return tuple(
        SegmentPrice(device=prices.devices[device], run=run, launch=launch, transfer_in=into, transfer_out=out)
        for device, run, launch, into, out in rows
    )


def device_seconds(graph: Graph, prices: Prices, placement: Sequence[str]) -> Seconds:
    """Return the load of every device [devices]; see `price`."""
    parts, devices = _totals(graph, prices, placement, None)
    return np.bincount(devices, parts.sum(axis=0), len(prices.devices)).astype(np.float64)


def aligned(graph: Graph, prices: Prices) -> Prices:
    """Return `prices` with columns in the order of `Topology.values`.

    Raises:
        GraphError: prices are of another graph.
    """
    topology = topology_of(graph)
    if prices.run.shape[1] != topology.atoms:
        raise GraphError(
            f"the prices are for {prices.run.shape[1]} atoms, and the graph has {topology.atoms}; use its own prices"
        )
    if prices.values == topology.values:
        return prices
    column = {name: at for at, name in enumerate(prices.values)}
    missing = next((name for name in topology.values if name not in column), None)
    if missing is not None:
        raise GraphError(f"prices have no column for the value {missing!r}; every value that crosses devices needs one")
    return prices.of_columns([column[name] for name in topology.values], topology.values)


def rows_of(prices: Prices, placement: Sequence[str]) -> Indices:
    """Return the row of every atom's device.

    Raises:
        GraphError: a label has no row.
    """
    row = {device: at for at, device in enumerate(prices.devices)}
    try:
        return np.fromiter((row[label] for label in placement), np.int64, len(placement))
    except KeyError as missing:
        raise GraphError(f"there are no prices for the device {missing}, only for {list(prices.devices)}") from None


def _totals(
    graph: Graph, prices: Prices, placement: Sequence[str], segments: Sequence[Segment] | None
) -> tuple[Seconds, Indices]:
    """Return seconds of run, launch, transfer_in, transfer_out [4, segments], and the segments' device rows."""
    ordered = aligned(graph, prices)
    all_segments = cut(graph, placement, host=prices.host).segments if segments is None else segments
    home = segment_of_atoms(all_segments, len(graph.atoms))
    if (home < 0).any():
        raise GraphError(f"atom {int((home < 0).argmax())} is in no segment; segments must hold every atom")
    device = rows_of(prices, [segment.device for segment in all_segments])
    return _sums(topology_of(graph), ordered, home, device), device


def segment_of_atoms(segments: Sequence[Segment], atoms: int) -> Indices:
    """Return the index of each atom's segment; -1 if it is in none."""
    home = np.full(atoms, -1, np.int64)
    for at, segment in enumerate(segments):
        home[list(segment.atoms)] = at
    return home


def _sums(topology: Topology, prices: Prices, home: Indices, device: Indices) -> Seconds:
    count = len(device)
    is_produced = topology.producer >= 0
    maker = np.where(is_produced, home[topology.producer] if topology.atoms else -1, -1)
    reading = home[topology.reader]
    crosses = reading != maker[topology.read_value]
    value, segment = np.divmod(np.unique(topology.read_value[crosses] * count + reading[crosses]), max(1, count))
    reader = device[segment]
    at_home = is_produced[value] & (device[maker[value]] == reader)
    bring, take = prices.transfer_in[reader, value], prices.transfer_out
    leaves = topology.output.copy()
    if prices.resident_read is None:
        leaves[value] = True
    else:
        repeat_seconds = prices.resident_read[reader, value]
        is_present = np.isfinite(repeat_seconds) & (at_home | _followers(value * len(prices.devices) + reader))
        bring = np.where(is_present, repeat_seconds, bring)
        leaves[value[~(is_present & at_home)]] = True
        stay = np.setdiff1d(value, np.flatnonzero(leaves))
        take = prices.transfer_out.copy()
        take[:, stay] = prices.resident_read[:, stay]
        leaves[stay] = True
    leaving = np.flatnonzero(leaves & is_produced)
    run = np.bincount(home, prices.run[device[home], np.arange(topology.atoms)], count)
    into = np.bincount(segment, bring, count)
    out = np.bincount(maker[leaving], take[device[maker[leaving]], leaving], count)
    return np.stack([run, prices.launch[device], into, out])


def _followers(keys: Indices) -> Flags:
    follows = np.ones(len(keys), bool)
    follows[np.unique(keys, return_index=True)[1]] = False
    return follows


Rows = NDArray[np.int8]
Levels = NDArray[np.int32]
_Label = TypeVar("_Label")


def price_many(graph: Graph, prices: Prices, rows: Rows) -> Seconds:
    """Return the cost [placements] of many placements on two devices: `price`, vectorized.

    The recurrence of levels (see `partition.plan.cut`) runs once for all placements and both first devices. `rows` are
    [atoms, placements]; columns of `prices` are in the topology's order.
    """
    topology = topology_of(graph)
    count = rows.shape[1]
    if not topology.atoms:
        return np.zeros(count)
    home, launches = _better_start(graph, prices, rows)
    seconds: Seconds = np.where(rows == 1, prices.run[1][:, None], prices.run[0][:, None]).sum(axis=0) + launches
    return seconds + _transfers(topology, prices, rows, home)


def _better_start(graph: Graph, prices: Prices, rows: Rows) -> tuple[Levels, Seconds]:
    count = rows.shape[1]
    levels = _levels(graph, rows)
    empty = levels.min(axis=0) > 0
    deepest = levels.max(axis=0)
    even, odd = deepest // 2 + 1 - empty, (deepest + 1) // 2
    segments = even + odd
    first = np.repeat(np.array([0, 1]), count)
    of_row = np.where(first == 0, [even, odd], [odd, even])
    first_rows = np.tile(rows[0], 2)
    free = first_rows if prices.host_row is None else prices.host_row
    foreign = np.where(free == 0, of_row[1], of_row[0])
    key = (segments * (int(segments.max()) + 1) + foreign) * 2 + (first != first_rows)
    second = key[count:] < key[:count]
    launched = np.where(second, of_row[:, count:], of_row[:, :count])
    return np.where(second, levels[:, count:], levels[:, :count]), prices.launch @ launched


def _levels(graph: Graph, rows: Rows) -> Levels:
    """Return levels of `partition.plan.cut` [atoms, 2 * placements], for starts with row 0, then row 1.

    Even levels have the start's row.
    """
    levels: Levels = np.concatenate([rows, 1 - rows], axis=1).astype(np.int32)
    parity = levels.copy()
    for atom, predecessors in enumerate(graph.atom_predecessors):
        level = levels[atom]
        for predecessor in predecessors:
            earlier = levels[predecessor]
            np.maximum(level, earlier + ((earlier ^ parity[atom]) & 1), out=level)
    return levels


def _transfers(topology: Topology, prices: Prices, rows: Rows, home: Levels) -> Seconds:
    is_produced = topology.producer >= 0
    maker = np.where(is_produced[:, None], home[topology.producer], -1)
    leaves = np.repeat(topology.output[:, None], rows.shape[1], axis=1)
    stays = np.zeros_like(leaves)
    seconds = np.zeros(rows.shape[1])
    for values, readers in readers_by_number(topology):
        homes = home[readers]
        order = np.argsort(homes, axis=1, kind="stable")
        homes = np.take_along_axis(homes, order, axis=1)
        crosses = homes != maker[values][:, None]
        crosses[:, 1:] &= homes[:, 1:] != homes[:, :-1]
        on_second = np.take_along_axis(rows[readers], order, axis=1) == 1
        into = _by_row(prices.transfer_in, values, on_second)
        away = crosses
        if prices.resident_read is not None:
            repeat_seconds = _by_row(prices.resident_read, values, on_second)
            made_on_second = (rows[topology.producer[values]] == 1)[:, None]
            at_home = is_produced[values][:, None, None] & (made_on_second == on_second)
            is_present = np.isfinite(repeat_seconds) & (at_home | _already_brought(crosses, on_second))
            into = np.where(is_present, repeat_seconds, into)
            away = crosses & ~(is_present & at_home)
            stays[values] |= (crosses & is_present & at_home).any(axis=1)
        leaves[values] |= away.any(axis=1)
        seconds += np.where(crosses, into, 0.0).sum(axis=(0, 1))
    every = np.arange(len(is_produced))
    producer_row = rows[topology.producer] == 1
    out = _by_row(prices.transfer_out, every, producer_row)
    seconds += np.where(leaves & is_produced[:, None], out, 0.0).sum(axis=0)
    if prices.resident_read is not None:
        repeat_seconds = _by_row(prices.resident_read, every, producer_row)
        seconds += np.where(stays & ~leaves & is_produced[:, None], repeat_seconds, 0.0).sum(axis=0)
    return seconds


def _by_row(part: Seconds, values: Indices, on_second: Flags) -> Seconds:
    first, second = (row[values].reshape(-1, *[1] * (on_second.ndim - 1)) for row in part)
    seconds: Seconds = np.where(on_second, second, first)
    return seconds


def _already_brought(crosses: Flags, on_second: Flags) -> Flags:
    has_earlier = np.zeros_like(crosses)
    for row in (on_second, ~on_second):
        brought = np.cumsum(crosses & row, axis=1) - (crosses & row) > 0
        has_earlier |= brought & row
    return has_earlier


def readers_by_number(topology: Topology) -> list[tuple[Indices, Indices]]:
    """Group values by number of readers n; return values [count] and readers [count, n] per group."""
    values, first, number = np.unique(topology.read_value, return_index=True, return_counts=True)
    groups = []
    for size in np.unique(number):
        chosen: Flags = number == size
        groups.append((values[chosen], topology.reader[first[chosen][:, None] + np.arange(size)]))
    return groups


def distinct(placements: Iterable[tuple[_Label, Rows]]) -> list[tuple[_Label, Rows]]:
    """Return the placements without repeated device rows."""
    found: dict[bytes, tuple[_Label, Rows]] = {}
    for entry in placements:
        found.setdefault(entry[1].tobytes(), entry)
    return list(found.values())


def penalized(graph: Graph, prices: Prices) -> Prices:
    """Return prices with a finite penalty, above any feasible cost, for values that cannot cross."""
    forbidden = np.isinf(prices.transfer_in).any() or np.isinf(prices.transfer_out).any()
    if not forbidden:
        return prices
    topology = topology_of(graph)
    readers = np.bincount(topology.read_value, minlength=len(topology.values))
    run, into, out = (
        np.where(np.isinf(part), 0.0, part).max(axis=0)
        for part in (prices.run, prices.transfer_in, prices.transfer_out)
    )
    most = run.sum() + (into * readers + out).sum() + prices.launch.max() * topology.atoms
    above = 1.0 + 2.0 * float(most)
    return replace(
        prices,
        transfer_in=np.where(np.isinf(prices.transfer_in), above, prices.transfer_in),
        transfer_out=np.where(np.isinf(prices.transfer_out), above, prices.transfer_out),
    )


def placement_costs(graph: Graph, prices: Prices, placements: Sequence[Rows]) -> Seconds:
    """Return the cost of each of `placements`, vectorized for two devices."""
    if len(prices.devices) == 2:
        return price_many(graph, prices, np.stack(placements, axis=1))
    labels = prices.devices
    return np.array([price(graph, prices, [labels[row] for row in rows.tolist()]) for rows in placements])
