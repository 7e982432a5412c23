"""Products of integers in the engine's model, on processors where the engine does not add them up rightly.

Integers, dequantized with scale 1, are multiplied by weights of 8 bits in integers. A processor without instructions
for that (VNNI) adds two products in 16 bits, where two of 255 * 127 have no room, and the engine says nothing. Weights
up to 64 have it. Of others the product is computed in real numbers there; whether it has to be, a small product tells.
Seen with OpenVINO 2026.4 whose instructions were limited to AVX2 and to AVX512 without VNNI.
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
_PASSED = frozenset(("Multiply", "Subtract", "Convert", "VariadicSplit"))
"""What dequantizes integers, or takes a part of them."""


def keep_sums(model: Any) -> None:
    """Put a step in front of products that the engine would not add up rightly."""
    for operator in model.get_ordered_ops():
        if operator.get_type_name() != "MatMul" or not _is_plain(operator.input_value(0).get_node()):
            continue
        if _largest(operator.input_value(1).get_node()) > _ROOMY and not _has_room():
            part(operator.input(0))


def _is_plain(node: Any) -> bool:
    """Whether a value is integers times 1, or what quantizes to these and dequantizes at once."""
    numbers = [float(each.data.item()) for each in map(_source, node.input_values()[1:]) if _is_number(each)]
    return (node.get_type_name() == "Multiply" and numbers == [1]) or (
        node.get_type_name() == "FakeQuantize" and numbers[-2:] == [0, _STEPS]
    )


def _source(value: Any) -> Any:
    return value.get_node()


def _is_number(node: Any) -> bool:
    return bool(node.get_type_name() == "Constant" and node.data.size == 1)


def _largest(node: Any) -> int:
    """The largest of a constant's integers, without its sign; 0 of anything else."""
    while node.get_type_name() in _PASSED:
        node = node.input_value(0).get_node()
    is_integers = node.get_type_name() == "Constant" and node.get_element_type().get_type_name() == "i8"
    return max(int(node.data.max()), -int(node.data.min())) if is_integers and node.data.size else 0


@cache
def _has_room() -> bool:
    """Whether a product of the largest integers is right."""
    openvino, operators = module(), module().opset13
    given = operators.parameter([1, _DEPTH], np.float32)
    bounds = (np.float32(0), np.float32(_STEPS))
    quantized = operators.fake_quantize(given, *bounds, *bounds, _STEPS + 1)
    weights = operators.constant(np.full((_DEPTH, _WIDTH), 127, np.int8))
    scaled = operators.multiply(operators.convert(weights, "f32"), operators.constant(np.float32(1)))
    model = openvino.Model([operators.matmul(quantized, scaled, transpose_a=False, transpose_b=False)], [given])
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1})
    made = compiled(np.full((1, _DEPTH), _STEPS, np.float32))[0]
    return bool((made == _STEPS * 127 * _DEPTH).all())
