"""Missing features of a device, and the plan that a model would have if the device had some of them.

A trial places, cuts and prices the model again. Newly supported operations are priced without fusion, unless they
complete a group that devices commonly fuse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property, partial
from math import inf

import numpy as np
from numpy.typing import NDArray

from nnadapter.candidates.atoms import commonly_fused_groups, joined, with_atoms
from nnadapter.candidates.conversions import converted
from nnadapter.converters.convert import Conversion
from nnadapter.costs.cost_model import DeviceCosts, FusedGraph, Fusion, Groups, Source, cost_table, fuse_atoms
from nnadapter.drivers.capability import ModelForm
from nnadapter.onnx.domains import op_name
from nnadapter.onnx.preparation.prepare import Specialized
from nnadapter.planning.judgment import Judgment, refusals
from nnadapter.planning.setting import SessionDevice
from nnadapter.planning.settling import Partitioning, fusions_of
from nnadapter.records import dataclass, field, replace
from partition import SUPPORTED, Graph, Reason, Unsupported, Value, Verdict, cut, place_by_priority
from partition.by_cost.latency import place_by_latency
from partition.by_cost.pricing import Prices, aligned, price


class MissingSide(StrEnum):
    """Component that lacks a feature."""

    DEVICE = "device"
    CONVERTER = "converter"
    """No converter translates the operation for adapter IR devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Feature that a device lacks, such as an operation or a data type."""

    reason: str
    op_type: str
    """Op type; empty if the reason concerns entire segments."""
    qualifier: str = ""
    missing_in: MissingSide = MissingSide.DEVICE

    @property
    def label(self) -> str:
        """Text such as `Erf`, `Pow of float64`, `Expand of rank 2 -> 7`."""
        return _LABELS.get(Reason(self.reason), "{op} {what}").format(op=self.op_type, what=self.qualifier).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Refused node that requires a feature."""

    node: str
    detail: str


Needs = tuple[frozenset[Feature] | None, ...]
"""Required features per atom: empty if supported, None if no feature helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Features that a device lacks for a graph."""

    needs: Needs
    examples: Mapping[Feature, Example]


def missing_features(judgment: Judgment, target: SessionDevice) -> Missing:
    """Return the features that `target` lacks for the atoms that it refuses.

    Devices report one reason per operation, so further ones stay hidden. No feature helps atoms that rules forbid, or
    invalid nodes.
    """
    model = judgment.model
    graph, verdicts = model.graph, judgment.support.verdicts[target.name]
    refusals_by_node = refusals(target, model)
    forbidden = _forbidden(judgment, target.name)
    by_converter = target.capability.form is ModelForm.IR
    needs: list[frozenset[Feature] | None] = []
    examples: dict[Feature, Example] = {}
    for atom, (nodes, verdict) in enumerate(zip(graph.atoms, verdicts, strict=True)):
        node_refusals = (
            () if verdict else tuple((node, refusal) for node in nodes for refusal in refusals_by_node[node])
        )
        if isinstance(verdict, Unsupported) and all(refusal != verdict for _, refusal in node_refusals):
            node_refusals = ((nodes[0], verdict),)  # the atom was supported at first, but a segment with it failed
        if forbidden[atom] or any(refusal.reason in _NO_FEATURE for _, refusal in node_refusals):
            needs.append(None)
            continue
        atom_features = {}
        for node, refusal in node_refusals:
            where = by_converter and refusal == model.conversion.verdicts[node]
            feature = _feature(model.specialized, node, refusal, MissingSide.CONVERTER if where else MissingSide.DEVICE)
            atom_features[feature] = Example(node=graph.nodes[node].name, detail=refusal.detail)
        for feature, example in atom_features.items():
            examples.setdefault(feature, example)
        needs.append(frozenset(atom_features))
    return Missing(needs=tuple(needs), examples=examples)


