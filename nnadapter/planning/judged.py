"""Verdicts -> placement -> segments that their devices admit.

Nothing is compiled here. The three stages of a verdict meet here: the converter's and the driver's per operation
(`support`), then the driver's on every final segment; what a person's rules forbid is taken back in between. A segment
that does not fit a device's memory is cut in two by bytes; one that is refused for another reason, that is a single
atom, or that a person's limits give up, goes to the next device, and the graph is cut again. Every round bans at least
one atom from one device, so this ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from nnadapter.converters.convert import Conversion
from nnadapter.drivers.border import ask_admission
from nnadapter.drivers.interface import Admission
from nnadapter.drivers.selection import CPU, HOSTS
from nnadapter.errors import InvalidModelError
from nnadapter.ir.model import Model
from nnadapter.offering.offers import Answers
from nnadapter.offering.segments import OnnxParts, Part, part_of
from nnadapter.onnx.preparation.prepare import Shapes, Specialized
from nnadapter.onnx.preparation.structure import Structure
from nnadapter.plan_files.binding import Bound, bind_plan
from nnadapter.planning.limiting import given_up
from nnadapter.planning.placing import Kept, Placement, Placer
from nnadapter.planning.pricing import PlanPrice, costs_of, cpu_table, holds_together, price_plan
from nnadapter.planning.support import judge
from nnadapter.planning.targets import Target
from nnadapter.process.collecting import paused_collection
from nnadapter.rules.applying import Applied, RuleEffect, apply_rules
from partition.graph import Graph
from partition.plan import Plan, Step, make_plan
from partition.segments import Segment, cut, halve
from partition.verdict import Reason, Unsupported, Verdict

_ROUNDING = 1 + 1e-9
"""What the price of a plan may be above that of its placement, being summed in another order."""

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

    judged: Judged
    """The last verdicts."""
    plan: Plan
    pieces: tuple[Piece | None, ...]
    """Per step of the plan; None for the CPU."""
    limits: tuple[RuleEffect, ...] = ()
    """What limits on segments did."""
    weighed: Placement | None = None
    """What was weighed, where devices did not admit the cheapest as it was; else the placement of `judged`."""

    @property
    def specialized(self) -> Specialized:
        """The model at its shapes."""
        return self.judged.specialized

    @property
    def conversion(self) -> Conversion:
        """The model as adapter IR."""
        return self.judged.conversion

    @property
    def parts(self) -> OnnxParts:
        """The model's parts as ONNX."""
        return self.judged.parts

    @property
    def shapes(self) -> Shapes:
        """Of the inputs."""
        return self.judged.shapes

    @cached_property
    def price(self) -> PlanPrice:
        """What the plan costs: by the prices that it was placed by, where costs decided and still tell of it."""
        placement = self.judged.placement
        if placement.table is not None and placement.graph is not None and holds_together(self.plan, placement.graph):
            table, graph = placement.table, placement.graph
        else:
            texts = [() if piece is None or not piece.is_ir else piece.admission.runs_as for piece in self.pieces]
            table, graph = costs_of(self.plan, self.conversion, texts, self.judged.placer.costs)
        cpu = cpu_table(table, graph, self.conversion, self.judged.cpu_takes, self.judged.placer.costs)
        return price_plan(self.plan, table, graph, cpu)


class Drafts:
    """The draft that was asked for last, which other shapes share as long as no verdict changes."""

    def __init__(self) -> None:
        self._last: tuple[Sequence[Segment], Plan] | None = None

    def clear(self) -> None:
        """Forget it."""
        self._last = None

    def of(self, judged: Judged) -> tuple[Sequence[Segment], Plan]:
        """See `Judged.draft`. Where costs decide, other sizes may be placed otherwise, and nothing is shared."""
        if judged.placer.weighs or judged.kept:
            return judged.draft()
        last = self._last
        if last is not None and _is_alike(last[1], judged):
            return last[0], replace(last[1], graph=judged.graph)
        self._last = made = judged.draft()
        return made


def _is_alike(plan: Plan, judged: Judged) -> bool:
    graph = judged.graph
    return plan.graph.nodes is graph.nodes and plan.graph.atoms == graph.atoms and plan.verdicts == judged.verdicts


