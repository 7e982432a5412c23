"""Cost model: predicted seconds of operations, fused groups and transfers on each device, with their source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from nnadapter.candidates.atoms import joined
from nnadapter.converters.convert import Conversion
from nnadapter.costs.calibration import Calibration, MeasuredNetwork, find_calibration
from nnadapter.costs.work import (
    CLASSES,
    UNKNOWN_DIMENSION,
    GraphWork,
    Line,
    Numbers,
    OperationClass,
    UnitWork,
    roofline,
)
from nnadapter.drivers import NO_OPERATION, Capability, Context, OptionValues, Profile, Unsupported, Verdict, all_of
from nnadapter.drivers.boundary import ask_admission, ask_profile
from nnadapter.drivers.failures import named_call
from nnadapter.drivers.selection import CPU, HOSTS
from nnadapter.ir.model import ABSENT
from nnadapter.process.processors import usable
from nnadapter.records import dataclass, field, replace
from partition.by_cost.pricing import Prices
from partition.graph import ITEMSIZE_OF_DTYPE, Graph
from partition.plan import Segment


class Source(StrEnum):
    """Source of costs, best first."""

    MEASURED = "measured"
    CALIBRATED = "calibrated"
    SIMULATED = "simulated"
    MODELED = "modeled"
    ASSUMED = "assumed"


ASSUMED = Profile(
    peak_flops=1e10,
    bandwidth=4e9,
    launch_seconds=1e-3,
    transfer_seconds=20e-6,
    transfer_bandwidth=1e9,
    operation_seconds=5e-6,
)
"""Assumed speed of a device that declares none; so low that no node is placed on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCosts:
    """Costs of one device."""

    source: Source
    profile: Profile
    """Declared limits. If calibrated, launch and transfers are measured, and limits hold for classes without lines."""
    lines: Mapping[OperationClass, Line] = field(default_factory=dict)
    """Measured lines by class; other classes use the profile's roofline."""
    fused_lines: Mapping[OperationClass, Mapping[OperationClass, Line]] = field(default_factory=dict)
    measured_sole_launch_seconds: float | None = None
    """Seconds to start a segment that is the entire plan; None for the profile's `launch_seconds`."""
    networks: Mapping[str, MeasuredNetwork] = field(default_factory=dict)
    processors: float = 0.0
    has_resident_values: bool = False
    """True if values stay in device memory between segments."""
    notes: tuple[str, ...] = ()

    off_by: float = 0.0
    missing_cost_notes: tuple[str, ...] = ()

    @property
    def sole_launch_seconds(self) -> float:
        return (
            self.profile.launch_seconds
            if self.measured_sole_launch_seconds is None
            else self.measured_sole_launch_seconds
        )

    @property
    def needs_processors(self) -> bool:
        """True if the device needs so many host processors that overlap with another such device is useless."""
        return self.profile.host_memory or self.processors >= _GOOD_PART * usable()

    @property
    def is_measured(self) -> bool:
        return bool(self.lines or self.fused_lines)

    def seconds(self, work: UnitWork, dtypes: tuple[str, ...]) -> Numbers:
        """Return each unit's seconds; `work.dtypes` are positions in `dtypes`."""
        peaks = np.array([self.profile.peak_of_dtype.get(dtype, self.profile.peak_flops) for dtype in dtypes])
        unit_seconds = roofline(self.profile, work.flops, work.nbytes, peaks[work.dtypes])
        for position, operation_class in enumerate(CLASSES):
            line, members = self.lines.get(operation_class), work.classes == position
            if line is not None and members.any():
                channels = None if work.channels is None else work.channels[members]
                unit_seconds[members] = line.of(work.flops[members], work.nbytes[members], channels)
        for carrier, riding_lines in self.fused_lines.items():
            rides = work.producer_classes == CLASSES.index(carrier)
            for operation_class, line in riding_lines.items():
                members = rides & (work.classes == CLASSES.index(operation_class))
                unit_seconds[members] = line.of(work.flops[members], work.nbytes[members])
        layout = self.lines.get(OperationClass.LAYOUT)
        if layout is not None and len(work.changed):
            changing = layout.of(np.zeros_like(work.changed_bytes), work.changed_bytes)
            unit_seconds += np.bincount(work.changed, changing, len(unit_seconds))
        return unit_seconds


