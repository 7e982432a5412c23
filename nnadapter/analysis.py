"""The first half of the way: prepared model -> verdicts -> placement -> segments that their devices admit.

Nothing is compiled here. The three stages of a verdict meet here: the converter's and the driver's per operation
(`support`), then the driver's on every final segment. A segment that does not fit a device's memory is cut in two by
bytes; one that is refused for another reason, or that is a single atom, goes to the next device, and the graph is cut
again. Every round bans at least one atom from one device, so this ends.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

from nnadapter.conversions import Conversions
from nnadapter.converters.convert import Conversion
from nnadapter.drivers.border import ask_admission
from nnadapter.drivers.interface import Admission
from nnadapter.drivers.selection import CPU, HOSTS
from nnadapter.errors import InvalidModelError
from nnadapter.expansions import bodies_to_try, expanded, worth_expanding
from nnadapter.ir.model import Model
from nnadapter.offers import Answers, offers, worth_parting
from nnadapter.preparation.functions import Bodies
from nnadapter.preparation.prepare import Prepared, Shapes, Specialised
from nnadapter.segments import OnnxParts, Part, part_of
from nnadapter.support import judge
from nnadapter.targets import Target
from partition.graph import Graph, GraphError
from partition.onnx_io import OnnxIndex
from partition.placement import place_by_priority
from partition.plan import Plan, Step, make_plan
from partition.segments import Segment, cut, halve
from partition.verdict import Reason, Unsupported, Verdict

_DEEPEST = 4
"""Functions whose bodies hold functions that no device takes whole, at most."""

Atoms = tuple[str, tuple[int, ...]]
"""A device and the atoms of one segment on it: what identifies a segment while the graph is cut again and again."""


@dataclass(frozen=True, eq=False)
class Piece:
    """A segment that its device admitted, in the form that it takes. The CPU's are made when they are compiled."""

    part: Part
    admission: Admission

    @property
    def is_ir(self) -> bool:
        """The model is adapter IR."""
        return isinstance(self.part.model, Model)


@dataclass(frozen=True, eq=False)
class Analysis:
    """One model at one set of shapes, placed and cut."""

    specialised: Specialised
    conversion: Conversion
    parts: OnnxParts
    plan: Plan
    pieces: tuple[Piece | None, ...]
    """Per step of the plan; None for the CPU."""
    shapes: Shapes


class Drafts:
    """The draft that was asked for last, which other shapes share as long as no verdict changes."""

    def __init__(self) -> None:
        self._last: tuple[Sequence[Segment], Plan] | None = None

    def clear(self) -> None:
        """Forget it."""
        self._last = None

    def of(self, judged: Judged) -> tuple[Sequence[Segment], Plan]:
        """See `Judged.draft`."""
        last = self._last
        if last is not None and last[1].graph.nodes is judged.graph.nodes and last[1].verdicts == judged.verdicts:
            return last[0], replace(last[1], graph=judged.graph)
        self._last = made = judged.draft()
        return made


