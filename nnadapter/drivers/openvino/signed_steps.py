"""Values quantized to int8 in models that join values, quantized to uint8 for the engine.

It computes products of such values in uint8 anyway, and where Concat joined them it keeps the new zero points in int8:
128 becomes -128. With uint8 from the beginning, steps and numbers are the same. What is quantized again as it is, or
scaled and shifted, stays int8: of uint8, joined values end the process there. Seen with OpenVINO 2026.4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto

from nnadapter.onnx.building import copied, initializer_of
from nnadapter.onnx.references import array_of

_POINT = 2
"""The input of a zero point."""
_BELOW_ZERO = 128
"""How many steps int8 has there."""
_SCALING = frozenset(("Add", "Mul", "Sub", "Div"))
"""Ops that scale and shift."""


def with_unsigned_steps(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that quantizes to uint8 where it quantized to int8, for DequantizeLinear alone to read.

    The same model where it joins nothing, or quantizes nothing so.
    """
    if not any(node.op_type == "Concat" for node in model.graph.node):
        return model
    points = {each.name: each for each in model.graph.initializer if each.data_type == TensorProto.INT8}
    signed = _signed(model.graph, points)
    if not signed:
        return model
    made = copied(model)
    changed = [node for node in made.graph.node if not signed.isdisjoint((*node.input, *node.output))]
    for point in {node.input[_POINT] for node in changed}:
        raised = array_of(points[point]).astype(np.int16) + _BELOW_ZERO
        made.graph.initializer.append(initializer_of(_raised(point), raised.astype(np.uint8)))
    for node in changed:
        node.input[_POINT] = _raised(node.input[_POINT])
    for info in made.graph.value_info:
        if info.name in signed:
            info.type.tensor_type.elem_type = TensorProto.UINT8
    return made


def _signed(graph: onnx.GraphProto, points: Collection[str]) -> frozenset[str]:
    """Values that are quantized to int8, and read by DequantizeLinear alone."""
    outputs = {value.name for value in graph.output}
    readers: Mapping[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    made = (node for node in graph.node if node.op_type == "QuantizeLinear" and _has_point(node, points))
    names = (node.output[0] for node in made if not any(each.name == "output_dtype" for each in node.attribute))
    return frozenset(
        name
        for name in names
        if name not in outputs
        and _is_dequantized(readers[name], points)
        and not any(_is_quantized_again(reader.output[0], readers) for reader in readers[name])
    )


def _is_quantized_again(name: str, readers: Mapping[str, Sequence[onnx.NodeProto]]) -> bool:
    """Whether a value is quantized as it is, or scaled and shifted: of uint8 the engine ends the process there."""
    waiting = [name]
    for each in waiting:
        for reader in readers[each]:
            if reader.op_type == "QuantizeLinear":
                return True
            waiting += reader.output if reader.op_type in _SCALING else ()
    return False


def _is_dequantized(readers: Sequence[onnx.NodeProto], points: Collection[str]) -> bool:
    return all(node.op_type == "DequantizeLinear" and _has_point(node, points) for node in readers)


def _has_point(node: onnx.NodeProto, points: Collection[str]) -> bool:
    return len(node.input) > _POINT and node.input[_POINT] in points


def _raised(point: str) -> str:
    return f"{point}/unsigned"