def device_costs(
    name: str, capability: Capability, context: Context, options: OptionValues, *, isolated: bool = False
) -> DeviceCosts:
    """Return a device's costs by its simulated clock, a calibration, declared limits, or assumptions."""
    answer: Profile | Unsupported | None = named_call(name, "profile")(ask_profile, context, capability)
    profile, notes = (None, (f"device {name!r}: {answer.detail}",)) if isinstance(answer, Unsupported) else (answer, ())
    if profile is not None and profile.simulated:
        return DeviceCosts(source=Source.SIMULATED, profile=profile)
    stored_calibration = find_calibration(name, capability.options, options, isolated=isolated)
    notes = (*notes, *filter(None, (stored_calibration.note,)))
    if stored_calibration.calibration is not None:
        return calibrated(stored_calibration.calibration, profile, notes)
    if profile is not None:
        return DeviceCosts(source=Source.MODELED, profile=profile, notes=notes, missing_cost_notes=notes)
    note = (
        f"costs of device {name!r} are assumed: it declares no limits; run `nnadapter calibrate {name}` to measure it"
    )
    return DeviceCosts(source=Source.ASSUMED, profile=ASSUMED, notes=(*notes, note), missing_cost_notes=notes)


def calibrated(calibration: Calibration, declared: Profile | None = None, notes: tuple[str, ...] = ()) -> DeviceCosts:
    """Return the costs in a calibration, with data types and layout as in `declared`."""
    lines, is_host = calibration.lines, calibration.device in HOSTS
    if calibration.unmeasured_classes:
        names = ", ".join(operation_class.value for operation_class in calibration.unmeasured_classes)
        notes = (
            *notes,
            f"these classes could not be calibrated on device {calibration.device!r}, and are priced at the slowest "
            f"rates of the others: {names}",
        )
    per_flop = max((line.seconds_per_flop for line in lines.values()), default=0.0)
    per_byte = max((line.seconds_per_byte for line in lines.values()), default=0.0)
    profile = replace(
        declared or ASSUMED,
        peak_flops=1 / per_flop if per_flop else ASSUMED.peak_flops,
        bandwidth=1 / per_byte if per_byte else ASSUMED.bandwidth,
        peak_of_dtype={},
        launch_seconds=calibration.launch_seconds + (AROUND_THE_HOST if is_host else AROUND_A_DEVICE),
        transfer_seconds=calibration.transfer_seconds,
        transfer_bandwidth=1 / calibration.transfer_seconds_per_byte
        if calibration.transfer_seconds_per_byte
        else _UNMEASURABLE_BANDWIDTH,
        operation_seconds=min((line.seconds for line in lines.values()), default=0.0),
    )
    return DeviceCosts(
        source=Source.CALIBRATED,
        profile=profile,
        lines=lines,
        fused_lines=calibration.fused_lines,
        # A plan of a single CPU segment is a bare call of ONNX Runtime.
        measured_sole_launch_seconds=calibration.sole_launch_seconds + (0.0 if is_host else AROUND_A_DEVICE),
        processors=calibration.processors or 0.0,
        networks=calibration.networks,
        off_by=calibration.off_by,
        notes=notes,
    )


AROUND_A_DEVICE = 5e-6
"""Seconds of session overhead per device segment."""
AROUND_THE_HOST = 2e-6
"""Seconds of session overhead per CPU segment between device segments."""
_GOOD_PART = 0.4
_UNMEASURABLE_BANDWIDTH = 1e15


CONVERSION_BANDWIDTH = 4e9
"""Assumed bytes per second of a cast on the host."""
_IMAGE_RANK = 4


@dataclass(frozen=True, eq=False)
class Crossing:
    """Sizes and types that determine boundary costs, as arrays with an element per value."""

    nbytes: Numbers
    dtypes: tuple[str, ...]
    dtype_of: NDArray[np.int64]
    dense: NDArray[np.bool_]
    """True for tensors of numbers and for values of unknown type."""
    images: NDArray[np.bool_]

    @classmethod
    def of(cls, graph: Graph, names: Sequence[str], nbytes: Numbers) -> Crossing:
        values = [graph.values.get(name) for name in names]
        value_dtypes = ["" if value is None else value.dtype or "" for value in values]
        dtypes = tuple(dict.fromkeys(("", *value_dtypes)))
        place = {dtype: position for position, dtype in enumerate(dtypes)}
        crosses = np.array([not dtype or bool(ITEMSIZE_OF_DTYPE.get(dtype)) for dtype in dtypes])
        dtype_of = np.array([place[dtype] for dtype in value_dtypes], dtype=np.int64)
        ranks = [len(value.shape) if value is not None and value.shape is not None else 0 for value in values]
        return cls(nbytes, dtypes, dtype_of, crosses[dtype_of], np.array(ranks) == _IMAGE_RANK)

    def seconds(self, profile: Profile) -> Numbers:
        """Return the seconds for each value to cross in either direction, infinite if it cannot.

        Transfers within host memory are free. The host casts unaccepted data types, and a channels-last device reorders
        images.
        """
        if profile.host_memory:
            return np.zeros_like(self.nbytes)
        seconds = transfer_seconds(profile, self.nbytes) + self.resident_seconds(profile)
        foreign = np.array([is_foreign(profile, dtype) for dtype in self.dtypes])
        return seconds + np.where(foreign[self.dtype_of], cast_seconds(self.nbytes), 0.0)

    def resident_seconds(self, profile: Profile) -> Numbers:
        """Return the seconds to read or return each device-resident value in a segment, infinite if it cannot stay.

        Segments exchange tensors in the host's layout, so channels-last devices still reorder them.
        """
        reordered = reorder_seconds(profile, self.nbytes) if profile.channels_last else np.zeros_like(self.nbytes)
        return np.where(self.dense, np.where(self.images, reordered, 0.0), np.inf)


