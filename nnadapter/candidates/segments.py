"""Segments as models in the form that devices take: adapter IR or ONNX, with static or dynamic shapes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING

from nnadapter.candidates.part import Part
from nnadapter.converters.convert import Conversion
from nnadapter.drivers import Capability, ModelForm, Unsupported
from nnadapter.ir import Attributes, OperandType
from nnadapter.ir.operations.custom import CUSTOM, CustomCall
from nnadapter.kernels.registry import Choice, KernelTable, Request
from nnadapter.onnx.construction import OnnxIndex, extract, info_of, tensor_of
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.graphs import BROADCASTING_OPSET, operand_type, opsets_of
from nnadapter.onnx.preparation.node_hashes import NodeHashes
from nnadapter.onnx.preparation.prepare import Prepared, Specialized
from nnadapter.onnx.references import inlined
from nnadapter.onnx.signature import Shapes
from nnadapter.records import dataclass, replace
from partition.graph import Graph, Node, Value
from partition.plan import Step

if TYPE_CHECKING:
    import onnx


Calls = Mapping[int, tuple[Attributes, tuple[OperandType, ...]]]
"""Node -> attributes and input types of a CUSTOM operation that a custom kernel computes."""


def calls_among(kernels: KernelTable, nodes: Iterable[int], graph: Graph, conversion: Conversion) -> Calls:
    """Return a kernel call for each of `nodes` that a device's custom kernels compute."""
    if not kernels.kernels or CUSTOM not in conversion.model.operation_types:
        return {}
    calls = {}
    for node in nodes:
        request = _request(graph.nodes[node], node, graph, conversion)
        if request is not None and isinstance(kernels.choose(request[0]), Choice):
            calls[node] = request[1:]
    return calls


def why_no_call(kernels: KernelTable, node: int, graph: Graph, conversion: Conversion) -> Unsupported | None:
    """Return why all of a device's kernels for a node's op refuse the node; None if there are none, or one accepts."""
    op = graph.nodes[node].domain, graph.nodes[node].op_type
    if op not in kernels.by_op:
        return None
    converted = conversion.verdicts[node]
    if isinstance(converted, Unsupported):
        return converted
    request = _request(graph.nodes[node], node, graph, conversion)
    choice = kernels.choose(request[0]) if request is not None else None
    return choice if isinstance(choice, Unsupported) else None


def with_calls(model: onnx.ModelProto, nodes: Sequence[int], graph: Graph, calls: Calls) -> onnx.ModelProto:
    """Turn `nodes` of `model` into `calls` of custom kernels in place, and declare intermediate types."""
    from nnadapter.kernels.segments import call_node

    if not calls:
        return model
    for at, node in enumerate(nodes):
        if node in calls:
            model.graph.node[at].CopyFrom(call_node(model.graph.node[at], graph.nodes[node].name, *calls[node]))
    stated = {info.name for info in (*model.graph.output, *model.graph.input)}
    result_names = (name for node in nodes for name in graph.nodes[node].outputs if name and name not in stated)
    return _declared(model, map(graph.value, result_names))


def _declared(model: onnx.ModelProto, values: Iterable[Value]) -> onnx.ModelProto:
    model.graph.value_info.extend(info_of(value) for value in values if value.dtype)
    return model


def _request(
    node: Node, position: int, graph: Graph, conversion: Conversion
) -> tuple[Request, Attributes, tuple[OperandType, ...]] | None:
    operations = [conversion.model.operations[index] for index in conversion.operations[position]]
    if [operation.type for operation in operations] != [CUSTOM]:
        return None
    attributes = operations[0].attributes
    call = CustomCall.of(attributes)
    types = [operand_type(graph.value(node.inputs[at])) for at in call.present]
    known_types = tuple(type_ for type_ in types if type_ is not None)
    return (Request.of(call, known_types), attributes, known_types) if len(known_types) == len(types) else None


Placed = tuple[int, Node]
"""Node's position in the model, and the graph's node. Copies of a node share a position."""


