"""Calls of kernels in models of devices that take ONNX: nodes of a domain of our own, which no device is given.

Such a node has the attributes of the adapter IR's operation CUSTOM, and the types of what it reads, which models do not
have to state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nnadapter.ir.operand import DataType, OperandType
from nnadapter.ir.operations.custom import CUSTOM, CustomCall, read_types, written_types
from nnadapter.ir.schema import AttributeValue
from nnadapter.kernels.segment import Called, Constant, Segment, SegmentOperation
from nnadapter.onnx.attributes import value_of_attribute
from nnadapter.onnx.extracting import OnnxIndex, extract
from nnadapter.onnx.graphs import read_graph
from nnadapter.onnx.references import array_of
from nnadapter.onnx.values import operand_type
from nnadapter.onnx.written_nodes import WrittenNode, message_of
from partition.graph import Node

if TYPE_CHECKING:
    import onnx

CALLS = "nnadapter.kernels"
"""The domain of nodes that are calls."""
_INPUT_TYPES = "input_types"


def has_calls(model: onnx.ModelProto) -> bool:
    """Whether kernels compute nodes of a model."""
    return any(node.domain == CALLS for node in model.graph.node)


def call_node(
    node: onnx.NodeProto, name: str, attributes: Mapping[str, AttributeValue], types: Sequence[OperandType]
) -> onnx.NodeProto:
    """Return the call that takes the place of a node.

    Args:
        node: as the model has it.
        name: of the node.
        attributes: of the operation CUSTOM that it is.
        types: of the inputs that are present.
    """
    call = CustomCall.of(attributes)
    output_names = [*node.output, *[""] * (len(call.outputs) - len(node.output))]
    return message_of(
        WrittenNode(
            op_type=CUSTOM,
            domain=CALLS,
            name=name,
            inputs=tuple(node.input[position] for position in call.present),
            outputs=tuple(output_name or f"{name}%{position}" for position, output_name in enumerate(output_names)),
            attributes={**attributes, _INPUT_TYPES: written_types(types)},
        )
    )


def onnx_segment(model: onnx.ModelProto) -> Segment:
    """A segment as ONNX, with calls in it."""
    graph, index = read_graph(model), OnnxIndex.of(model)
    call_inputs = {name for node in model.graph.node if node.domain == CALLS for name in node.input}

    def part(positions: Sequence[int], inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
        read = dict.fromkeys(name for at in positions for name in graph.nodes[at].reads if name in graph.constants)
        return extract(index, graph, positions, inputs, list(read), outputs)

    return Segment(
        tuple(_read(*pair, graph.constants) for pair in zip(model.graph.node, graph.nodes, strict=True)),
        graph.inputs,
        graph.outputs,
        {name: _constant(index.initializers[name]) for name in sorted(call_inputs & graph.constants)},
        part,
        lambda name: operand_type(graph.value(name)),
    )


def _read(proto: onnx.NodeProto, node: Node, constants: frozenset[str]) -> SegmentOperation:
    called = None
    if proto.domain == CALLS:
        attributes = {attribute.name: value_of_attribute(attribute) for attribute in proto.attribute}
        types = read_types(str(attributes.pop(_INPUT_TYPES)))
        called = Called(CustomCall.of(attributes), tuple(proto.input), types)  # type: ignore[arg-type]
    reads = tuple(name for name in node.reads if name not in constants)
    return SegmentOperation(node.op_type, reads, tuple(name for name in node.outputs if name), called)


def _constant(tensor: onnx.TensorProto) -> Constant:
    array = array_of(tensor)
    return Constant(OperandType(DataType(array.dtype.name), array.shape), array)
