"""Values quantized to 8 bits in the engine's model of a model that joins values, quantized and dequantized in one step.

The engine moves what quantizes joined values in front of the join, and with it what dequantizes them. That is several
steps there: where the last of them, the product with the scale, has gone into what reads it (values that are quantized
again as they are, or scaled and shifted), it ends the process; and zero points of int8 are wrong behind it, as 128
becomes -128. One step from reals to reals has nothing to move but itself. Seen with OpenVINO 2026.4.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module
from nnadapter.ir.operand import Array

_LEVELS = 256
"""Of 8 bits; what has more has its bounds in front (`wide_steps.py`), where nothing is moved through."""
_NARROW = ("i8", "u8")
_INPUT, _LOW, _HIGH, _LOWEST, _HIGHEST = range(5)
"""Inputs of a FakeQuantize: the value, between which bounds it is taken, and what these become."""


def join_steps(model: Any) -> None:
    """Make one step of what quantizes and what dequantizes, in an engine's model that joins reals."""
    operators = model.get_ordered_ops()
    if not any(op.get_type_name() == "Concat" and op.get_output_element_type(0).is_real() for op in operators):
        return
    for operator in operators:
        if operator.get_type_name() == "FakeQuantize" and operator.get_attributes()["levels"] == _LEVELS:
            _join(operator)


def _join(quantizer: Any) -> None:
    narrow = _only_reader(quantizer.output(0), "Convert")
    bounds = [_constant(quantizer.input_value(position)) for position in (_LOWEST, _HIGHEST)]
    if narrow is None or narrow.get_output_element_type(0).get_type_name() not in _NARROW:
        return
    real = quantizer.get_output_element_type(0)
    for reader in narrow.output(0).get_target_inputs():
        wide = reader.get_node()
        if wide.get_type_name() == "Convert" and wide.get_output_element_type(0) == real:
            _dequantize(quantizer, bounds, wide)


def _dequantize(quantizer: Any, bounds: list[Array | None], wide: Any) -> None:
    """Put a quantizer whose results are real in the place of what dequantizes those of another one."""
    operators = module().opset13
    shifted = _only_reader(wide.output(0), "Subtract")
    point = np.zeros((), np.float32) if shifted is None else _constant(shifted.input_value(1))
    scaled = _only_reader((wide if shifted is None else shifted).output(0), "Multiply")
    scale = None if scaled is None else _constant(scaled.input_value(1))
    low, high = bounds
    if point is None or scale is None or low is None or high is None:
        return
    output_bounds = [operators.constant(((bound - point) * scale).astype(scale.dtype)) for bound in (low, high)]
    quantizer_inputs = [quantizer.input_value(position) for position in (_INPUT, _LOW, _HIGH)]
    joined = operators.fake_quantize(*quantizer_inputs, *output_bounds, _LEVELS)
    scaled_output, joined_output = scaled.output(0), joined.output(0)
    joined.set_friendly_name(scaled.get_friendly_name())
    names = scaled_output.get_names()
    for reader in scaled_output.get_target_inputs():
        reader.replace_source_output(joined_output)
    joined_output.set_names(names)


def _only_reader(output: Any, kind: str) -> Any:
    """The one operator that reads an output, if it is of this type."""
    readers = [reader.get_node() for reader in output.get_target_inputs()]
    return readers[0] if len(readers) == 1 and readers[0].get_type_name() == kind else None


def _constant(output: Any) -> Array | None:
    """What is known of a value, as real numbers; None where nothing is."""
    node = output.get_node()
    if node.get_type_name() == "Convert":
        node, dtype = node.input_value(0).get_node(), output.get_element_type().to_dtype()
        return node.data.astype(dtype) if node.get_type_name() == "Constant" else None
    return node.data if node.get_type_name() == "Constant" else None