@dataclass(frozen=True, eq=False)
class Judged:
    """A specialised graph with every device's verdicts, before or after some were taken back."""

    specialised: Specialised
    conversion: Conversion
    parts: OnnxParts
    targets: tuple[Target, ...]
    verdicts: Mapping[str, tuple[Verdict, ...]]
    shapes: Shapes
    drafts: Drafts
    refused_by_cpu: dict[int, Unsupported]
    """What the CPU took and did not load, by position in the model; other shapes share it."""

    @property
    def graph(self) -> Graph:
        """The graph that is cut."""
        return self.specialised.graph

    @property
    def answers(self) -> Answers:
        """The verdicts of each device but the hosts."""
        return [
            self.verdicts[target.name]
            for target in self.targets
            if target.name not in HOSTS and target.name in self.verdicts
        ]

    @property
    def asked(self) -> tuple[Target, ...]:
        """The devices that gave verdicts: all but a last resort that was not needed."""
        return tuple(target for target in self.targets if target.name in self.verdicts)

    def complete(self) -> Judged:
        """The same with the last resort asked as well, if an atom has no device without it."""
        spare = next((target for target in self.targets if target.is_spare and target not in self.asked), None)
        if spare is None or all(map(any, zip(*self.verdicts.values(), strict=True))):
            return self
        return replace(self, verdicts={**self.verdicts, spare.name: judge(spare, self.conversion, self.parts)})

    def banning(self, bans: Mapping[Atoms, Unsupported]) -> Judged:
        """The same with verdicts taken back: the atoms of each key are refused by its device, for that reason."""
        verdicts = {name: list(given) for name, given in self.verdicts.items()}
        for (device, atoms), refusal in bans.items():
            for atom in atoms:
                verdicts[device][atom] = refusal
        return replace(self, verdicts={name: tuple(given) for name, given in verdicts.items()}).complete()

    def blaming(self, step: Step, refused: Mapping[int, Unsupported]) -> Judged:
        """The same without the nodes of `step` (positions in it) that the CPU did not load; remembered for others."""
        nodes = {step.nodes[position]: why for position, why in refused.items()}
        self.refused_by_cpu.update((self.specialised.positions[node], why) for node, why in nodes.items())
        return self.banning({(CPU, (self.graph.atom_of[node],)): why for node, why in nodes.items()})

    def settle(self, known: dict[Atoms, Piece] | None = None) -> Analysis:
        """Place and cut until every segment is admitted by its device.

        Args:
            known: answers from before, by segment; new ones are added.
        """
        judged = self
        known = {} if known is None else known
        segments, plan = self.drafts.of(self)
        while True:
            for step, segment in zip(plan.steps, segments, strict=True):
                if step.device != CPU and _key(segment) not in known:
                    known[_key(segment)] = judged._ask(step)
            answers = {segment: known[_key(segment)].admission.verdict for segment in segments if segment.device != CPU}
            refused = {segment: answer for segment, answer in answers.items() if isinstance(answer, Unsupported)}
            if not refused:
                pieces = tuple(known.get(_key(segment)) for segment in segments)
                return Analysis(self.specialised, self.conversion, self.parts, plan, pieces, self.shapes)
            halved = {segment: judged._halves(segment, refusal) for segment, refusal in refused.items()}
            bans = {_key(segment): refused[segment] for segment, halves in halved.items() if halves is None}
            if bans:
                judged = judged.banning(bans)
                segments, exact = judged._cut()
            else:
                segments = [part for segment in segments for part in halved.get(segment) or (segment,)]
                exact = False
            plan = judged._plan(segments, exact)

    def draft(self) -> tuple[Sequence[Segment], Plan]:
        """The segments and the plan, if no device refuses a segment."""
        segments, exact = self._cut()
        return segments, self._plan(segments, exact)

    def _cut(self) -> tuple[Sequence[Segment], bool]:
        found = cut(self.graph, self._placement(), host=CPU)
        return found.segments, found.exact

    def _placement(self) -> tuple[str, ...]:
        try:
            return place_by_priority(self.graph, [target.name for target in self.asked], self.verdicts)
        except GraphError as error:
            raise InvalidModelError(self._homeless()) from error

    def _homeless(self) -> str:
        """Why the first node that no device takes is taken by none."""
        refusals = zip(*self.verdicts.values(), strict=True)
        atom = next(atom for atom, given in enumerate(refusals) if not any(given))
        node = self.graph.nodes[self.graph.atoms[atom][0]]
        last = self.verdicts[CPU][atom]
        return (
            f"node {node.name!r} ({node.op_type}) is taken by no device, not even by the CPU: {last}; "
            "give session options with the library that has the operator, or export without it"
        )

    def _plan(self, segments: Sequence[Segment], exact: bool) -> Plan:
        names = [target.name for target in self.asked]
        return make_plan(self.graph, names, self.verdicts, self._placement(), segments, exact=exact)

    def _ask(self, step: Step) -> Piece:
        target = next(target for target in self.targets if target.name == step.device)
        part = part_of(target.capability.form, step, self.conversion, self.parts)
        return Piece(part, ask_admission(target.context, part.model))

    def _halves(self, segment: Segment, refusal: Unsupported) -> tuple[Segment, Segment] | None:
        if refusal.reason is not Reason.MEMORY_LIMIT:
            return None
        return halve(segment, {atom: self._bytes(atom) for atom in segment.atoms})

    def _bytes(self, atom: int) -> int:
        """Bytes that an atom keeps on a device: its weights and what it makes."""
        graph, constants = self.graph, self.specialised.constants
        nodes = [graph.nodes[node] for node in graph.atoms[atom]]
        weights = {name: constants[name].nbytes for node in nodes for name in node.reads if name in constants}
        return sum(weights.values()) + sum(graph.value(name).nbytes or 0 for node in nodes for name in node.outputs)