def _forbidden(judgment: Judgment, device: str) -> Sequence[bool]:
    atoms, applied = len(judgment.model.graph.atoms), judgment.demands.applied
    if applied is None:
        return (False,) * atoms
    return tuple(not verdict for verdict in applied.restricted(device, (SUPPORTED,) * atoms))


def _feature(specialized: Specialized, index: int, refusal: Unsupported, where: MissingSide) -> Feature:
    if refusal.reason in _OF_SEGMENTS:
        return Feature(reason=refusal.reason.value, op_type="")
    node = specialized.graph.nodes[index]
    describe = _QUALIFIERS.get(refusal.reason)
    return Feature(
        reason=refusal.reason.value,
        op_type=op_name(node.domain, node.op_type),
        qualifier="" if describe is None else describe(specialized, index, refusal),
        missing_in=where,
    )


def _dtypes(specialized: Specialized, index: int, refusal: Unsupported) -> str:
    return _through(specialized.graph, index, lambda value: value.dtype or "")


def _ranks(specialized: Specialized, index: int, refusal: Unsupported) -> str:
    return _through(specialized.graph, index, lambda value: "" if value.shape is None else str(len(value.shape)))


def _version(specialized: Specialized, index: int, refusal: Unsupported) -> str:
    return str(specialized.nodes[index].since_version)


def _attribute(specialized: Specialized, index: int, refusal: Unsupported) -> str:
    node, text = specialized.graph.nodes[index], refusal.detail
    for name in sorted({node.name, *node.reads, *node.outputs} - {""}, key=len, reverse=True):
        text = text.replace(f" {name!r}", "")
    return text


def _through(graph: Graph, index: int, describe: Callable[[Value], str]) -> str:
    node = graph.nodes[index]
    inputs, outputs = _texts(graph, node.inputs, describe), _texts(graph, node.outputs, describe)
    input_text, output_text = ", ".join(inputs), ", ".join(outputs)
    return (
        f"{input_text} -> {output_text}"
        if input_text and output_text and not outputs.keys() <= inputs.keys()
        else input_text or output_text
    )


def _texts(graph: Graph, names: Iterable[str], describe: Callable[[Value], str]) -> Mapping[str, None]:
    return dict.fromkeys(filter(None, (describe(graph.value(name)) for name in names if name)))


_NO_FEATURE = frozenset((Reason.RULE, Reason.INVALID_NODE))
_OF_SEGMENTS = frozenset((Reason.MEMORY_LIMIT, Reason.SEGMENT_LIMIT))
_QUALIFIERS: Mapping[Reason, Callable[[Specialized, int, Unsupported], str]] = {
    Reason.UNSUPPORTED_DTYPE: _dtypes,
    Reason.UNSUPPORTED_RANK: _ranks,
    Reason.UNSUPPORTED_VERSION: _version,
    Reason.UNSUPPORTED_ATTRIBUTE: _attribute,
}
_LABELS: Mapping[Reason, str] = {
    Reason.UNSUPPORTED_DTYPE: "{op} of {what}",
    Reason.UNSUPPORTED_RANK: "{op} of rank {what}",
    Reason.UNSUPPORTED_VERSION: "{op} of schema version {what}",
    Reason.UNSUPPORTED_ATTRIBUTE: "{op}: {what}",
    Reason.UNSUPPORTED_TYPE: "{op} on values other than nonempty dense tensors",
    Reason.NOT_CONSTANT: "{op} with computed inputs",
    Reason.DYNAMIC_SHAPE: "{op} with an unknown shape",
    Reason.DATA_DEPENDENT_SHAPE: "{op} with a shape known only at run time",
    Reason.CONTROL_FLOW: "{op}, which contains other graphs",
    Reason.MEMORY_LIMIT: "segments larger than the memory",
    Reason.SEGMENT_LIMIT: "segments that are refused as a whole",
    Reason.COMPILE_FAILED: "{op}, which fails to compile",
    Reason.DRIVER_ERROR: "{op}, on which the driver fails",
    Reason.WRONG_RESULT: "{op}, which the device computes wrongly",
}