@dataclass(frozen=True, eq=False)
class Judged:
    """A specialized graph with every device's verdicts, before or after some were taken back."""

    specialized: Specialized
    conversion: Conversion
    parts: OnnxParts
    targets: tuple[Target, ...]
    verdicts: Mapping[str, tuple[Verdict, ...]]
    shapes: Shapes
    drafts: Drafts
    refused_by_cpu: dict[str, Unsupported]
    """What the CPU took and did not load, by the names of nodes of the model; other shapes share it."""
    placer: Placer
    structure: Callable[[], Structure]
    """Hashes of the model's own nodes, worked out when they are asked for."""
    applied: Applied | None = None
    """What rules did; None where there are none."""
    kept: Kept = field(default_factory=dict)
    """Atoms that stay where they are put as long as their device takes them."""
    fixed: bool = False
    """`kept` is a whole placement, which shall not be weighed against others."""
    unplaced: Judged | None = None
    """What this was before `kept` became a whole placement."""
    bound: Bound | None = None
    """What the plan file says of this graph; None where there is none."""
    cpu_before_rules: tuple[Verdict, ...] | None = None
    """The CPU's verdicts before rules took some back; None where there are no rules."""

    @property
    def graph(self) -> Graph:
        """The graph that is cut."""
        return self.specialized.graph

    @property
    def cpu_takes(self) -> tuple[Verdict, ...]:
        """The CPU's verdicts, whatever a person's rules say."""
        return self.verdicts[CPU] if self.cpu_before_rules is None else self.cpu_before_rules

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
        given = judge(spare, self.conversion, self.parts)
        return replace(self, verdicts={**self.verdicts, spare.name: self._restricted(spare.name, given)})

    def _restricted(self, device: str, verdicts: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
        return verdicts if self.applied is None else self.applied.restricted(device, verdicts)

    def ruled(self) -> Judged:
        """The same with what rules forbid taken back, and with what a plan file says.

        Raises:
            RulesError: a rule cannot be kept.
        """
        rules, named = self.placer.rules, [target.name for target in self.asked]
        judged, own, positions = self, self.specialized.own, self.specialized.positions
        if rules.pins or rules.bans:
            applied = apply_rules(rules, own, self.graph, positions, named, self.verdicts)
            judged = replace(self, applied=applied, verdicts=applied.verdicts, cpu_before_rules=self.verdicts[CPU])
        plan = self.placer.plan
        if plan is None:
            return judged
        bound = bind_plan(plan, self.specialized, self.structure(), named, judged.verdicts)
        return replace(judged, bound=bound, kept=bound.placement)

    def placed_as(self, labels: Sequence[str]) -> Judged:
        """The same with every atom on its device, as long as that takes it."""
        return replace(self, kept=dict(enumerate(labels)), fixed=True, unplaced=self)

    def banning(self, bans: Mapping[Atoms, Unsupported]) -> Judged:
        """The same with verdicts taken back: the atoms of each key are refused by its device, for that reason."""
        verdicts = {name: list(given) for name, given in self.verdicts.items()}
        before = list(self.cpu_takes)
        for (device, atoms), refusal in bans.items():
            for atom in atoms:
                verdicts[device][atom] = refusal
                before[atom] = refusal if device == CPU else before[atom]
                self._refuse_broken_pin(device, atom, refusal)
        ruled = replace(self, cpu_before_rules=tuple(before)) if self.cpu_before_rules is not None else self
        return replace(ruled, verdicts={name: tuple(given) for name, given in verdicts.items()}).complete()

    def _refuse_broken_pin(self, device: str, atom: int, refusal: Unsupported) -> None:
        pinned = self.applied is not None and self.applied.pinned.get(atom, ("", ""))[0] == device
        error = self.applied.broken_pin(self.graph, atom, refusal) if pinned and self.applied else None
        if error is not None:
            raise error

    def blaming(self, step: Step, refused: Mapping[int, Unsupported]) -> Judged:
        """The same without the nodes of `step` (positions in it) that its device did not load.

        Those of the CPU are remembered for other shapes; other devices are asked again.
        """
        nodes = {step.nodes[position]: why for position, why in refused.items()}
        if step.device == CPU:
            own, positions = self.specialized.own, self.specialized.positions
            self.refused_by_cpu.update((own.nodes[positions[node]].name, why) for node, why in nodes.items())
        return self.banning({(step.device, (self.graph.atom_of[node],)): why for node, why in nodes.items()})

    @paused_collection()
    def settle(self, known: dict[Atoms, Piece] | None = None) -> Analysis:
        """Place and cut until every segment is admitted by its device.

        Where costs decide, and devices or limits did not admit what was cheapest, the other candidates are settled as
        well, as long as they promise to be cheaper, and the cheapest is returned.

        Args:
            known: answers from before, by segment; new ones are added.
        """
        known = {} if known is None else known
        best = self._settled(known)
        placed = self.placement.placed
        if self.fixed or placed is None or best.price.seconds <= placed.cost * _ROUNDING:
            return best
        for candidate in self.placement.candidates():
            if candidate.cost >= best.price.seconds:
                break
            other = self.placed_as(candidate.placement)._settled(known)
            best = min(best, other, key=lambda each: each.price.seconds)
        return replace(best, weighed=self.placement)

    def _settled(self, known: dict[Atoms, Piece]) -> Analysis:
        """The one placement, cut until every segment is admitted by its device."""
        judged = self
        effects: list[RuleEffect] = []
        segments, plan = self.drafts.of(self)
        while True:
            for step, segment in zip(plan.steps, segments, strict=True):
                if step.device != CPU and _key(segment) not in known:
                    known[_key(segment)] = judged._ask(step)
            answers = {segment: known[_key(segment)].admission.verdict for segment in segments if segment.device != CPU}
            refused = {segment: answer for segment, answer in answers.items() if isinstance(answer, Unsupported)}
            if not refused:
                pieces = tuple(known.get(_key(segment)) for segment in segments)
                found = Analysis(judged, plan, pieces, tuple(effects))
                dropped = given_up(
                    judged.placer.rules, plan, segments, self.conversion.flops, partial(_benefits, found)
                )
                effects.extend(dropped.effects)
                if not dropped.segments:
                    return replace(found, limits=tuple(effects))
                refused = {segments[at]: why for at, why in dropped.segments.items()}
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
        graph, labels = self.placement.graph, self.placement.labels
        if graph is None:
            found = cut(self.graph, labels, host=CPU)
            return found.segments, found.exact
        # What was priced as one stays in one segment.
        found = cut(graph.graph, [labels[part[0]] for part in graph.parts], host=CPU)
        return [graph.spread_segment(segment) for segment in found.segments], found.exact

    @cached_property
    def placement(self) -> Placement:
        """The device of every atom.

        Raises:
            InvalidModelError: no device takes some atom.
        """
        if not all(map(any, zip(*self.verdicts.values(), strict=True))):
            raise InvalidModelError(self._homeless())
        return self.placer.place(self.graph, self.conversion, self.verdicts, self.kept, self._hashes)

    def _hashes(self) -> Sequence[str]:
        """What every node is, but for where it stands."""
        alone = self.structure().alone
        return [alone[position] for position in self.specialized.positions]

    def _homeless(self) -> str:
        """Why the first node that no device takes is taken by none."""
        refusals = zip(*self.verdicts.values(), strict=True)
        atom, given = next((atom, given) for atom, given in enumerate(refusals) if not any(given))
        node = self.graph.nodes[self.graph.atoms[atom][0]]
        called = f"node {node.name!r} ({node.op_type})"
        invalid = next(
            (why for why in given if isinstance(why, Unsupported) and why.reason is Reason.INVALID_NODE), None
        )
        if invalid is not None:
            return f"{called} is no valid ONNX, so no device takes it: {invalid.detail}; export the model again"
        kernels = "".join(
            f"; {target.name!r}: {self.verdicts[target.name][atom]}"
            for target in self.asked
            if (node.domain, node.op_type) in target.kernels.by_op
        )
        return (
            f"{called} is taken by no device, not even by the CPU: {self.verdicts[CPU][atom]}{kernels}; "
            "give session options with the library that has the operator, or export without it"
        )

    def _plan(self, segments: Sequence[Segment], exact: bool) -> Plan:
        names = [target.name for target in self.asked]
        return make_plan(self.graph, names, self.verdicts, self.placement.labels, segments, exact=exact)

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
        graph, constants = self.graph, self.specialized.constants
        nodes = [graph.nodes[node] for node in graph.atoms[atom]]
        weights = {name: constants[name].nbytes for node in nodes for name in node.reads if name in constants}
        return sum(weights.values()) + sum(graph.value(name).nbytes or 0 for node in nodes for name in node.outputs)


def _benefits(analysis: Analysis) -> Sequence[float | None]:
    return analysis.price.benefits


def _key(segment: Segment) -> Atoms:
    return segment.device, segment.atoms
