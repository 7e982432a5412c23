"""Workarounds for quantized values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module
from nnadapter.drivers.openvino.graph import (
    Operators,
    data_of,
    element_type,
    insert,
    is_constant,
    is_finite,
    kind_of,
    part,
    parted,
    readers_of,
    replace_operator,
    upstream,
)
from nnadapter.drivers.openvino.operators import name_set
from nnadapter.ir.operand import Array

_SEQUENCES = 3


def _pads_with_zeros(operator: Any) -> bool:
    attributes = operator.get_attributes()
    pads = (*attributes["pads_begin"], *attributes["pads_end"])
    return not attributes["exclude-pad"] and (any(pads) or attributes["auto_pad"] != "explicit")


def _has_open_channels(operator: Any) -> bool:
    return bool(operator.get_input_partial_shape(0)[1].is_dynamic)


def _has_three_dimensions(operator: Any) -> bool:
    rank = operator.get_input_partial_shape(0).rank
    return bool(rank.is_static and rank.get_length() == _SEQUENCES)


REAL: Mapping[str, Callable[[Any], bool]] = {
    "AvgPool": _pads_with_zeros,
    "BatchNormInference": _has_open_channels,
    **dict.fromkeys(
        name_set("Clamp ConvolutionBackpropData GroupConvolutionBackpropData Maximum Minimum"), lambda _: True
    ),
    **dict.fromkeys(name_set("ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceSum"), _has_three_dimensions),
}
"""Operator that must compute in floating point -> condition.