def groups_if_supported(
    specialized: Specialized, missing: Missing, verdicts: Sequence[Verdict], fusion: Fusion
) -> Groups:
    """Return groups of atoms that the device would run as one operation if it lacked no feature.

    There are two kinds:

    1. Atoms that would be one atom with full support.
    2. Convolutions and matrix products with their activation functions, if the device fuses operations. Op types that
       the device already supports unfused are excluded.
    """
    if not missing.examples:
        return ()
    graph = specialized.graph
    plain = replace(specialized, graph=replace(graph, atoms=()))
    conversion = converted(plain)
    atoms = with_atoms(plain, conversion)[0].graph.atoms
    of_atoms = [_atoms_of(graph, nodes) for nodes in atoms if len(nodes) > 1]
    if fusion.groups:
        home = {node: number for number, group in enumerate(fusion.groups) for node in group}
        products = {nodes: _atoms_of(graph, nodes) for nodes in commonly_fused_groups(conversion)}
        unfused_op_types = {
            _op_types(graph, nodes)
            for nodes, product_atoms in products.items()
            if all(verdicts[atom] for atom in product_atoms) and len({home.get(node, ~node) for node in nodes}) > 1
        }
        of_atoms += [
            product_atoms
            for nodes, product_atoms in products.items()
            if _op_types(graph, nodes) not in unfused_op_types
        ]
    lacking = (group for group in of_atoms if len(group) > 1 and any(missing.needs[atom] for atom in group))
    return tuple(dict.fromkeys(lacking))


def _atoms_of(graph: Graph, nodes: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(graph.atom_of[node] for node in nodes))


