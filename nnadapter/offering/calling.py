"""Nodes that kernels of a device that takes ONNX compute, as calls in the models that it is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from nnadapter.converters.convert import Conversion
from nnadapter.ir.operand import OperandType
from nnadapter.ir.operations.custom import CUSTOM, CustomCall
from nnadapter.ir.schema import Attributes
from nnadapter.kernels.choosing import Choice, KernelTable, Request
from nnadapter.onnx.building import info_of
from nnadapter.onnx.values import operand_type
from partition.graph import Graph, Node
from partition.verdict import Unsupported

if TYPE_CHECKING:
    import onnx

Calls = Mapping[int, tuple[Attributes, tuple[OperandType, ...]]]
"""By node the attributes of the operation CUSTOM that it is, and the types of what it reads."""


def calls_among(kernels: KernelTable, nodes: Iterable[int], graph: Graph, conversion: Conversion) -> Calls:
    """Return which of some nodes kernels of a device compute."""
    if not kernels.kernels or CUSTOM not in conversion.model.operation_types:
        return {}
    calls = {}
    for node in nodes:
        request = _request(graph.nodes[node], node, graph, conversion)
        if request is not None and isinstance(kernels.choose(request[0]), Choice):
            calls[node] = request[1:]
    return calls


def why_no_call(kernels: KernelTable, node: int, graph: Graph, conversion: Conversion) -> Unsupported | None:
    """Why no kernel of a device computes a node whose op they are for; None where they are for none such."""
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
    """Change the nodes of a model that are calls, and have the model say the types of all that its nodes make.

    Args:
        model: a part of the graph, which nobody else has.
        nodes: the positions of its nodes in `graph`.
        graph: what is placed.
        calls: of some of the nodes.
    """
    from nnadapter.kernels.onnx_segment import call_node  # where there are such calls

    if not calls:
        return model
    for at, node in enumerate(nodes):
        if node in calls:
            model.graph.node[at].CopyFrom(call_node(model.graph.node[at], graph.nodes[node].name, *calls[node]))
    stated = {info.name for info in (*model.graph.output, *model.graph.input)}
    made = (name for node in nodes for name in graph.nodes[node].outputs if name and name not in stated)
    model.graph.value_info.extend(info_of(graph.value(name)) for name in made if graph.value(name).dtype)
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
    known = tuple(type_ for type_ in types if type_ is not None)
    return (Request.of(call, known), attributes, known) if len(known) == len(types) else None
