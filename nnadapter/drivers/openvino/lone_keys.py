"""Attention in the engine's model over keys whose number is open.

The engine makes one step of a product, the Softmax of it and the product of that with values. Where there was one key
at the first run of a program, as there is for a decoder whose cache is empty, that step is wrong at 16 keys and more,
in every run from then on. It is right where something of two parts stands in front of the Softmax, as a mask that is
added does; where nothing does, a step is put there. Seen with OpenVINO 2026.4.
"""

from __future__ import annotations

from typing import Any

from nnadapter.drivers.openvino.parting import part

_REALS = frozenset(("f16", "f32"))
_NORMALIZING = frozenset(("Exp", "Softmax"))
"""The engine makes a Softmax of Exp that is divided by its sum."""


def part_scores(model: Any) -> None:
    """Put a step in front of each Softmax, or Exp, of open length, of a product or of what is computed of one alone."""
    for operator in model.get_ordered_ops():
        if operator.get_type_name() in _NORMALIZING and _grows(operator.get_output_partial_shape(0)):
            is_real = operator.get_output_element_type(0).get_type_name() in _REALS
            if is_real and _is_of_product(operator.input_value(0).get_node()):
                part(operator.input(0))


def _grows(shape: Any) -> bool:
    """Whether the last dimension is open, which may be one at first and more later."""
    return shape.rank.is_dynamic or (len(shape) > 0 and bool(shape[len(shape) - 1].is_dynamic))


def _is_of_product(node: Any) -> bool:
    """Whether a value is a product of matrices, or computed of one and of constants."""
    while node.get_type_name() != "MatMul":
        computed = [
            source.get_node() for source in node.input_values() if source.get_node().get_type_name() != "Constant"
        ]
        if len(computed) != 1:
            return False
        (node,) = computed
    return True