def _op_types(graph: Graph, nodes: Sequence[int]) -> tuple[str, ...]:
    return tuple(graph.nodes[node].op_type for node in nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutcome:
    """Result of a hypothetical plan; results of several models add up."""

    seconds: float = 0.0
    """Predicted seconds; infinite if a value cannot cross a boundary."""
    segments: int = 0
    nodes: int = 0
    flops: int = 0

    def __add__(self, other: PlanOutcome) -> PlanOutcome:
        return PlanOutcome(
            seconds=self.seconds + other.seconds,
            segments=self.segments + other.segments,
            nodes=self.nodes + other.nodes,
            flops=self.flops + other.flops,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Pricing:
    """Prices of a graph's atoms under fusion."""

    fused_graph: FusedGraph
    fused: Prices
    """Prices with fusion, as if the device supported everything."""

    @cached_property
    def parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Atoms ordered by fused group, and the position of each group's first atom."""
        sizes = [len(part) for part in self.fused_graph.parts]
        atoms = np.fromiter((atom for part in self.fused_graph.parts for atom in part), np.int64, sum(sizes))
        return atoms, np.cumsum([0, *sizes])[:-1].astype(np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class Situation:
    """Judged model with the facts to place and price it again, without weights."""

    name: str
    graph: Graph
    device: str
    host: str
    accelerators: frozenset[str]
    verdicts: Mapping[str, tuple[Verdict, ...]]
    missing: Missing
    by_costs: bool
    unfused_prices: Prices
    """Prices without fusion, as if the device supported everything."""
    recognized: Groups
    """Groups of atoms that would fuse if the device supported them."""
    pricing: Callable[[Groups], Pricing]
    """Function that returns the prices if some groups of `recognized` are fused."""
    flops: NDArray[np.int64]
    unknown_flops_nodes: int
    sources: Mapping[str, Source]
    input_shapes: Mapping[str, tuple[int, ...]]
    all_cpu_seconds: float
    planned_segments: int
    _outcomes: dict[frozenset[Feature], PlanOutcome] = field(default_factory=dict)
    _pricings: dict[Groups, Pricing] = field(default_factory=dict)

    @property
    def features(self) -> Mapping[Feature, Example]:
        return self.missing.examples

    @cached_property
    def frequency(self) -> Mapping[Feature, int]:
        node_counts = Counter[Feature]()
        for nodes, needs in zip(self.graph.atoms, self.missing.needs, strict=True):
            node_counts.update(dict.fromkeys(needs or (), len(nodes)))
        return node_counts

    @property
    def is_timed(self) -> bool:
        return Source.ASSUMED not in self.sources.values()

    def regions(self, features: frozenset[Feature]) -> list[frozenset[Feature]]:
        """Return the features that each connected region of unsupported atoms requires in addition to `features`."""
        lacking = [needs - features if needs else needs for needs in self.missing.needs]
        region = list(range(len(lacking)))

        def root(atom: int) -> int:
            while region[atom] != atom:
                region[atom] = atom = region[region[atom]]
            return atom

        for atom, predecessors in enumerate(self.graph.atom_predecessors):
            for other in predecessors if lacking[atom] else ():
                if lacking[other]:
                    region[root(other)] = root(atom)
        region_needs: dict[int, frozenset[Feature]] = {}
        for atom, needs in enumerate(lacking):
            if needs:
                region_needs[root(atom)] = region_needs.get(root(atom), frozenset()) | needs
        return list(region_needs.values())

    def with_features(self, features: Iterable[Feature] = ()) -> PlanOutcome:
        """Return the outcome if the device had these features. More features never make placement by costs slower."""
        relevant_features = self.features.keys() & features
        key = frozenset(relevant_features)
        if key not in self._outcomes:
            new_outcome = self._tried(key)
            fewer = (
                [cached_outcome for subset, cached_outcome in self._outcomes.items() if subset < key]
                if self.by_costs
                else []
            )
            self._outcomes[key] = min((new_outcome, *fewer), key=lambda outcome: outcome.seconds)
        return self._outcomes[key]

    def _tried(self, features: frozenset[Feature]) -> PlanOutcome:
        supported_atoms = tuple(needs is not None and needs <= features for needs in self.missing.needs)
        pricing = self._pricing(supported_atoms)
        labels = (
            self._placed_by_costs(pricing, supported_atoms)
            if self.by_costs
            else self._placed_by_priority(supported_atoms)
        )
        segments = cut(self.graph, labels, host=self.host).segments
        home = np.empty(len(labels), np.int64)
        for position, segment in enumerate(segments):
            home[list(segment.atoms)] = position
        away = np.array([label in self.accelerators for label in labels], dtype=bool)
        sizes = np.array([len(nodes) for nodes in self.graph.atoms], dtype=np.int64)
        return PlanOutcome(
            seconds=price(self.graph, self.unfused_prices, labels, segments)
            - self._saved_by_fusion(pricing, labels, home),
            segments=len(segments),
            nodes=int(sizes[away].sum()),
            flops=int(self.flops[away].sum()),
        )

    def _pricing(self, supported_atoms: Sequence[bool]) -> Pricing:
        complete = tuple(group for group in self.recognized if all(supported_atoms[atom] for atom in group))
        if complete not in self._pricings:
            self._pricings[complete] = self.pricing(complete)
        return self._pricings[complete]

    def _placed_by_priority(self, supported_atoms: Sequence[bool]) -> Sequence[str]:
        device_verdicts = self.verdicts[self.device]
        more = tuple(
            SUPPORTED if is_supported else verdict
            for is_supported, verdict in zip(supported_atoms, device_verdicts, strict=True)
        )
        verdicts = {**self.verdicts, self.device: more}
        return place_by_priority(self.graph, tuple(verdicts), verdicts)

    def _placed_by_costs(self, pricing: Pricing, supported_atoms: Sequence[bool]) -> Sequence[str]:
        fused_graph, prices = pricing.fused_graph, pricing.fused
        row = prices.devices.index(self.device)
        run = prices.run.copy()
        run[row, [not all(supported_atoms[atom] for atom in part) for part in fused_graph.parts]] = np.inf
        masked = replace(prices, run=run)
        return fused_graph.spread(place_by_latency(fused_graph.graph, masked).placement)

    def _saved_by_fusion(self, pricing: Pricing, labels: Sequence[str], home: NDArray[np.int64]) -> float:
        row = {device: at for at, device in enumerate(self.unfused_prices.devices)}
        rows = np.fromiter((row[label] for label in labels), np.int64, len(labels))
        atom_seconds = self.unfused_prices.run[rows, np.arange(len(labels))]
        saved = 0.0
        atoms, starts = pricing.parts
        if len(starts):
            first = atoms[starts]
            together = np.minimum.reduceat(home[atoms], starts) == np.maximum.reduceat(home[atoms], starts)
            separate_seconds = np.add.reduceat(atom_seconds[atoms], starts)
            as_one = pricing.fused.run[rows[first], np.arange(len(starts))]
            is_priced = together & np.isfinite(as_one) & np.isfinite(separate_seconds)
            saved = float((separate_seconds[is_priced] - as_one[is_priced]).sum())
        return saved


def situation_of(name: str, partitioning: Partitioning, target: SessionDevice) -> Situation:
    """Return the situation of a partitioned model for `target`."""
    judgment, setting, model = partitioning.judgment, partitioning.setting, partitioning.model
    graph, conversion, costs, verdicts = model.graph, model.conversion, setting.costs, judgment.support.verdicts
    fusions = fusions_of(judgment, setting)
    everything = {**verdicts, target.name: (SUPPORTED,) * len(graph.atoms)}
    single = FusedGraph(graph, graph, tuple((atom,) for atom in range(len(graph.atoms))))
    atom_costs = cost_table(single, conversion, everything, costs)
    missing = missing_features(judgment, target)
    is_ir = target.capability.form is ModelForm.IR
    fusion = fusions.get(target.name, Fusion())
    recognized = groups_if_supported(model.specialized, missing, verdicts[target.name], fusion) if is_ir else ()
    flops = np.array([sum(conversion.flops[node] or 0 for node in nodes) for nodes in graph.atoms], dtype=np.int64)
    return Situation(
        name=name,
        graph=graph,
        device=target.name,
        host=setting.host.name,
        accelerators=setting.accelerators,
        verdicts=verdicts,
        missing=missing,
        by_costs=setting.constraints.policy.weighs and Source.ASSUMED not in atom_costs.sources.values(),
        unfused_prices=aligned(graph, atom_costs.prices),
        recognized=recognized,
        pricing=partial(_priced, graph, conversion, everything, costs, fusions, target.name),
        flops=flops,
        unknown_flops_nodes=sum(node_flops is None for node_flops in conversion.flops),
        sources=atom_costs.sources,
        input_shapes=dict(model.shapes),
        all_cpu_seconds=inf if partitioning.price.on_cpu is None else partitioning.price.on_cpu,
        planned_segments=len(partitioning.plan.steps),
    )


def _priced(
    graph: Graph,
    conversion: Conversion,
    verdicts: Mapping[str, Sequence[Verdict]],
    costs: Mapping[str, DeviceCosts],
    fusions: Mapping[str, Fusion],
    device: str,
    groups: Groups,
) -> Pricing:
    fusion = fusions.get(device, Fusion())
    nodes = [tuple(node for atom in group for node in graph.atoms[atom]) for group in groups]
    together = joined(len(graph.nodes), [*fusion.groups, *nodes])
    fusions = {**fusions, device: replace(fusion, groups=tuple(group for group in together if len(group) > 1))}
    fused_graph = fuse_atoms(graph, fusions.values())
    table = cost_table(fused_graph, conversion, fused_graph.verdicts(verdicts), costs, fusions)
    return Pricing(fused_graph=fused_graph, fused=aligned(fused_graph.graph, table.prices))
