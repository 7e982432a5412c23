"""One form of a model: function ops as they are, or some of them written down in their bodies; verdicts on it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from nnadapter.converters.calls import KernelCalls
from nnadapter.converters.convert import Conversion
from nnadapter.drivers.selection import HOSTS
from nnadapter.kernels.deciding import Asked, called_nodes, calls_of
from nnadapter.offering.conversions import Conversions
from nnadapter.offering.offers import offers, worth_parting
from nnadapter.offering.segments import OnnxParts
from nnadapter.onnx.extracting import OnnxIndex
from nnadapter.onnx.functions import Bodies
from nnadapter.onnx.preparation.prepare import Prepared, Shapes
from nnadapter.onnx.preparation.structure import Structure, structure_of
from nnadapter.planning.judged import Drafts, Judged
from nnadapter.planning.placing import Placer
from nnadapter.planning.support import judge
from nnadapter.planning.targets import Target
from partition.verdict import Unsupported, Verdict


@dataclass(eq=False)
class Form:
    """Asks the devices of a session about one form of a model, for one set of shapes after the other."""

    prepared: Prepared
    placer: Placer
    refused_by_cpu: dict[str, Unsupported]
    """See `Judged`."""
    sure: Bodies = field(default_factory=dict)
    """Nodes that every device refuses whole at all shapes, and that were taken in their bodies at the last ones."""
    index: OnnxIndex = field(init=False)
    conversions: Conversions = field(init=False)
    drafts: Drafts = field(default_factory=Drafts)
    _by_host: tuple[Hashable, tuple[Verdict, ...]] = field(default=((), ()))
    _whole: set[tuple[str, ...]] = field(default_factory=set)
    """Atoms, by their nodes' names, that were offered node by node in vain."""
    _known_structure: Structure | None = None
    _calls: KernelCalls | None = None

    def __post_init__(self) -> None:
        """Index the model once."""
        self.index = OnnxIndex.of(self.prepared.model)
        tables = [target.kernels for target in self.placer.targets]
        self._calls = calls_of(tables, {entry.domain: entry.version for entry in self.prepared.model.opset_import})
        self.conversions = Conversions(self.prepared, self._calls)

    def clear(self) -> None:
        """Forget what other shapes would share."""
        self.conversions.clear()
        self.drafts.clear()

    def judge(self, shapes: Shapes) -> Judged:
        """Specialize, convert, and ask every device; atoms that one refuses are offered to it node by node.

        Nodes that a device refuses after that and has a custom kernel for are calls of it.
        """
        if self._calls is None:
            return self._offered(shapes)
        self.conversions.call_kernels(frozenset())  # what is called follows from the verdicts at these shapes
        judged = self._offered(shapes)
        asked = [
            Asked(target.kernels, judged.verdicts[target.name])
            for target in self.placer.targets
            if target.name in judged.verdicts and target.name not in HOSTS
        ]
        called = called_nodes(judged.graph, judged.specialized.nodes, self._calls, asked)
        if not called:
            return judged
        self.conversions.call_kernels(called)
        return self._judge(shapes)

    def _offered(self, shapes: Shapes) -> Judged:
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
        specialized, conversion = self.conversions.of(shapes)
        parts = OnnxParts(specialized, self.index)
        targets = self.placer.targets
        asked = [target for target in targets if not target.is_spare]
        verdicts = {target.name: self._verdicts(target, conversion, parts) for target in asked}
        judged = Judged(
            specialized,
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
        asked = parts.specialized.positions, parts.graph.atoms
        if known != asked:
            verdicts = judge(target, conversion, parts)
            self._by_host = asked, verdicts
        return self._without_refused(verdicts, parts) if self.refused_by_cpu else verdicts

    def _without_refused(self, verdicts: tuple[Verdict, ...], parts: OnnxParts) -> tuple[Verdict, ...]:
        own, positions = parts.specialized.own, parts.specialized.positions
        names = [own.nodes[position].name for position in positions]
        refused = [[self.refused_by_cpu.get(names[node]) for node in atom] for atom in parts.graph.atoms]
        return tuple(
            next((why for why in of_nodes if why is not None), verdict)
            for of_nodes, verdict in zip(refused, verdicts, strict=True)
        )

    def _structure(self) -> Structure:
        if self._known_structure is None:
            prepared = self.prepared
            self._known_structure = structure_of(prepared.graph, prepared.nodes, prepared.constants)
        return self._known_structure
