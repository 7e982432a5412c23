"""The first half of the way: prepared model -> verdicts, which `judged` places and cuts."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from threading import Lock

from nnadapter.conversions import Conversions
from nnadapter.converters.convert import Conversion
from nnadapter.expansions import bodies_to_try, expanded, worth_expanding
from nnadapter.judged import Drafts, Judged
from nnadapter.offers import offers, worth_parting
from nnadapter.placing import Placer
from nnadapter.preparation.functions import Bodies
from nnadapter.preparation.prepare import Prepared, Shapes
from nnadapter.preparation.structure import Structure, structure_of
from nnadapter.segments import OnnxParts
from nnadapter.support import judge
from nnadapter.targets import Target
from partition.onnx_io import OnnxIndex
from partition.verdict import Unsupported, Verdict

_DEEPEST = 4
"""Functions whose bodies hold functions that no device takes whole, at most."""


@dataclass(eq=False)
class Analyser:
    """Analyses one prepared model for one session's devices."""

    prepared: Prepared
    placer: Placer
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
    _structure_of: tuple[Prepared | None, Structure | None] = (None, None)
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
            return judged.ruled()

    def _structure(self) -> Structure:
        known, structure = self._structure_of
        if structure is None or known is not self.prepared:
            structure = structure_of(self.prepared.graph, self.prepared.nodes, self.prepared.constants)
            self._structure_of = self.prepared, structure
        return structure

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
        targets = self.placer.targets
        asked = [target for target in targets if not target.is_spare]
        verdicts = {target.name: self._verdicts(target, conversion, parts) for target in asked}
        judged = Judged(
            specialised,
            conversion,
            parts,
            targets,
            verdicts,
            shapes,
            self.drafts,
            self.refused_by_cpu,
            self.placer,
            self._structure,
        )
        return judged.complete()

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