The integer operator would pad with 0, round bounds to whole numbers, or use wrong zero points.
"""


def keep_real(operator: Any) -> None:
    """Keep an operator of `REAL` in floating point, by inserting max(lowest, x) before it.

    Before Minimum, min(highest, x) is inserted, because the engine would merge a maximum and a minimum.
    """
    kind = operator.get_type_name()
    if not REAL[kind](operator):
        return
    operators, limits = module().opset13, np.finfo(np.float32)
    for port in operator.inputs():
        source = port.get_source_output()
        if element_type(source) == "f32" and not is_constant(source):
            bound, make = (limits.max, "minimum") if kind == "Minimum" else (limits.min, "maximum")
            port.replace_source_output(getattr(operators, make)(source, operators.constant(bound)).output(0))
            break


_GAMMA = 1


def _is_by_negative(operator: Any) -> bool:
    return any(map(_has_negative, operator.input_values()))


_NEGATIVE: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(name_set("Add Concat Identity Relu Reshape Squeeze Transpose Unsqueeze"), lambda _: False),
    "BatchNormInference": lambda operator: _has_negative(operator.input_value(_GAMMA)),
    "Divide": _is_by_negative,
    "Multiply": _is_by_negative,
    "Negative": lambda _: True,
    "Subtract": lambda operator: constant_numbers(operator.input_value(0)) is not None,
}
"""Operator that quantizers fuse with or move past -> check whether it changes signs."""
_OF_KNOWN: Mapping[str, Callable[..., Any]] = {"Subtract": np.subtract, "Multiply": np.multiply}


def keep_signs(operators: Operators) -> None:
    """Prevent quantizers from fusing with a multiplication by negative numbers."""
    for kind, operator in operators:
        if kind == "FakeQuantize":
            port = operator.input(0)
            if _is_dynamic_float(port.get_source_output()) and _is_negated(port.get_source_output()):
                part(port)
        elif _multiplies_by_negative(operator):
            for port in operator.inputs():
                value = port.get_source_output()
                if _is_dynamic_float(value) and kind_of(value) == "FakeQuantize":
                    part(port)


def _multiplies_by_negative(operator: Any) -> bool:
    kind = operator.get_type_name()
    return kind in _NEGATIVE and _NEGATIVE[kind](operator)


def _is_dynamic_float(value: Any) -> bool:
    return element_type(value) == "f32" and bool(value.get_partial_shape().is_dynamic)


def _is_negated(value: Any) -> bool:
    pending, visited = [value.get_node()], set[str]()
    while pending:
        node = pending.pop()
        if node.get_type_name() not in _NEGATIVE or node.get_name() in visited:
            continue
        if _multiplies_by_negative(node):
            return True
        visited.add(node.get_name())
        computed_nodes = [source.get_node() for source in node.input_values() if constant_numbers(source) is None]
        if len(computed_nodes) == 1 or node.get_type_name() == "Concat":
            pending.extend(computed_nodes)
    return False


def _has_negative(value: Any) -> bool:
    contents = constant_numbers(value)
    return contents is not None and bool((contents < 0).any())


def constant_numbers(value: Any) -> Array | None:
    """Return the elements of a constant, dequantized if needed; None for computed values."""
    if is_constant(value):
        return data_of(value)
    node, kind = value.get_node(), kind_of(value)
    if kind == "Convert":
        contents = constant_numbers(node.input_value(0))
        return None if contents is None else contents.astype(value.get_element_type().to_dtype())
    read = [constant_numbers(source) for source in node.input_values()] if kind in _OF_KNOWN else [None]
    return None if any(operand is None for operand in read) else _OF_KNOWN[kind](*read)


PRODUCTS = name_set("Convolution GroupConvolution MatMul")
_SCALES = name_set("Divide Identity Multiply")
_READERS = name_set(
    "Add BatchNormInference Divide Identity Multiply Negative Reshape Squeeze Subtract Transpose Unsqueeze"
)


def part_rectified(rectifier: Any) -> None:
    """Prevent the fusion of a Relu on a matrix product with readers that may change signs."""
    if _is_product(rectifier.input_value(0)):
        for port in rectifier.output(0).get_target_inputs():
            if _changes_signs(port.get_node()):
                part(port)


def _is_product(value: Any) -> bool:
    """Check for a MatMul or convolution, possibly followed by scaling and by adding zeros."""
    kind = kind_of(value)
    if kind in PRODUCTS:
        return True
    numbers = [(source, constant_numbers(source)) for source in value.get_node().input_values()]
    computed = [source for source, contents in numbers if contents is None]
    adds_zeros = kind == "Add" and not any(contents.any() for _, contents in numbers if contents is not None)
    return (kind in _SCALES or adds_zeros) and len(computed) == 1 and _is_product(computed[0])


def _changes_signs(node: Any) -> bool:
    if node.get_type_name() not in _READERS:
        return False
    if _multiplies_by_negative(node):
        return True
    readers = readers_of(node.output(0))
    return len(readers) == 1 and _changes_signs(readers[0])


_ROOMY = 64
"""Largest absolute weight for which the sum of two 8-bit products fits in 16 bits."""
_STEPS = 255
_DEPTH, _WIDTH = 256, 64
_BITS = 8
_DEQUANTIZING = name_set("Multiply Subtract Convert VariadicSplit Reshape Transpose")
_IN_INTEGERS = _DEQUANTIZING | name_set("AvgPool Clamp Concat MaxPool Pad Relu Split Squeeze Unsqueeze")


def keep_sums(product: Any) -> None:
    """Compute a matrix product in floating point if integer sums would saturate on this processor."""
    values, weights = product.input_values()
    if _is_of_integers(values.get_node()) and _largest(weights) > _ROOMY and not _has_room():
        part(product.input(0))


def _is_of_integers(operator: Any) -> bool:
    return any(
        node.get_type_name() == "FakeQuantize"
        or (node.get_type_name() == "Convert" and node.get_input_element_type(0).bitwidth == _BITS)
        for node in upstream(operator, _IN_INTEGERS)
    )


def _largest(value: Any) -> int:
    while kind_of(value) in _DEQUANTIZING:
        value = value.get_node().input_value(0)
    weights = data_of(value) if element_type(value) == "i8" else None
    return 0 if weights is None or not weights.size else max(int(weights.max()), -int(weights.min()))


@cache
def _has_room() -> bool:
    """Check by a test program whether this processor sums large 8-bit products correctly."""
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


_LEVELS = 256
_NARROW = ("i8", "u8")
_INPUT, _LOW, _HIGH, _LOWEST, _HIGHEST = range(5)


def join_steps(operators: Operators) -> None:
    """Merge each quantizer with its dequantizer, in models with a Concat."""
    if any(kind == "Concat" and operator.get_output_element_type(0).is_real() for kind, operator in operators):
        for kind, operator in operators:
            if kind == "FakeQuantize" and operator.get_attributes()["levels"] == _LEVELS:
                _join(operator)


def _join(quantizer: Any) -> None:
    narrow = _only_reader(quantizer.output(0), "Convert")
    bounds = [_constant(quantizer.input_value(position)) for position in (_LOWEST, _HIGHEST)]
    if narrow is None or element_type(narrow.output(0)) not in _NARROW:
        return
    real = quantizer.get_output_element_type(0)
    for wide in readers_of(narrow.output(0)):
        if wide.get_type_name() == "Convert" and wide.get_output_element_type(0) == real:
            _dequantize(quantizer, bounds, wide)


def _dequantize(quantizer: Any, bounds: list[Array | None], wide: Any) -> None:
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
    replace_operator(scaled, joined)


def _only_reader(output: Any, kind: str) -> Any:
    readers = readers_of(output)
    return readers[0] if len(readers) == 1 and readers[0].get_type_name() == kind else None


def _constant(output: Any) -> Array | None:
    source = output.get_node().input_value(0) if kind_of(output) == "Convert" else output
    return constant_numbers(output) if is_constant(source) else None


def keep_bounds(quantizer: Any) -> None:
    """Clip the input of a quantizer to its bounds if the quantizer has more than 256 levels."""
    low, high = (quantizer.input_value(position) for position in (_LOW, _HIGH))
    if quantizer.get_attributes()["levels"] > _LEVELS and is_finite(low) and is_finite(high):
        operators, port = module().opset13, quantizer.input(0)
        raised = operators.maximum(port.get_source_output(), low)
        port.replace_source_output(operators.minimum(raised, high).output(0))


_PASSED = name_set("Convert Multiply Reshape Subtract Transpose")


def part_products(operator: Any) -> None:
    """Separate readers from a quantized product of dynamic shape that has several readers."""
    if element_type(operator.output(0)) != "f32":
        return
    product = _behind_identities(operator.output(0))
    is_shared = len(product.get_target_inputs()) > 1 and product.get_partial_shape().is_dynamic
    if is_shared and any(map(_is_dequantized, operator.input_values())):
        insert(product, parted)


def _behind_identities(value: Any) -> Any:
    identity = _only_reader(value, "Identity")
    return value if identity is None else _behind_identities(identity.output(0))


def _is_dequantized(value: Any) -> bool:
    while kind_of(value) in _PASSED:
        value = value.get_node().input_value(0)
        if element_type(value) in _NARROW:
            return True
    return kind_of(value) == "FakeQuantize"


_CONVOLUTIONS = name_set("Convolution GroupConvolution")


def part_from_order(transpose: Any) -> None:
    """Prevent the fusion of a Transpose with a preceding 1x1 convolution that has a computed kernel."""
    node = transpose.input_value(0).get_node()
    if node.get_type_name() in _CONVOLUTIONS and not is_constant(node.input_value(1)):
        shape = node.get_input_partial_shape(1)
        if shape.is_static and tuple(shape.to_shape())[-2:] == (1, 1):
            part(transpose.input(0))
