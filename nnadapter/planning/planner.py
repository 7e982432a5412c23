"""Planner of one prepared model for one session: collect verdicts at the input shapes, expand function ops, partition.

Function ops that every device refuses are expanded if devices take their entire bodies; each set of expanded nodes is a
variant. `settling` then places and cuts the variant's nodes. The variant depends only on the verdicts for the requested
shapes. Caches save work and never change the outcome.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import TYPE_CHECKING

from nnadapter.candidates import atoms
from nnadapter.candidates.conversions import Conversions, offered_ops, prepare
from nnadapter.candidates.segments import OnnxParts, ShapedModel
from nnadapter.converters.custom import KernelCalls
from nnadapter.kernels.segments import DeviceCandidate, called_nodes, calls_of, type_rules
from nnadapter.onnx.construction import OnnxIndex
from nnadapter.onnx.inlining import Bodies
from nnadapter.onnx.preparation.device_forms import expanded, with_dequantized
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.onnx.signature import Shapes
from nnadapter.planning.judgment import (
    Atoms,
    Judgment,
    Support,
    Verdicts,
    answers,
    ask,
    banning,
    barred,
    completed,
    constrained,
)
from nnadapter.planning.setting import Demands, SessionDevice, Setting
from nnadapter.planning.settling import AdmittedSegment, Drafts, Partitioning, settle
from nnadapter.process.resources import Cache, new_lock, paused_collection
from nnadapter.records import dataclass, field, replace
from nnadapter.traces.trace import PLAN, SESSION
from partition import Step, Unsupported

if TYPE_CHECKING:
    from threading import Lock

    import onnx


def to_dequantize(judgment: Judgment, setting: Setting) -> frozenset[int]:
    """Return the model positions of DequantizeLinear nodes that read constants and should be evaluated before runs.

    The device of a reader refuses such a node, so another device would compute it in every run. Other DequantizeLinear
    nodes remain, because devices and ONNX Runtime fuse them with their readers.
    """
    specialized, graph = judgment.model.specialized, judgment.model.graph
    device_answers = answers(judgment, setting)

    def takers() -> Iterator[int]:
        for index, node in enumerate(specialized.nodes):
            if node.op_type != "DequantizeLinear" or node.domain:
                continue
            if not all(name in specialized.constants for name in node.inputs if name):
                continue
            node_atom = graph.atom_of[index]
            for reader in graph.consumers.get(node.outputs[0], ()):
                atom = graph.atom_of[reader]
                taker = next((verdicts for verdicts in device_answers if verdicts[atom]), None)
                if taker is not None and not taker[node_atom]:
                    yield specialized.positions[index]

    return frozenset(takers())


HostRefusals = dict[str, Unsupported]
"""Name of a node that the host accepted but failed to load -> reason, at all shapes."""


@dataclass(eq=False)
class Variant:
    """Variant of a model with some function ops expanded, and caches for its judgments."""

    prepared: Prepared
    setting: Setting
    refused_by_host: HostRefusals
    refused_at_all_shapes: Bodies = field(default_factory=dict)
    """Nodes expanded for the last shapes, and refused by every device at all shapes."""
    index: OnnxIndex = field(init=False)
    conversions: Conversions = field(init=False)
    _by_host: tuple[Hashable, Verdicts] = field(default=((), ()))
    _whole: set[tuple[str, ...]] = field(default_factory=set)
    """Atoms, as tuples of node names, that are not split again: devices also refused their single nodes."""
    _calls: KernelCalls | None = None
    _dequantized: Variant | None = None

    def __post_init__(self) -> None:
        self.index = OnnxIndex.of(self.prepared.model)
        tables = [device.kernels for device in self.setting.devices]
        opsets = {entry.domain: entry.version for entry in self.prepared.model.opset_import}
        self._calls = calls_of(tables, opsets, self.setting.domains)
        self.conversions = Conversions(self.prepared, self._calls)

    def clear(self) -> None:
        self.conversions.clear()
        if self._dequantized is not None:
            self._dequantized.clear()

    def judge(self, shapes: Shapes) -> Judgment:
        """Specialize and convert the model, and ask every device; offer refused atoms again, node by node.

        Refused nodes become calls of the device's custom kernels, if any. Quantized constants that a device reads but
        does not dequantize are dequantized in advance from then on.
        """
        if self._dequantized is not None:
            return self._dequantized.judge(shapes)
        judgment = self._judge_with_kernels(shapes)
        positions = to_dequantize(judgment, self.setting)
        if not positions:
            return judgment
        prepared = with_dequantized(self.prepared, positions)
        if prepared.evaluated == self.prepared.evaluated:
            return judgment
        self._dequantized = Variant(prepared, self.setting, self.refused_by_host)
        self.conversions.clear()
        return self._dequantized.judge(shapes)

    def _judge_with_kernels(self, shapes: Shapes) -> Judgment:
        if self._calls is None:
            return self._judge_with_splits(shapes)
        self.conversions.call_kernels(frozenset())  # the calls depend on the verdicts at these shapes
        judgment = self._judge_with_splits(shapes)
        model, verdicts = judgment.model, judgment.support.verdicts
        candidates = [
            DeviceCandidate(device.kernels, verdicts[device.name])
            for device in self.setting.devices
            if device.name in verdicts and device.accelerates
        ]
        call_names = called_nodes(model.graph, model.specialized.nodes, self._calls, candidates)
        if not call_names:
            return judgment
        self.conversions.call_kernels(call_names)
        return self._judge(shapes)

    def _judge_with_splits(self, shapes: Shapes) -> Judgment:
        judgment = self._judge(shapes)
        graph = judgment.model.graph
        refused = atoms.atoms_to_split(graph, answers(judgment, self.setting))
        offered = [offer for offer in refused if offer.nodes not in self._whole]
        if not offered:
            return judgment
        previous_values = self.conversions.visible_values
        self.conversions.keep_visible(previous_values.union(*(offer.inside for offer in offered)))
        judgment = self._judge(shapes)
        parted = atoms.accepted_splits(offered, judgment.model.graph, answers(judgment, self.setting))
        if len(parted) == len(offered):
            return judgment
        self._whole.update(offer.nodes for offer in offered if offer not in parted)
        self.conversions.keep_visible(previous_values.union(*(offer.inside for offer in parted)))
        return self._judge(shapes)

    def _judge(self, shapes: Shapes) -> Judgment:
        with self.setting.trace.span(SESSION, PLAN, "specialize and convert"):
            specialized, conversion = self.conversions.of(shapes)
        parts = OnnxParts(specialized, self.index)
        model = ShapedModel(self.prepared, shapes, specialized, conversion, parts, self.conversions.visible_values)
        devices = [device for device in self.setting.devices if not device.is_spare]
        verdicts = {device.name: self._ask(device, model) for device in devices}
        support = Support(verdicts, verdicts[self.setting.host.name])
        return completed(Judgment(model, support, Demands()), self.setting)

    def _ask(self, device: SessionDevice, model: ShapedModel) -> Verdicts:
        if not device.is_host:
            return self._timed_verdicts(device, model)
        cached_key, verdicts = self._by_host
        key = model.specialized.positions, model.graph.atoms
        if cached_key != key:
            verdicts = self._timed_verdicts(device, model)
            self._by_host = key, verdicts
        return self._without_refused(verdicts, model) if self.refused_by_host else verdicts

    def _timed_verdicts(self, device: SessionDevice, model: ShapedModel) -> Verdicts:
        with self.setting.trace.span(device.name, PLAN, "verdicts") as facts:
            verdicts = ask(device, model)
            facts.update(asked=len(verdicts), taken=sum(map(bool, verdicts)))
        return verdicts

    def _without_refused(self, verdicts: Verdicts, model: ShapedModel) -> Verdicts:
        model_nodes, positions = model.specialized.model_nodes, model.specialized.positions
        names = [model_nodes.nodes[position].name for position in positions]
        refused = [[self.refused_by_host.get(names[node]) for node in atom] for atom in model.graph.atoms]
        return tuple(
            next((refusal for refusal in of_nodes if refusal is not None), verdict)
            for of_nodes, verdict in zip(refused, verdicts, strict=True)
        )


_MOST_EXPANSIONS = 4
"""Maximum nesting of function ops that are expanded."""
_MOST_VARIANTS = 4

WithdrawnNodes = Mapping[str, Mapping[str, Unsupported]]
ALL = ""
_Key = tuple[Variant, frozenset[str]]


@dataclass(frozen=True, eq=False)
class _Expanded:
    variant: Variant
    parent_nodes: tuple[str, ...]


def prepare_for(model: onnx.ModelProto, setting: Setting) -> Prepared:
    """Return `model` after its shape-independent preparation. Raises InvalidModelError."""
    with setting.trace.span(SESSION, PLAN, "prepare the model") as facts:
        facts["nodes"] = len(model.graph.node)
        offered = offered_ops(model, setting.domains) if setting.domains else ()
        return prepare(model, type_rules([device.kernels for device in setting.devices], offered))


@dataclass(eq=False)
class Planner:
    """Planner of one prepared model in one session setting."""

    prepared: Prepared
    setting: Setting
    refused_by_host: HostRefusals = field(default_factory=dict)
    withdrawn_nodes: WithdrawnNodes = field(default_factory=dict)
    """Device -> withdrawn node -> reason; the key ALL covers every node."""
    _own: Variant = field(init=False)
    _variants: Cache[_Key, _Expanded] = field(default_factory=lambda: Cache("variants of a model", _MOST_VARIANTS))
    _unexpandable: set[str] = field(default_factory=set)
    """Function ops whose expansion is useless at all shapes."""
    _drafts: Drafts = field(default_factory=Drafts)
    _lock: Lock = field(default_factory=new_lock)

    def __post_init__(self) -> None:
        self._own = Variant(self.prepared, self.setting, self.refused_by_host)

    def clear(self) -> None:
        self._own.clear()
        self._variants.clear()
        self._drafts.clear()

    @paused_collection
    def judge(self, shapes: Shapes) -> Judgment:
        """Specialize, convert and ask every device, then apply rules, bans and `withdrawn_nodes`. Thread-safe."""
        shown = {name: list(shape) for name, shape in shapes.items()}
        # The lock guards caches that shapes share.
        with self.setting.trace.span(SESSION, PLAN, "judge", shapes=shown), self._lock:
            return self._without_withdrawn(
                barred(constrained(self._judge_expanded(shapes), self.setting), self.setting)
            )

    def settle(self, judgment: Judgment, known_segments: dict[Atoms, AdmittedSegment] | None = None) -> Partitioning:
        with self.setting.trace.span(SESSION, PLAN, "place and cut") as facts:
            settled = settle(judgment, self.setting, self._drafts, known_segments)
            facts["segments"] = len(settled.plan.steps)
        return settled

    def blame(self, judgment: Judgment, step: Step, refused: Mapping[int, Unsupported]) -> Judgment:
        """Ban nodes from the device that failed to load them: `refused` maps positions in `step` to reasons.

        For the host, the ban holds for all shapes.
        """
        nodes = {step.nodes[position]: reason for position, reason in refused.items()}
        specialized, graph = judgment.model.specialized, judgment.model.graph
        if step.device == self.setting.host.name:
            model_nodes, positions = specialized.model_nodes, specialized.positions
            self.refused_by_host.update(
                (model_nodes.nodes[positions[node]].name, reason) for node, reason in nodes.items()
            )
        bans: dict[Atoms, Unsupported] = {
            (step.device, (graph.atom_of[node],)): reason for node, reason in nodes.items()
        }
        return banning(judgment, self.setting, bans)

    def _without_withdrawn(self, judgment: Judgment) -> Judgment:
        bans: dict[Atoms, Unsupported] = {}
        graph, verdicts = judgment.model.graph, judgment.support.verdicts
        for device, nodes in list(self.withdrawn_nodes.items()):
            for index, node in enumerate(graph.nodes):
                reason, atom = nodes.get(node.name, nodes.get(ALL)), graph.atom_of[index]
                if reason is not None and verdicts[device][atom]:
                    bans[device, (atom,)] = reason
        return banning(judgment, self.setting, bans) if bans else judgment

    def _judge_expanded(self, shapes: Shapes) -> Judgment:
        """Judge the model, and expand refused function ops round by round if devices take the entire body."""
        variant, judged = self._own, None
        tried, assumed_unexpandable = set[str](), set[str]()
        for _ in range(_MOST_EXPANSIONS):
            expanded_once = self._repeat_round(variant, shapes)
            if expanded_once is None:
                judged = judged or variant.judge(shapes)
                tried_before = tried | self._unexpandable
                device_verdicts = answers(judged, self.setting) or _all_verdicts(judged)
                bodies = atoms.bodies_to_try(variant.prepared, judged.model.specialized, device_verdicts, tried_before)
                tried.update(bodies)
                expanded_once = self._try_round(variant, judged, bodies, assumed_unexpandable) if bodies else None
            if expanded_once is None:
                break
            variant, judged = expanded_once
        judged = judged or variant.judge(shapes)
        undecided = tried - self._unexpandable - assumed_unexpandable
        if not undecided:
            return judged
        names = {node.name for node in judged.model.graph.nodes}
        return replace(judged, unexpanded_at_these_shapes=frozenset(undecided & names))

    def _repeat_round(self, variant: Variant, shapes: Shapes) -> tuple[Variant, Judgment] | None:
        """Repeat the last round's expansions without judging `variant` itself; None if an expansion is useless now."""
        bodies = variant.refused_at_all_shapes
        tried = self._try_expansion(variant, bodies, shapes) if bodies else None
        if tried is None:
            return None
        next_variant, judged, trial = tried
        return (next_variant, judged) if len(trial.worthwhile) == len(bodies) else None

    def _try_round(
        self, variant: Variant, parent_judgment: Judgment, bodies: Bodies, assumed_unexpandable: set[str]
    ) -> tuple[Variant, Judgment] | None:
        """Expand the `bodies` that are worth it; return the new variant and its judgment, or None.

        `assumed_unexpandable` receives nodes assumed to be refused at all shapes.
        """
        variant.refused_at_all_shapes = {}
        unplaceable = atoms.unplaceable_nodes(parent_judgment.model.graph, _all_verdicts(parent_judgment))
        tried = self._try_expansion(variant, bodies, parent_judgment.model.shapes, unplaceable)
        if tried is None:
            self._unexpandable.update(bodies)
            return None
        next_variant, judged, trial = tried
        self._unexpandable.update(trial.unexpandable)
        assumed_unexpandable.update(trial.assumed_unexpandable)
        if len(trial.worthwhile) < len(bodies):
            if trial.unexpandable:
                self._variants.drop((variant, frozenset(bodies)))
            smaller = self._expanded(variant, trial.worthwhile) if trial.worthwhile else None
            if smaller is None:
                return None
            next_variant, judged = smaller.variant, smaller.variant.judge(parent_judgment.model.shapes)
        permanently_refused = atoms.permanently_refused_nodes(
            parent_judgment.model.graph, answers(parent_judgment, self.setting)
        )
        variant.refused_at_all_shapes = {
            name: body for name, body in trial.worthwhile.items() if name in permanently_refused
        }
        return next_variant, judged

    def _try_expansion(
        self, variant: Variant, bodies: Bodies, shapes: Shapes, unplaceable: Collection[str] = ()
    ) -> tuple[Variant, Judgment, atoms.Trial] | None:
        expansion = self._expanded(variant, bodies)
        if expansion is None:
            return None
        judged = expansion.variant.judge(shapes)
        model = judged.model
        parent_nodes = [expansion.parent_nodes[position] for position in model.specialized.positions]
        device_verdicts = answers(judged, self.setting)
        return (
            expansion.variant,
            judged,
            atoms.trial_of(bodies, parent_nodes, model.graph, device_verdicts, unplaceable, _all_verdicts(judged)),
        )

    def _expanded(self, variant: Variant, bodies: Bodies) -> _Expanded | None:
        key = variant, frozenset(bodies)
        cached_expansion = self._variants.get(key)
        expansion = expanded(variant.prepared, bodies) if cached_expansion is None else None
        if expansion is None:
            return cached_expansion
        prepared, parent_nodes = expansion
        return self._variants.put(key, _Expanded(Variant(prepared, self.setting, self.refused_by_host), parent_nodes))


def _all_verdicts(judgment: Judgment) -> atoms.Answers:
    return list(judgment.support.verdicts.values())