def is_foreign(profile: Profile, dtype: str | None) -> bool:
    """Return whether the host casts a data type for the device."""
    return bool(dtype) and profile.boundary_dtypes is not None and dtype not in profile.boundary_dtypes


def transfer_seconds(profile: Profile, nbytes: Numbers) -> Numbers:
    """Return the seconds to copy tensors to the device or back."""
    return profile.transfer_seconds + nbytes / profile.transfer_bandwidth


def cast_seconds(nbytes: Numbers) -> Numbers:
    """Return the seconds of casts on the host."""
    return 2 * nbytes / CONVERSION_BANDWIDTH


def reorder_seconds(profile: Profile, nbytes: Numbers) -> Numbers:
    """Return the seconds to reorder images on the device."""
    return profile.operation_seconds + 2 * nbytes / profile.bandwidth


Groups = tuple[tuple[int, ...], ...]

MOST_OPERATIONS = 20_000
"""Maximum number of operations in a query about fusion, which takes a device nearly as long as a compilation."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """Groups of nodes that one device runs as one operation."""

    groups: Groups = ()
    free: frozenset[int] = frozenset()
    note: str = ""


@dataclass(frozen=True, eq=False)
class FusedGraph:
    """Graph with atoms merged if a device fuses them."""

    original: Graph
    graph: Graph
    parts: Groups
    """Atoms of `original` in each atom of `graph`."""

    def verdicts(self, verdicts_by_device: Mapping[str, Sequence[Verdict]]) -> dict[str, tuple[Verdict, ...]]:
        """Return verdicts on the atoms of `graph`: the first refusal counts."""
        return {
            device: tuple(all_of(verdicts[atom] for atom in part) for part in self.parts)
            for device, verdicts in verdicts_by_device.items()
        }

    def spread_segment(self, segment: Segment) -> Segment:
        return Segment(segment.device, tuple(sorted(atom for part in segment.atoms for atom in self.parts[part])))

    def spread(self, placement: Sequence[str]) -> tuple[str, ...]:
        """Translate a placement of the fused `graph` to atoms of `original`."""
        devices = [""] * len(self.original.atoms)
        for device, part in zip(placement, self.parts, strict=True):
            for atom in part:
                devices[atom] = device
        return tuple(devices)


def fused_groups(
    graph: Graph, conversion: Conversion, context: Context, verdicts: Sequence[Verdict], *, most: int = MOST_OPERATIONS
) -> Fusion:
    """Return the fusion that an adapter IR device reports for the operations it supports; empty above `most`."""
    supported_nodes = [node for atom, verdict in zip(graph.atoms, verdicts, strict=True) if verdict for node in atom]
    operations = sorted(operation for node in supported_nodes for operation in conversion.operations[node])
    if not operations:
        return Fusion()
    if len(operations) > most:
        return Fusion(
            note=f"a device was not asked about the fusion of {len(operations):,} operations, more than "
            f"{most:,}; each atom is priced by itself"
        )
    model = conversion.part(operations, *_boundary_operands(conversion, operations))
    return fusion_of(graph, conversion, operations, ask_admission(context, model).runs_as)


def fusion_of(graph: Graph, conversion: Conversion, operations: Sequence[int], runs_as: Sequence[str]) -> Fusion:
    """Return the fusion that `runs_as` describes by one text per operation; empty for a wrong number of texts.

    Operations with equal texts are a group. An atom is free if all its operations have the text NO_OPERATION.
    """
    if len(runs_as) != len(operations):
        return Fusion()
    node_of = {
        operation: node for node, node_operations in enumerate(conversion.operations) for operation in node_operations
    }
    together: dict[str, list[int]] = {}
    for operation, text in zip(operations, runs_as, strict=True):
        together.setdefault(text, []).append(graph.atom_of[node_of[operation]])
    free = set(together.pop(NO_OPERATION, ()))
    free.difference_update(atom for atoms in together.values() for atom in atoms)
    groups = [tuple(node for atom in dict.fromkeys(atoms) for node in graph.atoms[atom]) for atoms in together.values()]
    sets = joined(len(graph.nodes), groups)
    return Fusion(
        tuple(nodes for nodes in sets if len(nodes) > 1),
        frozenset(node for atom in free for node in graph.atoms[atom]),
    )


def fuse_atoms(graph: Graph, fusions: Iterable[Fusion]) -> FusedGraph:
    """Merge all devices' fused groups to atoms, except groups that would make the graph cyclic."""
    multi_node_atoms = [atom for atom in graph.atoms if len(atom) > 1]
    groups = [group for fusion in fusions for group in fusion.groups]
    while True:
        atoms = joined(len(graph.nodes), [*multi_node_atoms, *groups])
        order, stuck = _order(graph, atoms)
        if not stuck:
            break
        nodes = {node for atom in stuck for node in atoms[atom]}
        acyclic_groups = [group for group in groups if nodes.isdisjoint(group)]
        if len(acyclic_groups) == len(groups):  # only the graph's own atoms remain, and they are acyclic
            atoms, order = graph.atoms, range(len(graph.atoms))
            break
        groups = acyclic_groups
    ordered = tuple(atoms[atom] for atom in order)
    parts = tuple(tuple(dict.fromkeys(graph.atom_of[node] for node in nodes)) for nodes in ordered)
    return FusedGraph(graph, replace(graph, atoms=ordered) if ordered != graph.atoms else graph, parts)


