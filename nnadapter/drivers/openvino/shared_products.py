"""Products of quantized values in the engine's model that several others read.

The engine computes them in integers and scales them afterwards, in front of each reader or behind it. Where sizes are
open it has the product do that for one reader, and others scale what is scaled already: behind a Conv without a bias
they read numbers that are thousands of times too small. A step of its own in front of all readers is the only one. Seen
with OpenVINO 2026.4.
"""

from __future__ import annotations

from typing import Any

from nnadapter.drivers.openvino.parting import parted
from nnadapter.drivers.openvino.rectified import _PRODUCTS

_PASSED = frozenset(("Convert", "Multiply", "Reshape", "Subtract", "Transpose"))
"""What stands between quantized weights, or values, and the product that reads them."""
_NARROW_TYPES = frozenset(("i8", "u8"))


def part_products(model: Any) -> None:
    """Put a step behind each product of quantized values that has several readers, where sizes are open in a model."""
    for operator in model.get_ordered_ops():
        if operator.get_type_name() not in _PRODUCTS or operator.get_output_element_type(0).get_type_name() != "f32":
            continue
        product = _behind_identities(operator.output(0))
        if not product.get_partial_shape().is_dynamic:
            continue
        readers, names = product.get_target_inputs(), product.get_names()
        if len(readers) > 1 and any(map(_is_dequantized, operator.input_values())):
            step = parted(product)
            for reader in readers:
                reader.replace_source_output(step)
            product.set_names(set())
            step.set_names(names)


def _behind_identities(value: Any) -> Any:
    """The same value where it is read by more than an Identity, which the engine leaves out."""
    readers = [reader.get_node() for reader in value.get_target_inputs()]
    is_one = len(readers) == 1 and readers[0].get_type_name() == "Identity"
    return _behind_identities(readers[0].output(0)) if is_one else value


def _is_dequantized(value: Any) -> bool:
    """Whether a value is dequantized from 8 bits."""
    node = value.get_node()
    while node.get_type_name() in _PASSED:
        value = node.input_value(0)
        if value.get_element_type().get_type_name() in _NARROW_TYPES:
            return True
        node = value.get_node()
    return bool(node.get_type_name() == "FakeQuantize")
