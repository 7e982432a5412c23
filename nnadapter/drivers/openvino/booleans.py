"""Conversions to boolean in the engine's model, as comparisons.

Of a part of a Split, the engine converts what the first part holds; and not-a-number, which ONNX's Cast makes true as
ONNX Runtime has it, becomes false. A comparison with zero has neither fault.
"""

from __future__ import annotations

from typing import Any

from nnadapter.drivers.openvino.engine import module


def compare_booleans(model: Any) -> None:
    """Put a comparison with zero in the place of each conversion to boolean of an engine's model."""
    boolean = module().Type.boolean
    for operator in model.get_ordered_ops():
        if operator.get_type_name() == "Convert" and operator.get_output_element_type(0) == boolean:
            _compare(operator)


def _compare(convert: Any) -> None:
    source, convert_output = convert.input_value(0), convert.output(0)
    zero = module().op.Constant(source.get_element_type(), module().Shape([]), [0])
    compared = module().opset13.not_equal(source, zero)
    compared.set_friendly_name(convert.get_friendly_name())
    compared_output, names = compared.output(0), convert_output.get_names()
    for reader in convert_output.get_target_inputs():
        reader.replace_source_output(compared_output)
    compared_output.set_names(names)
