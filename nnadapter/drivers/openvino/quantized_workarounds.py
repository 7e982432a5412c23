"""Workarounds for quantized graph forms that OpenVINO computes wrongly.

Values of the engine's model that are multiplied by negative numbers, and quantized behind that or before.

The engine has what quantizes them do the product as well, between bounds of which the lower one is the larger; it moves
that in front of a join for it. Where sizes are open, and there is a number for each channel, that comes out wrong. A
step between the two keeps them apart. Seen with OpenVINO 2026.4.

Products of quantized values in the engine's model, rectified, and multiplied by negative numbers behind that.

The engine scales what it computed in integers, and has the scale take in what a rectified product is multiplied by:
relu(s x) for s relu(x), which a negative s is not to be put inside of. Seen with OpenVINO 2026.4 for products without a
bias. A step between the two keeps them apart.

Products and convolutions of integers, on processors where the engine saturates their sums.

The engine multiplies quantized values by weights of 8 bits in integers. A processor without instructions for that
(VNNI) adds two products in 16 bits, and two of 255 * 127 overflow. Two of weights up to 64 do not. With larger weights
the product is computed in floating point there; a small product shows whether the processor needs that. Seen with
OpenVINO 2026.4 on a processor with AVX2, and with instructions limited to AVX2 and to AVX512 without VNNI.

Values quantized to 8 bits in the engine's model of a model that joins values, quantized and dequantized in one step.

The engine moves what quantizes joined values in front of the join, and with it what dequantizes them. That is several
steps there: where the last of them, the product with the scale, has gone into what reads it (values that are quantized
again as they are, or scaled and shifted), it ends the process; and zero points of int8 are wrong behind it, as 128
becomes -128. One step from reals to reals has nothing to move but itself. Seen with OpenVINO 2026.4.

Values quantized to 16 bits in the engine's model, which keep the bounds of their steps.

Where a value is quantized to 16 bits and dequantized at once, the engine leaves both out, and what lay beyond the
largest or below the smallest step comes through as it is: behind a Conv whose Relu is such a bound, negative numbers.
Seen with OpenVINO 2026.4. What is not rounded is off by half a step at most.

Products of quantized values in the engine's model that several others read.

The engine computes them in integers and scales them afterwards, in front of each reader or behind it. Where sizes are
open it has the product do that for one reader, and others scale what is scaled already: behind a Conv without a bias
they read numbers that are thousands of times too small. A step of its own in front of all readers is the only one. Seen
with OpenVINO 2026.4.

Convolutions of single pixels by dequantized filters in the engine's model, whose dimensions are put in an order.

The engine makes one product of matrices of both, with the channels last: that is one order of four dimensions, and it
takes every other one for it, also one that it makes of several. Seen with OpenVINO 2026.4. A step between the two keeps
them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module
from nnadapter.drivers.openvino.guards import part, parted
from nnadapter.ir.operand import Array

_GAMMA = 1
"""The input that a normalization multiplies by."""


def _is_by_negative(operator: Any) -> bool:
    return any(map(_has_negative, operator.input_values()))


def _is_from_known(operator: Any) -> bool:
    return constant_numbers(operator.input_value(0)) is not None


def _keeps(operator: Any) -> bool:
    return False


_NEGATIVE: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("Add", "Concat", "Identity", "Relu", "Reshape", "Squeeze", "Transpose", "Unsqueeze"), _keeps),
    "BatchNormInference": lambda operator: _has_negative(operator.input_value(_GAMMA)),
    "Divide": _is_by_negative,
    "Multiply": _is_by_negative,
    "Negative": lambda operator: True,
    "Subtract": _is_from_known,
}
"""What a quantizer may go into, or in front of, and which of it changes signs."""
_OF_KNOWN: Mapping[str, Callable[..., Any]] = {"Subtract": np.subtract, "Multiply": np.multiply}
"""What dequantizes a constant, beside Convert."""


def keep_signs(model: Any) -> None:
    """Put a step between products with negative numbers and what quantizes, in an engine's model with open sizes."""
    for operator in model.get_ordered_ops():
        kind = operator.get_type_name()
        if kind == "FakeQuantize":
            port = operator.input(0)
            if _is_dynamic_float(port.get_source_output()) and _is_negated(port.get_source_output()):
                part(port)
        elif changes_signs(operator):
            for port in operator.inputs():
                value = port.get_source_output()
                if _is_dynamic_float(value) and value.get_node().get_type_name() == "FakeQuantize":
                    part(port)


