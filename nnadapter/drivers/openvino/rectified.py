"""Products of quantized values in the engine's model, rectified, and multiplied by negative numbers behind that.

The engine scales what it computed in integers, and has the scale take in what a rectified product is multiplied by:
relu(s x) for s relu(x), which a negative s is not to be put inside of. Seen with OpenVINO 2026.4 for products without a
bias. A step between the two keeps them apart.
"""

from __future__ import annotations

from typing import Any

from nnadapter.drivers.openvino.parting import part
from nnadapter.drivers.openvino.signs import changes_signs, known

_RECTIFIERS = frozenset(("PRelu", "Relu"))
_PRODUCTS = frozenset(("Convolution", "GroupConvolution", "MatMul"))
_SCALES = frozenset(("Divide", "Identity", "Multiply"))
_READERS = frozenset((
    "Add", "BatchNormInference", "Divide", "Identity", "Multiply", "Negative", "Reshape", "Squeeze", "Subtract",
    "Transpose", "Unsqueeze",
))  # fmt: skip
"""What an operator that scales is written as, or stands behind."""


def part_rectified(model: Any) -> None:
    """Put a step between rectified products and what changes their signs."""
    for operator in model.get_ordered_ops():
        if operator.get_type_name() in _RECTIFIERS and _is_product(operator.input_value(0)):
            for port in operator.output(0).get_target_inputs():
                if _changes_signs(port.get_node()):
                    part(port)


def _is_product(value: Any) -> bool:
    """Whether a value is a product, scaled or not, to which nothing is added but zeros."""
    node = value.get_node()
    if node.get_type_name() in _PRODUCTS:
        return True
    computed = [source for source in node.input_values() if known(source) is None]
    constants = [contents for source in node.input_values() if (contents := known(source)) is not None]
    is_scaled = node.get_type_name() in _SCALES or (node.get_type_name() == "Add" and not any(map(_is_any, constants)))
    return is_scaled and len(computed) == 1 and _is_product(computed[0])


def _is_any(contents: Any) -> bool:
    return bool((contents != 0).any())


def _changes_signs(node: Any) -> bool:
    if node.get_type_name() not in _READERS:
        return False
    if changes_signs(node):
        return True
    readers = node.output(0).get_target_inputs()
    return len(readers) == 1 and _changes_signs(next(iter(readers)).get_node())
