"""One variant of a model: function ops as they are, or some of them written down in their bodies; verdicts on it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from nnadapter.converters.calls import KernelCalls
from nnadapter.kernels.deciding import Asked, called_nodes, calls_of
from nnadapter.offering.conversions import Conversions
from nnadapter.offering.model import ShapedModel
from nnadapter.offering.offers import accepted_splits, offers
from nnadapter.offering.segments import OnnxParts
from nnadapter.onnx.extracting import OnnxIndex
from nnadapter.onnx.functions import Bodies
from nnadapter.onnx.preparation.dequantized import with_dequantized
from nnadapter.onnx.preparation.prepare import Prepared, Shapes
from nnadapter.planning.constraints import Demands
from nnadapter.planning.dequantizing import to_dequantize
from nnadapter.planning.judgment import Judgment, answers, completed
from nnadapter.planning.setting import SessionDevice, Setting
from nnadapter.planning.support import Support, Verdicts, ask
from nnadapter.traces.event import PLAN, SESSION
from partition.verdict import Unsupported

Refused = dict[str, Unsupported]
"""What the host took and did not load, by the names of nodes of the model; all shapes share it."""


@dataclass(eq=False)
class Variant:
    """Asks the devices of a session about one variant of a model, for one set of shapes after the other."""

    prepared: Prepared
    setting: Setting
    refused_by_host: Refused
    sure: Bodies = field(default_factory=dict)
    """Nodes that every device refuses whole at all shapes, and that were taken in their bodies at the last ones."""
    index: OnnxIndex = field(init=False)
    conversions: Conversions = field(init=False)
    _by_host: tuple[Hashable, Verdicts] = field(default=((), ()))
    _whole: set[tuple[str, ...]] = field(default_factory=set)
    """Atoms, by their nodes' names, that were offered node by node in vain."""
    _calls: KernelCalls | None = None
    _dequantized: Variant | None = None

    def __post_init__(self) -> None:
        """Index the model once."""
        self.index = OnnxIndex.of(self.prepared.model)
        tables = [device.kernels for device in self.setting.devices]
        opsets = {entry.domain: entry.version for entry in self.prepared.model.opset_import}
        self._calls = calls_of(tables, opsets, self.setting.domains)
        self.conversions = Conversions(self.prepared, self._calls)

    def clear(self) -> None:
        """Forget what other shapes would share."""
        self.conversions.clear()
        if self._dequantized is not None:
            self._dequantized.clear()

    def judge(self, shapes: Shapes) -> Judgment:
        """Specialize, convert, and ask every device; atoms that one refuses are offered to it node by node.

        Nodes that a device refuses after that and has a custom kernel for are calls of it. Constants that its nodes
        read dequantized, and that it would not dequantize, are so from then on, whatever the shapes.
        """
        if self._dequantized is not None:
            return self._dequantized.judge(shapes)
        judgment = self._with_calls(shapes)
        positions = to_dequantize(judgment, self.setting)
        if not positions:
            return judgment
        prepared = with_dequantized(self.prepared, positions)
        if prepared.evaluated == self.prepared.evaluated:
            return judgment
        self._dequantized = Variant(prepared, self.setting, self.refused_by_host)
        self.conversions.clear()
        return self._dequantized.judge(shapes)

    def _with_calls(self, shapes: Shapes) -> Judgment:
        if self._calls is None:
            return self._offered(shapes)
        self.conversions.call_kernels(frozenset())  # what is called follows from the verdicts at these shapes
        judgment = self._offered(shapes)
        model, verdicts = judgment.model, judgment.support.verdicts
        asked = [
            Asked(device.kernels, verdicts[device.name])
            for device in self.setting.devices
            if device.name in verdicts and device.accelerates
        ]
        call_names = called_nodes(model.graph, model.specialized.nodes, self._calls, asked)
        if not call_names:
            return judgment
        self.conversions.call_kernels(call_names)
        return self._judge(shapes)

    def _offered(self, shapes: Shapes) -> Judgment:
        judgment = self._judge(shapes)
        graph = judgment.model.graph
        refused = offers(graph, answers(judgment, self.setting))
        offered = [offer for offer in refused if offer.nodes not in self._whole]
        if not offered:
            return judgment
        before = self.conversions.apart
        self.conversions.keep_apart(before.union(*(offer.inside for offer in offered)))
        judgment = self._judge(shapes)
        parted = accepted_splits(offered, judgment.model.graph, answers(judgment, self.setting))
        if len(parted) == len(offered):
            return judgment
        self._whole.update(offer.nodes for offer in offered if offer not in parted)
        self.conversions.keep_apart(before.union(*(offer.inside for offer in parted)))
        return self._judge(shapes)

    def _judge(self, shapes: Shapes) -> Judgment:
        with self.setting.trace.span(SESSION, PLAN, "specialize and convert"):
            specialized, conversion = self.conversions.of(shapes)
        parts = OnnxParts(specialized, self.index)
        model = ShapedModel(self.prepared, shapes, specialized, conversion, parts, self.conversions.apart)
        asked = [device for device in self.setting.devices if not device.is_spare]
        verdicts = {device.name: self._ask(device, model) for device in asked}
        support = Support(verdicts, verdicts[self.setting.host.name])
        return completed(Judgment(model, support, Demands()), self.setting)

    def _ask(self, device: SessionDevice, model: ShapedModel) -> Verdicts:
        """What a device says. The host judges operators by their names: the same for all shapes with the same nodes."""
        if not device.is_host:
            return self._asked(device, model)
        known, verdicts = self._by_host
        asked = model.specialized.positions, model.graph.atoms
        if known != asked:
            verdicts = self._asked(device, model)
            self._by_host = asked, verdicts
        return self._without_refused(verdicts, model) if self.refused_by_host else verdicts

    def _asked(self, device: SessionDevice, model: ShapedModel) -> Verdicts:
        with self.setting.trace.span(device.name, PLAN, "verdicts") as facts:
            verdicts = ask(device, model)
            facts.update(asked=len(verdicts), taken=sum(map(bool, verdicts)))
        return verdicts

    def _without_refused(self, verdicts: Verdicts, model: ShapedModel) -> Verdicts:
        own, positions = model.specialized.own, model.specialized.positions
        names = [own.nodes[position].name for position in positions]
        refused = [[self.refused_by_host.get(names[node]) for node in atom] for atom in model.graph.atoms]
        return tuple(
            next((why for why in of_nodes if why is not None), verdict)
            for of_nodes, verdict in zip(refused, verdicts, strict=True)
        )