def changes_signs(operator: Any) -> bool:
    """Whether an operator multiplies its input by negative numbers."""
    kind = operator.get_type_name()
    return kind in _NEGATIVE and _NEGATIVE[kind](operator)


def _is_dynamic_float(value: Any) -> bool:
    """Whether a value is of float32, and its sizes are not known."""
    is_real = value.get_element_type().get_type_name() == "f32"
    return is_real and bool(value.get_partial_shape().is_dynamic)


def _is_negated(value: Any) -> bool:
    pending, visited = [value.get_node()], set[str]()
    while pending:
        node = pending.pop()
        if node.get_type_name() not in _NEGATIVE or node.get_name() in visited:
            continue
        if changes_signs(node):
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
    """The numbers of a constant, or of one that is dequantized; None of what a run computes."""
    node = value.get_node()
    kind = node.get_type_name()
    if kind == "Constant":
        data: Array = node.data
        return data
    if kind == "Convert":
        contents = constant_numbers(node.input_value(0))
        return None if contents is None else contents.astype(value.get_element_type().to_dtype())
    read = [constant_numbers(source) for source in node.input_values()] if kind in _OF_KNOWN else [None]
    return None if any(operand is None for operand in read) else _OF_KNOWN[kind](*read)


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
    computed = [source for source in node.input_values() if constant_numbers(source) is None]
    constants = [contents for source in node.input_values() if (contents := constant_numbers(source)) is not None]
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


_LEVELS = 256
"""Of 8 bits; what has more has its bounds in front, where nothing is moved through."""
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


_NARROW_LEVELS = 256
"""Of 8 bits: these are computed."""
_LOW_BOUND, _HIGH_BOUND = 1, 2


def keep_bounds(model: Any) -> None:
    """Put the bounds in front of what quantizes to more than 8 bits."""
    for operator in model.get_ordered_ops():
        if operator.get_type_name() == "FakeQuantize" and operator.get_attributes()["levels"] > _NARROW_LEVELS:
            _bound(operator)


def _bound(quantizer: Any) -> None:
    operators, port = module().opset13, quantizer.input(0)
    low, high = (quantizer.input_value(position) for position in (_LOW_BOUND, _HIGH_BOUND))
    if all(map(_is_finite, (low.get_node(), high.get_node()))):
        raised = operators.maximum(port.get_source_output(), low)
        port.replace_source_output(operators.minimum(raised, high).output(0))


def _is_finite(bound: Any) -> bool:
    """Whether a bound is known, and one: a quantizer that met the smallest float, as masks have it, may make none."""
    return bound.get_type_name() == "Constant" and bool(np.isfinite(bound.data).all())


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


_CONVOLUTIONS = frozenset(("Convolution", "GroupConvolution"))
_FILTER = 1
_PIXEL = (1, 1)


def part_from_orders(model: Any) -> None:
    """Put a step between such convolutions and each Transpose of what they make."""
    for operator in model.get_ordered_ops():
        if operator.get_type_name() == "Transpose" and _is_of_pixels(operator.input_value(0).get_node()):
            part(operator.input(0))


def _is_of_pixels(node: Any) -> bool:
    if node.get_type_name() not in _CONVOLUTIONS:
        return False
    shape = node.get_input_partial_shape(_FILTER)
    is_plain = node.input_value(_FILTER).get_node().get_type_name() == "Constant"
    return not is_plain and shape.is_static and tuple(shape.to_shape())[-2:] == _PIXEL
