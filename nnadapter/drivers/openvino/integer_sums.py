"""Products and convolutions of integers, on processors where the engine saturates their sums.

The engine multiplies quantized values by weights of 8 bits in integers. A processor without instructions for that
(VNNI) adds two products in 16 bits, and two of 255 * 127 overflow. Two of weights up to 64 do not. With larger weights
the product is computed in floating point there; a small product shows whether the processor needs that. Seen with
OpenVINO 2026.4 on a processor with AVX2, and with instructions limited to AVX2 and to AVX512 without VNNI.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module
from nnadapter.drivers.openvino.parting import part

_ROOMY = 64
"""The largest weight of which two products have room."""
_STEPS = 255
_DEPTH, _WIDTH = 256, 64
_BITS = 8
_INTEGER_PRODUCTS = frozenset(("MatMul", "Convolution", "GroupConvolution"))
_DEQUANTIZING = frozenset(("Multiply", "Subtract", "Convert", "VariadicSplit", "Reshape", "Transpose"))
"""Operators that dequantize integers, or take a part of them."""
_IN_INTEGERS = _DEQUANTIZING | {"AvgPool", "Clamp", "Concat", "MaxPool", "Pad", "Relu", "Split", "Squeeze", "Unsqueeze"}
"""Operators between integers and a product that leave the product in integers."""


def keep_sums(model: Any) -> None:
    """Put a step before products that the engine would not add up correctly."""
    for operator in model.get_ordered_ops():
        if operator.get_type_name() not in _INTEGER_PRODUCTS or not _is_of_integers(operator.input_value(0).get_node()):
            continue
        if _largest(operator.input_value(1).get_node()) > _ROOMY and not _has_room():
            part(operator.input(0))


def _is_of_integers(node: Any) -> bool:
    """Check whether a value is made of integers of 8 bits, through operators that the engine computes in integers."""
    pending, visited = [node], set[str]()
    while pending:
        each = pending.pop()
        kind = each.get_type_name()
        if kind == "FakeQuantize" or (kind == "Convert" and each.get_input_element_type(0).bitwidth == _BITS):
            return True
        if kind in _IN_INTEGERS and each.get_name() not in visited:
            visited.add(each.get_name())
            pending.extend(map(_source, each.input_values()))
    return False


def _source(value: Any) -> Any:
    return value.get_node()


def _largest(node: Any) -> int:
    """The largest of a constant's integers, without its sign; 0 of anything else."""
    while node.get_type_name() in _DEQUANTIZING:
        node = node.input_value(0).get_node()
    is_integers = node.get_type_name() == "Constant" and node.get_element_type().get_type_name() == "i8"
    return max(int(node.data.max()), -int(node.data.min())) if is_integers and node.data.size else 0


@cache
def _has_room() -> bool:
    """Whether a product of the largest integers is right."""
    openvino, operators = module(), module().opset13
    parameter = operators.parameter([1, _DEPTH], np.float32)
    bounds = (np.float32(0), np.float32(_STEPS))
    quantized = operators.fake_quantize(parameter, *bounds, *bounds, _STEPS + 1)
    weights = operators.constant(np.full((_DEPTH, _WIDTH), 127, np.int8))
    scaled = operators.multiply(operators.convert(weights, "f32"), operators.constant(np.float32(1)))
    model = openvino.Model([operators.matmul(quantized, scaled, transpose_a=False, transpose_b=False)], [parameter])
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1})
    output = compiled(np.full((1, _DEPTH), _STEPS, np.float32))[0]
    return bool((output == _STEPS * 127 * _DEPTH).all())
