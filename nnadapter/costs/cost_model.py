"""The cost model: what every atom costs on every device, and what every value costs at its border."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nnadapter.converters.convert import Conversion
from nnadapter.costs.boundary import Crossing
from nnadapter.costs.device_costs import DeviceCosts, Source
from nnadapter.costs.fusion import Fusion, Merged
from nnadapter.costs.roofline import Numbers
from nnadapter.costs.work import UNKNOWN_DIMENSION, GraphWork
from nnadapter.drivers.selection import CPU
from nnadapter.offering.atoms import joined
from partition.by_cost.pricing import Prices
from partition.verdict import Verdict


@dataclass(frozen=True, eq=False, kw_only=True)
class CostTable:
    """Seconds, as `partition` prices plans with them; see docs/partitioning.md."""

    prices: Prices
    """Seconds of atoms, borders and launches; see docs/partitioning.md."""
    sources: Mapping[str, Source]
    """Where each device's numbers come from."""
    notes: tuple[str, ...]
    """What a person should know of the numbers, a sentence each."""
    on_host: Numbers
    """Seconds of every node by itself on the host, that of `prices`; zeros where that is not among the devices."""

    alone: Mapping[str, float]
    """Seconds of a launch of a segment that is all that runs, by device."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Labels, one per row."""
        return self.prices.devices

    def saved_alone(self, device: str) -> float:
        """Seconds by which a launch on a device is shorter where it is the only one."""
        return float(self.prices.launch[self.devices.index(device)]) - self.alone[device]


def cost_table(
    graph: Merged,
    conversion: Conversion,
    verdicts: Mapping[str, Sequence[Verdict]],
    costs: Mapping[str, DeviceCosts],
    fusions: Mapping[str, Fusion] | None = None,
) -> CostTable:
    """Return what `graph` costs on the devices. Linear in the graph; 100,000 nodes take less than a second.

    What a device fuses is priced as one: FLOPs are added up, and bytes counted where they cross the border of what is
    fused; of a calibrated device operations are added up. What it makes nothing of costs nothing. Where it does not
    say, an atom is one thing. On the host every node is priced by itself: what atoms there are hangs on what other
    devices refuse, and the host's price must not.

    Args:
        graph: from `merged`.
        conversion: of the graph, for FLOPs and classes.
        verdicts: per device, in the person's order, on every atom of `graph.graph`.
        costs: per device.
        fusions: per device that says what it fuses.
    """
    devices, fusions = tuple(verdicts), fusions or {}
    work = GraphWork(graph.before, conversion)
    constants = graph.before.constants
    mask = np.array([name not in constants for name in work.names], dtype=bool)
    values = tuple(name for name in work.names if name not in constants)
    crossing = Crossing.of(graph.before, values, work.nbytes[mask])
    borders = np.array([_crossing_seconds(crossing, costs[name], is_host=name == CPU) for name in devices])
    on_host = _on_host(work, costs[CPU]) if CPU in verdicts else np.zeros(len(graph.before.nodes))
    prices = Prices(
        devices=devices,
        host=CPU,
        run=np.array(
            [
                _host_run(on_host, graph, verdicts[name])
                if name == CPU
                else _run(work, graph, verdicts[name], costs[name], fusions.get(name))
                for name in devices
            ]
        ),
        into=borders,
        out=borders.copy(),
        launch=np.array([costs[name].profile.launch_seconds for name in devices]),
        values=values,
        again=_again(crossing, [costs[name] for name in devices]),
    )
    sources = {name: costs[name].source for name in devices}
    fusion_notes = (fusion.note for fusion in fusions.values() if fusion.note)
    return CostTable(
        prices=prices,
        sources=sources,
        notes=(*_notes(work, devices, costs), *fusion_notes),
        on_host=on_host,
        alone={name: costs[name].launch_alone for name in devices},
    )