@dataclass(frozen=True, eq=False)
class OnnxParts:
    """Extractor of ONNX subgraphs from a specialized model; large weights stay references."""

    specialized: Specialized
    index: OnnxIndex

    @property
    def graph(self) -> Graph:
        return self.specialized.graph

    def part(self, step: Step) -> Part:
        nodes = self._placed(step.nodes)
        return Part(self._extract(nodes, self.graph, step.inputs, step.constants, step.outputs), step.inputs)

    def cpu_part(self, step: Step) -> Part:
        """Return the segment for ONNX Runtime: the model before preparation if `step` has all nodes.

        ONNX Runtime may load a model with contradictory shapes, but fail on the shapes that preparation adds.
        """
        return self.part(step) if len(step.nodes) < len(self.graph.nodes) else self.as_it_was(step.outputs)

    def as_it_was(self, outputs: Sequence[str]) -> Part:
        return original_model(self.specialized.model_nodes, self.index, outputs)

    def without_constants(self) -> onnx.ModelProto:
        """Return the specialized graph as an ONNX model without constants.

        The model declares the input types of non-ONNX operators or, before numpy-style broadcasting (opset 7), of all
        operators.
        """
        graph = self.graph
        is_old = opsets_of(self.index.model.opset_import).get("", 1) < BROADCASTING_OPSET
        model = self._extract(self._placed(range(len(graph.nodes))), graph, (), (), ())
        input_names = (
            name for node in graph.nodes if is_old or plain_domain(node.domain) for name in node.inputs if name
        )
        return _declared(
            model, (graph.value(name) for name in dict.fromkeys(input_names) if name not in graph.constants)
        )

    def remaining_model(self) -> onnx.ModelProto:
        """Return the specialized graph as an ONNX model with result types of non-ONNX operators."""
        graph = self.graph
        read = dict.fromkeys(name for node in graph.nodes for name in node.reads if name in graph.constants)
        output_names = [name for name in dict.fromkeys(graph.outputs) if name in graph.producer]
        model = self._extract(self._placed(range(len(graph.nodes))), graph, graph.inputs, list(read), output_names)
        result_names = (name for node in graph.nodes if plain_domain(node.domain) for name in node.outputs)
        return _declared(model, (graph.value(name) for name in result_names if name and name not in output_names))

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
        contents, model_nodes = self.specialized.constants, self.specialized.model_nodes
        folded = {
            name: tensor_of(name, contents[name])
            for name in constants
            if name in contents and name not in self.index.initializers
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
            if node is not model_nodes.nodes[position]:
                _rename(proto, node)
        return part


def original_model(model_graph: Graph, index: OnnxIndex, outputs: Sequence[str]) -> Part:
    """Return the model before preparation."""
    needed = chain(*(node.reads for node in model_graph.nodes), outputs)
    constants = dict.fromkeys(name for name in needed if name in model_graph.constants)
    nodes = range(len(model_graph.nodes))
    model = extract(
        index, model_graph, nodes=nodes, inputs=model_graph.inputs, constants=list(constants), outputs=outputs
    )
    return Part(model, model_graph.inputs)


def _rename(proto: onnx.NodeProto, node: Node) -> None:
    if tuple(proto.output) != node.outputs:
        proto.name, proto.output[:] = node.name, node.outputs
    if tuple(proto.input) != node.inputs:
        proto.input[:] = node.inputs


def ir_part(conversion: Conversion, step: Step) -> Part:
    """Return the adapter IR operations of `step`, without inputs that no operation reads, such as Dropout's ratio."""
    operands = conversion.operand_of
    inputs = tuple(name for name in step.inputs if name in operands)
    operations = sorted(operation for node in step.nodes for operation in conversion.operations[node])
    input_operands, output_operands = ([operands[name] for name in names] for names in (inputs, step.outputs))
    return Part(conversion.part(operations, input_operands, output_operands), inputs)


def onnx_part(kernels: KernelTable, step: Step, conversion: Conversion, parts: OnnxParts) -> Part:
    """Return the segment as ONNX, with calls of custom kernels."""
    part = parts.part(step)
    calls = calls_among(kernels, step.nodes, parts.graph, conversion)
    return replace(part, model=with_calls(part.model, step.nodes, parts.graph, calls)) if calls else part


def part_of(capability: Capability, kernels: KernelTable, step: Step, conversion: Conversion, parts: OnnxParts) -> Part:
    """Return the segment in the form that its device takes."""
    if capability.form is ModelForm.IR:
        return ir_part(conversion, step)
    return with_weights(onnx_part(kernels, step, conversion, parts), capability)


def with_weights(part: Part, capability: Capability) -> Part:
    """Inline the weights unless the device supports references to them."""
    return part if capability.supports_external_initializers else replace(part, model=inlined(part.model))


@dataclass(frozen=True, eq=False, slots=True)
class ShapedModel:
    """Model specialized for one set of input shapes, as ONNX and as adapter IR."""

    prepared: Prepared
    shapes: Shapes
    specialized: Specialized
    conversion: Conversion
    parts: OnnxParts
    visible_values: frozenset[str] = frozenset()

    @property
    def graph(self) -> Graph:
        return self.specialized.graph

    @property
    def structure(self) -> NodeHashes:
        return self.prepared.structure

    def hashes(self) -> Sequence[str]:
        content_hashes = self.structure.content_hashes
        return [content_hashes[position] for position in self.specialized.positions]


@dataclass(frozen=True, eq=False)
class DynamicParts(OnnxParts):
    """Extractor of ONNX subgraphs with dynamic shapes."""

    prepared: Prepared

    @cached_property
    def open_graph(self) -> Graph:
        """Graph with types that hold at all sizes; dimensions that vary are unknown."""
        always, current_values = {**self.prepared.values, **self.prepared.inferred_ranks}, self.graph.values
        return self.graph.revalued({name: _open(always.get(name), current_values, name) for name in current_values})

    @property
    def sized_outputs(self) -> tuple[str, ...]:
        """Model outputs that follow from input shapes alone."""
        constants, always = self.specialized.constants, self.prepared.constants
        return tuple(name for name in self.graph.outputs if name in constants and name not in always)

    def part(self, step: Step) -> Part:
        """Return `step` as a model that includes constants and the computation of shape-derived values."""
        nodes, inputs, constants = self._needed(step)
        result_names = {name for _, node in nodes for name in node.outputs}
        part = self._extract(nodes, self.open_graph, inputs, constants, step.outputs)
        facts = {**self.prepared.inferred_ranks, **self.open_graph.values}
        inner = result_names.difference(step.outputs).intersection(facts)
        part.graph.value_info.extend(info_of(facts[name]) for name in sorted(inner))
        return Part(part, tuple(inputs))

    def nodes(self, step: Step) -> tuple[Node, ...]:
        return tuple(node for _, node in self._needed(step)[0])

    def reads(self, step: Step) -> tuple[str, ...]:
        return tuple(self._needed(step)[1])

    def _needed(self, step: Step) -> tuple[list[Placed], list[str], list[str]]:
        model_graph, always = self.specialized.model_nodes, self.prepared.constants
        remaining_positions = frozenset(self.specialized.positions)
        nodes = self._placed(step.nodes)
        result_names = {name for _, node in nodes for name in node.outputs}
        pending = [*(name for _, node in nodes for name in node.reads), *step.outputs]
        inputs, constants = dict.fromkeys(step.inputs), dict[str, None]()
        while pending:
            name = pending.pop()
            if name in result_names:
                continue
            position = model_graph.producer.get(name)
            if name in always:
                constants[name] = None
            elif position is None or position in remaining_positions:
                inputs[name] = None
            else:
                nodes.append((position, model_graph.nodes[position]))
                result_names.update(model_graph.nodes[position].outputs)
                pending.extend(model_graph.nodes[position].reads)
        # An adapter IR step gets shape-derived values as inputs; an ONNX part computes them again.
        return sorted(nodes, key=itemgetter(0)), [name for name in inputs if name not in result_names], list(constants)


def _open(always: Value | None, current_values: Mapping[str, Value], name: str) -> Value:
    if always is not None and always.shape is not None:
        return always
    value = current_values[name]
    return value if value.shape is None else replace(value, shape=(None,) * len(value.shape))