def _order(graph: Graph, atoms: Groups) -> tuple[Sequence[int], Sequence[int]]:
    atom_of = {node: atom for atom, nodes in enumerate(atoms) for node in nodes}
    readers: list[set[int]] = [set() for _ in atoms]
    waiting = [0] * len(atoms)
    for node, graph_node in enumerate(graph.nodes):
        for name in graph_node.reads:
            maker = graph.producer.get(name)
            if maker is not None and atom_of[maker] != atom_of[node] and atom_of[node] not in readers[atom_of[maker]]:
                readers[atom_of[maker]].add(atom_of[node])
                waiting[atom_of[node]] += 1
    order = [atom for atom, count in enumerate(waiting) if not count]
    for atom in order:  # grows during iteration
        for reader in readers[atom]:
            waiting[reader] -= 1
            if not waiting[reader]:
                order.append(reader)
    return order, [atom for atom, count in enumerate(waiting) if count]


def _boundary_operands(conversion: Conversion, operations: Sequence[int]) -> tuple[list[int], list[int]]:
    model, inside = conversion.model, set(operations)
    read = dict.fromkeys(
        operand for operation in operations for operand in model.operations[operation].inputs if operand != ABSENT
    )
    produced_operands = [operand for operation in operations for operand in model.operations[operation].outputs]
    produced_set, model_outputs = set(produced_operands), set(model.outputs)
    inputs = [operand for operand in read if operand not in produced_set and model.operands[operand].value is None]
    consumers = model.consumers
    outputs = [
        operand
        for operand in produced_operands
        if operand in model_outputs or not inside.issuperset(consumers.get(operand, ()))
    ]
    return inputs, outputs


@dataclass(frozen=True, eq=False, kw_only=True)
class CostTable:
    """Predicted seconds of every atom on every device, with sources and notes; see docs/partitioning.md."""

    prices: Prices
    sources: Mapping[str, Source]
    notes: tuple[str, ...]
    on_host: Numbers
    """Seconds of each node by itself on the host."""

    sole_launch_seconds: Mapping[str, float]

    @property
    def devices(self) -> tuple[str, ...]:
        return self.prices.devices

    def sole_launch_savings(self, device: str) -> float:
        """Return the seconds saved if a device's segment is the plan's only one."""
        return float(self.prices.launch[self.devices.index(device)]) - self.sole_launch_seconds[device]