def _crossing_seconds(crossing: Crossing, costs: DeviceCosts, *, is_host: bool) -> Numbers:
    return np.zeros_like(crossing.nbytes) if is_host else crossing.seconds(costs.profile)


def _again(crossing: Crossing, costs: Sequence[DeviceCosts]) -> Numbers | None:
    if not any(cost.keeps for cost in costs):
        return None
    nothing = np.full_like(crossing.nbytes, np.inf)
    return np.array([crossing.stay_seconds(cost.profile) if cost.keeps else nothing for cost in costs])


def _run(
    work: GraphWork, graph: Merged, verdicts: Sequence[Verdict], costs: DeviceCosts, fusion: Fusion | None
) -> NDArray[np.float64]:
    """Seconds of every atom on one device."""
    nodes = len(graph.before.nodes)
    atom_of = np.asarray(graph.graph.atom_of, dtype=np.int64)
    multi_node_atoms = [atom for atom in graph.before.atoms if len(atom) > 1]
    # Groups that could not be atoms are cut by placement, so that they do not run as one. Lines were measured of the
    # further links of chains, which a device fuses as it does these: what is fused costs the sum of its operations.
    groups = fusion.groups if fusion is not None and not costs.lines else ()
    fused = [group for group in groups if np.all(atom_of[list(group)] == atom_of[group[0]])]
    units = joined(nodes, [*multi_node_atoms, *fused])
    unit_of = np.zeros(nodes, dtype=np.int64)
    unit_of[np.fromiter((node for unit in units for node in unit), np.int64, nodes)] = np.repeat(
        np.arange(len(units)), [len(unit) for unit in units]
    )
    seconds = costs.seconds(work.of(unit_of, len(units), company=costs.is_measured), work.dtypes)
    if fusion is not None and fusion.free:
        seconds[unit_of[sorted(fusion.free)]] = 0.0
    first = np.fromiter((unit[0] for unit in units), np.int64, len(units))
    atom_seconds = np.bincount(atom_of[first], seconds, len(graph.graph.atoms))
    return np.where([bool(verdict) for verdict in verdicts], atom_seconds, np.inf)


def _on_host(work: GraphWork, costs: DeviceCosts) -> Numbers:
    """Seconds of every node on the host; none for a node that repeats another one."""
    seconds = costs.seconds(work.one_by_one(company=costs.is_measured), work.dtypes)
    seconds[list(work.conversion.alone.copies)] = 0.0
    return seconds


def _host_run(seconds: Numbers, graph: Merged, verdicts: Sequence[Verdict]) -> NDArray[np.float64]:
    """Seconds of every atom on the host: those of its nodes."""
    atom_seconds = np.bincount(np.asarray(graph.graph.atom_of, dtype=np.int64), seconds, len(graph.graph.atoms))
    return np.where([bool(verdict) for verdict in verdicts], atom_seconds, np.inf)


_OTHER_SPEEDS = frozenset({"float16", "bfloat16", "float64", "int8", "uint8"})
"""Data types that devices compute at another speed than float32."""


def _notes(work: GraphWork, devices: Sequence[str], costs: Mapping[str, DeviceCosts]) -> Iterator[str]:
    for name in devices:
        yield from costs[name].notes
    if work.unknown:
        yield (
            f"{work.unknown} values have a size that is not known before the run; every such dimension is priced as "
            f"{UNKNOWN_DIMENSION:,}"
        )
    uncalibrated = " and ".join(sorted(_OTHER_SPEEDS & work.computing))
    calibrated = ", ".join(repr(name) for name in devices if costs[name].source is Source.CALIBRATED)
    if uncalibrated and calibrated:
        yield f"calibrations are of float32: what computes {uncalibrated} is priced on {calibrated} as if it were that"
    uncounted = sum(flops is None for flops in work.conversion.flops)
    if uncounted:
        yield (
            f"FLOPs of {uncounted} nodes are not known, as their op has no formula or the run alone tells their sizes; "
            "they are priced by their bytes alone"
        )