@dataclass(eq=False)
class Analyser:
    """Analyses one prepared model for one set of devices."""

    prepared: Prepared
    targets: tuple[Target, ...]
    index: OnnxIndex = field(init=False)
    conversions: Conversions = field(init=False)
    drafts: Drafts = field(default_factory=Drafts)
    refused_by_cpu: dict[int, Unsupported] = field(default_factory=dict)
    """See `Judged`."""
    _by_host: tuple[Hashable, tuple[Verdict, ...]] = field(default=((), ()))
    _whole: set[tuple[str, ...]] = field(default_factory=set)
    """Atoms, by their nodes' names, that were offered node by node in vain."""
    _functions: set[str] = field(default_factory=set)
    """Nodes whose bodies were offered."""
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        """Index the model once."""
        self.index = OnnxIndex.of(self.prepared.model)
        self.conversions = Conversions(self.prepared)

    def clear(self) -> None:
        """Forget what other shapes would share."""
        self.conversions.clear()
        self.drafts.clear()

    def judge(self, shapes: Shapes) -> Judged:
        """Specialise, convert, and ask every device.

        Atoms that a device refuses are offered to it node by node, function ops that all refuse by their bodies.
        """
        with self._lock:  # what one set of shapes teaches changes how the next is looked at
            judged = self._parted(shapes)
            for _ in range(_DEEPEST):
                bodies = bodies_to_try(self.prepared, judged.specialised, judged.answers, self._functions)
                if not bodies:
                    break
                self._functions.update(bodies)
                judged = self._expanded(bodies, judged)
            return judged

    def _expanded(self, bodies: Bodies, before: Judged) -> Judged:
        """What is said of the model with these nodes expanded, where that is worth it; `before` if it is for none."""
        trial = self._with(bodies)
        judged = trial._parted(before.shapes) if trial else before
        worth = worth_expanding(bodies, judged.graph, judged.answers) if trial else {}
        if len(worth) < len(bodies):
            trial = self._with(worth) if worth else None
            judged = trial._parted(before.shapes) if trial else before
        if trial:
            vars(self).update(vars(trial))
        return judged

    def _with(self, bodies: Bodies) -> Analyser | None:
        """The same over the model with these nodes expanded; None if none can be."""
        prepared = expanded(self.prepared, bodies)
        if prepared is None:
            return None
        of_name = {self.prepared.graph.nodes[index].name: why for index, why in self.refused_by_cpu.items()}
        nodes = enumerate(prepared.graph.nodes)
        refused = {index: of_name[node.name] for index, node in nodes if node.name in of_name}
        return replace(
            self, prepared=prepared, drafts=Drafts(), refused_by_cpu=refused, _by_host=((), ()), _whole=set()
        )

    def _parted(self, shapes: Shapes) -> Judged:
        """What every device says; atoms that one refuses were offered to it node by node."""
        judged = self._judge(shapes)
        offered = [offer for offer in offers(judged.graph, judged.answers) if offer.nodes not in self._whole]
        if not offered:
            return judged
        before = self.conversions.apart
        self.conversions.keep_apart(before.union(*(offer.inside for offer in offered)))
        judged = self._judge(shapes)
        parted = worth_parting(offered, judged.graph, judged.answers)
        if len(parted) == len(offered):
            return judged
        self._whole.update(offer.nodes for offer in offered if offer not in parted)
        self.conversions.keep_apart(before.union(*(offer.inside for offer in parted)))
        return self._judge(shapes)

    def _judge(self, shapes: Shapes) -> Judged:
        specialised, conversion = self.conversions.of(shapes)
        parts = OnnxParts(specialised, self.index)
        asked = [target for target in self.targets if not target.is_spare]
        verdicts = {target.name: self._verdicts(target, conversion, parts) for target in asked}
        refused = self.refused_by_cpu
        return Judged(specialised, conversion, parts, self.targets, verdicts, shapes, self.drafts, refused).complete()

    def _verdicts(self, target: Target, conversion: Conversion, parts: OnnxParts) -> tuple[Verdict, ...]:
        """What a device says. The CPU judges operators by their names: the same for all shapes with the same nodes."""
        if not target.is_cpu:
            return judge(target, conversion, parts)
        known, verdicts = self._by_host
        asked = parts.specialised.positions, parts.graph.atoms
        if known != asked:
            verdicts = judge(target, conversion, parts)
            self._by_host = asked, verdicts
        return self._without_refused(verdicts, parts) if self.refused_by_cpu else verdicts

    def _without_refused(self, verdicts: tuple[Verdict, ...], parts: OnnxParts) -> tuple[Verdict, ...]:
        positions = parts.specialised.positions
        refused = [[self.refused_by_cpu.get(positions[node]) for node in atom] for atom in parts.graph.atoms]
        return tuple(
            next((why for why in of_nodes if why is not None), verdict)
            for of_nodes, verdict in zip(refused, verdicts, strict=True)
        )


def _key(segment: Segment) -> Atoms:
    return segment.device, segment.atoms