def cost_table(
    graph: FusedGraph,
    conversion: Conversion,
    verdicts: Mapping[str, Sequence[Verdict]],
    costs: Mapping[str, DeviceCosts],
    fusions: Mapping[str, Fusion] | None = None,
) -> CostTable:
    """Return the costs of `graph`, in linear time.

    A fused group is a unit with bytes counted at its boundary. On the host, each node is a unit.
    """
    devices, fusions = tuple(verdicts), fusions or {}
    work = GraphWork(graph.original, conversion)
    constants = graph.original.constants
    mask = np.array([name not in constants for name in work.names], dtype=bool)
    values = tuple(name for name in work.names if name not in constants)
    crossing = Crossing.of(graph.original, values, work.nbytes[mask])
    borders = np.array(
        [np.zeros_like(crossing.nbytes) if name == CPU else crossing.seconds(costs[name].profile) for name in devices]
    )
    on_host = _on_host(work, costs[CPU]) if CPU in verdicts else np.zeros(len(graph.original.nodes))
    run = [
        np.bincount(np.asarray(graph.graph.atom_of, dtype=np.int64), on_host, len(graph.graph.atoms))
        if name == CPU
        else _run(work, graph, costs[name], fusions.get(name))
        for name in devices
    ]
    prices = Prices(
        devices=devices,
        host=CPU,
        run=np.where([[bool(verdict) for verdict in verdicts[name]] for name in devices], run, np.inf),
        transfer_in=borders,
        transfer_out=borders.copy(),
        launch=np.array([costs[name].profile.launch_seconds for name in devices]),
        values=values,
        resident_read=_resident_read_seconds(crossing, [costs[name] for name in devices]),
    )
    sources = {name: costs[name].source for name in devices}
    fusion_notes = (fusion.note for fusion in fusions.values() if fusion.note)
    return CostTable(
        prices=prices,
        sources=sources,
        notes=(*_notes(work, devices, costs), *fusion_notes),
        on_host=on_host,
        sole_launch_seconds={name: costs[name].sole_launch_seconds for name in devices},
    )


def _resident_read_seconds(crossing: Crossing, costs: Sequence[DeviceCosts]) -> Numbers | None:
    if not any(cost.has_resident_values for cost in costs):
        return None
    nothing = np.full_like(crossing.nbytes, np.inf)
    return np.array(
        [crossing.resident_seconds(cost.profile) if cost.has_resident_values else nothing for cost in costs]
    )


def _run(work: GraphWork, graph: FusedGraph, costs: DeviceCosts, fusion: Fusion | None) -> Numbers:
    nodes = len(graph.original.nodes)
    atom_of = np.asarray(graph.graph.atom_of, dtype=np.int64)
    multi_node_atoms = [atom for atom in graph.original.atoms if len(atom) > 1]
    # Placement cuts groups that could not become atoms, so they do not run as one. A calibrated device's lines
    # come from further links of chains, which it fuses the same way, so a group costs the sum of its operations.
    groups = fusion.groups if fusion is not None and not costs.lines else ()
    fused = [group for group in groups if np.all(atom_of[list(group)] == atom_of[group[0]])]
    units = joined(nodes, [*multi_node_atoms, *fused])
    unit_of = np.zeros(nodes, dtype=np.int64)
    unit_of[np.fromiter((node for unit in units for node in unit), np.int64, nodes)] = np.repeat(
        np.arange(len(units)), [len(unit) for unit in units]
    )
    seconds = costs.seconds(work.of(unit_of, len(units), with_fusion_context=costs.is_measured), work.dtypes)
    if fusion is not None and fusion.free:
        seconds[unit_of[sorted(fusion.free)]] = 0.0
    first = np.fromiter((unit[0] for unit in units), np.int64, len(units))
    return np.bincount(atom_of[first], seconds, len(graph.graph.atoms)).astype(np.float64)


def _on_host(work: GraphWork, costs: DeviceCosts) -> Numbers:
    seconds = costs.seconds(work.per_node(with_fusion_context=costs.is_measured), work.dtypes)
    seconds[list(work.conversion.per_node.copies)] = 0.0
    return seconds


_OTHER_SPEEDS = frozenset({"float16", "bfloat16", "float64", "int8", "uint8"})


def _notes(work: GraphWork, devices: Sequence[str], costs: Mapping[str, DeviceCosts]) -> Iterator[str]:
    for name in devices:
        yield from costs[name].notes
    if work.unknown:
        yield (
            f"{work.unknown} values have a size that is unknown before the run; every such dimension is priced as "
            f"{UNKNOWN_DIMENSION:,}"
        )
    uncalibrated = " and ".join(sorted(_OTHER_SPEEDS & work.computing))
    calibrated = ", ".join(repr(name) for name in devices if costs[name].source is Source.CALIBRATED)
    if uncalibrated and calibrated:
        yield (
            f"calibrations are of float32: operations in {uncalibrated} are priced on {calibrated} as if they were, too"
        )
    uncounted = sum(flops is None for flops in work.conversion.flops)
    if uncounted:
        yield (
            f"FLOPs of {uncounted} nodes are unknown, as their op has no formula or their sizes are known only during "
            "the run; they are priced by their bytes alone"
        )
