"""A segment of the plan as the model that its device takes: adapter IR, or an ONNX sub-graph."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from nnadapter.converters.convert import Conversion
from nnadapter.drivers.capability import Capability, ModelForm
from nnadapter.kernels.choosing import KernelTable
from nnadapter.offering.calling import calls_among, with_calls
from nnadapter.offering.part import Part
from nnadapter.onnx.building import info_of, tensor_of
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.extracting import OnnxIndex, extract
from nnadapter.onnx.nodes import BROADCASTING_OPSET, opsets_of
from nnadapter.onnx.preparation.prepare import Specialized
from nnadapter.onnx.references import inlined
from partition.graph import Graph, Node
from partition.plan import Step

if TYPE_CHECKING:
    import onnx


Placed = tuple[int, Node]
"""The position of a node in the model, and the node as it is placed: one that was repeated makes values of its own."""


@dataclass(frozen=True, eq=False)
class OnnxParts:
    """Takes ONNX sub-graphs out of a specialized model; they refer to large weights (`nnadapter.onnx.references`)."""

    specialized: Specialized
    index: OnnxIndex

    @property
    def graph(self) -> Graph:
        """The graph that is cut."""
        return self.specialized.graph

    def part(self, step: Step) -> Part:
        """The nodes of `step` with the constants they read."""
        nodes = self._placed(step.nodes)
        return Part(self._extract(nodes, self.graph, step.inputs, step.constants, step.outputs), step.inputs)

    def cpu_part(self, step: Step) -> Part:
        """What ONNX Runtime gets: the nodes of `step`; or the model as it was, if there is no other step.

        ONNX Runtime loads models whose known shapes contradict each other, as long as it does not see it. What was
        prepared says more than the model did, so it is handed over only where the model has to be cut.
        """
        return self.part(step) if len(step.nodes) < len(self.graph.nodes) else self.as_it_was(step.outputs)

    def as_it_was(self, outputs: Sequence[str]) -> Part:
        """The model before preparation."""
        return as_it_was(self.specialized.own, self.index, outputs)

    def without_constants(self) -> onnx.ModelProto:
        """Return the remaining graph without constants, with the types of what some operators read.

        These are operators of other domains, and those of ONNX that do not broadcast as numpy does.
        """
        graph = self.graph
        is_old = opsets_of(self.index.model.opset_import).get("", 1) < BROADCASTING_OPSET
        whole = self._extract(self._placed(range(len(graph.nodes))), graph, (), (), ())
        others = (name for node in graph.nodes if is_old or plain_domain(node.domain) for name in node.inputs if name)
        told = (graph.value(name) for name in dict.fromkeys(others) if name not in graph.constants)
        whole.graph.value_info.extend(info_of(value) for value in told if value.dtype)
        return whole

    def whole(self) -> onnx.ModelProto:
        """Everything that is left to run, with the types of what nodes make that inference may know nothing of."""
        graph = self.graph
        read = dict.fromkeys(name for node in graph.nodes for name in node.reads if name in graph.constants)
        made = [name for name in dict.fromkeys(graph.outputs) if name in graph.producer]
        whole = self._extract(self._placed(range(len(graph.nodes))), graph, graph.inputs, list(read), made)
        others = (name for node in graph.nodes if plain_domain(node.domain) for name in node.outputs)
        told = (graph.value(name) for name in others if name and name not in made)
        whole.graph.value_info.extend(info_of(value) for value in told if value.dtype)
        return whole

    def _placed(self, nodes: Sequence[int]) -> list[Placed]:
        return [(self.specialized.positions[node], self.graph.nodes[node]) for node in nodes]

    def _extract(
        self,
        nodes: Sequence[Placed],
        graph: Graph,
        inputs: Sequence[str],
        constants: Sequence[str],
        outputs: Sequence[str],
    ) -> onnx.ModelProto:
        known, own = self.specialized.constants, self.specialized.own
        folded = {
            name: tensor_of(name, known[name])
            for name in constants
            if name in known and name not in self.index.initializers
        }
        part = extract(
            replace(self.index, initializers=ChainMap(folded, self.index.initializers)),  # type: ignore[arg-type]
            graph,
            nodes=[position for position, _ in nodes],
            inputs=inputs,
            constants=constants,
            outputs=outputs,
        )
        for proto, (position, node) in zip(part.graph.node, nodes, strict=True):
            if node is not own.nodes[position]:
                _rename(proto, node)
        return part


def as_it_was(own: Graph, index: OnnxIndex, outputs: Sequence[str]) -> Part:
    """Return the model of this graph and index before preparation."""
    needed = chain(*(node.reads for node in own.nodes), outputs)
    constants = dict.fromkeys(name for name in needed if name in own.constants)
    nodes = range(len(own.nodes))
    whole = extract(index, own, nodes=nodes, inputs=own.inputs, constants=list(constants), outputs=outputs)
    return Part(whole, own.inputs)


def _rename(proto: onnx.NodeProto, node: Node) -> None:
    """Let a node read and make what the graph says: one that was repeated makes values of its own."""
    if tuple(proto.output) != node.outputs:
        proto.name, proto.output[:] = node.name, node.outputs
    if tuple(proto.input) != node.inputs:
        proto.input[:] = node.inputs


def ir_part(conversion: Conversion, step: Step) -> Part:
    """The operations of `step`; inputs that no operation reads (a ratio of Dropout) are left out."""
    operands = conversion.operand_of
    inputs = tuple(name for name in step.inputs if name in operands)
    operations = sorted(operation for node in step.nodes for operation in conversion.operations[node])
    input_operands, wanted = ([operands[name] for name in names] for names in (inputs, step.outputs))
    return Part(conversion.part(operations, input_operands, wanted), inputs)


def onnx_part(kernels: KernelTable, step: Step, conversion: Conversion, parts: OnnxParts) -> Part:
    """The segment as ONNX, with calls where kernels of its device compute nodes."""
    part = parts.part(step)
    calls = calls_among(kernels, step.nodes, parts.graph, conversion)
    return replace(part, model=with_calls(part.model, step.nodes, parts.graph, calls)) if calls else part


def part_of(capability: Capability, kernels: KernelTable, step: Step, conversion: Conversion, parts: OnnxParts) -> Part:
    """The segment in the form that its device takes."""
    if capability.form is ModelForm.IR:
        return ir_part(conversion, step)
    return with_weights(onnx_part(kernels, step, conversion, parts), capability)


def with_weights(part: Part, capability: Capability) -> Part:
    """A segment as ONNX with its weights inside, where its device takes no references to them."""
    return part if capability.takes_references else replace(part, model=inlined(part.model))
