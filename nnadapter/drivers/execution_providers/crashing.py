"""What a provider must not be shown, since it ends the process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx

from nnadapter.onnx.attributes import value_of_attribute
from nnadapter.onnx.nodes import captured_names
from nnadapter.onnx.propagation import infer
from nnadapter.onnx.values import value_of_type
from partition.dtypes import DTYPE_OF_ELEMENT_TYPE
from partition.verdict import Reason, Unsupported

_CRASHES = frozenset({"QNNExecutionProvider"})
"""Providers that crash on some nodes. Seen with version 2.7.0 of QNN's."""
_RANK_OF_CAST = 5
"""It crashes on a Cast from int32 to int64 of this rank, and leaves it to others at higher ones."""


def crashing(model: onnx.ModelProto, provider: str) -> dict[int, Unsupported]:
    """The nodes of a model that end the process when the provider compiles them, by position."""
    if provider not in _CRASHES:
        return {}
    shapes = {name: value_of_type(name, info.type) for name, info in infer(model).items()}
    types = {name: (value.dtype, value.shape) for name, value in shapes.items()}
    for tensor in model.graph.initializer:
        types[tensor.name] = (DTYPE_OF_ELEMENT_TYPE.get(tensor.data_type), tuple(tensor.dims))
    return {
        position: Unsupported(Reason.UNSUPPORTED_TYPE, f"{provider} crashes on {cause}")
        for position, cause in _crashing(model.graph, types)
    }


_Types = Mapping[str, tuple[str | None, Sequence[int | str | None] | None]]
"""Data types and shapes, where they are known."""


def _crashing(graph: onnx.GraphProto, types: _Types) -> Iterator[tuple[int, str]]:
    # It divides by the number of a tensor's elements; seen on Neg of [0, 3].
    empty = {name for name, (_, shape) in types.items() if 0 in (shape or ())}
    for position, node in enumerate(graph.node):
        names = (*node.input, *captured_names(node), *node.output)
        empty_name = next((name for name in names if name in empty), None)
        if empty_name is not None:
            yield position, f"{empty_name!r}, a tensor without elements"
        elif _is_crashing_cast(node, types):
            yield position, f"a Cast from int32 to int64 of rank {_RANK_OF_CAST}"


def _is_crashing_cast(node: onnx.NodeProto, types: _Types) -> bool:
    if node.op_type != "Cast" or node.domain or node.input[0] not in types:
        return False
    dtype, shape = types[node.input[0]]
    to = next(value_of_attribute(attribute) for attribute in node.attribute if attribute.name == "to")
    return dtype == "int32" and to == onnx.TensorProto.INT64 and (shape is None or len(shape) == _RANK_OF_CAST)
