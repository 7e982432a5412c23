"""Converters of quantization ops, and helpers for quantized operands.

Constant scales and zero points without blocks yield QUANTIZE and DEQUANTIZE; others yield float32 arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from nnadapter.converters.context import ConversionContext, Dequantized, invalid
from nnadapter.converters.registry import NodeWriter, OnnxNode, Reason, Refusal, converter, exporter
from nnadapter.ir.derived import derived
from nnadapter.ir.operand import INTEGER, Array, DataType, OperandType, Quantization, QuantizedType
from nnadapter.ir.operand_checks import integer_range
from nnadapter.ir.operations import MOVERS, PRODUCTS, REALS
from nnadapter.ir.schema import AttributeValue
from nnadapter.onnx.schemas import data_type_name
from nnadapter.records import dataclass


def cast(context: ConversionContext, operand: int, dtype: DataType) -> int:
    """Return an operand cast to `dtype`; constants stay constant."""
    if context.type_of(operand).dtype is dtype:
        return operand
    value = context.value_of(operand)
    if value is not None:
        return context.add_constant(value.astype(np.dtype(dtype)))
    return context.apply("CAST", operand, to=dtype.value)


def reshaped(context: ConversionContext, operand: int, shape: tuple[int, ...]) -> int:
    """Return an operand in another shape; constants stay constant."""
    if context.type_of(operand).dimensions == shape:
        return operand
    value = context.value_of(operand)
    if value is not None:
        return context.add_constant(value.reshape(shape))
    return context.apply("RESHAPE", operand, shape=shape)


_INTEGERS: Mapping[str, DataType] = {data_type.value: data_type for data_type in INTEGER}


def parameters(node: OnnxNode, scale: Array, zero_point: Array | None, axis: int | None) -> Quantization:
    """Return the quantization of constant scales and zero points, or raise Refusal.

    `scale` has one value, or one per index of the nonnegative `axis`; None allows only one.
    """
    scales = scale.reshape(-1).astype(np.float32)
    points = np.zeros(scales.size, np.int64) if zero_point is None else zero_point.reshape(-1).astype(np.int64)
    along = axis if max(scale.ndim, 0 if zero_point is None else zero_point.ndim) else None
    if scales.size != points.size:
        if 1 not in (scales.size, points.size):
            raise invalid(
                f"{node.op_type} has {scales.size} scales and {points.size} zero points; expected equally many"
            )
        scales, points = np.broadcast_arrays(scales, points)
    if scales.size == 1:
        along = None
    elif along is None:
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE, f"{node.op_type} has {scales.size} scales; expected one for the entire tensor"
        )
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"{node.op_type} has a scale that is not positive and finite; expected positive, finite scales",
        )
    return Quantization(scale=tuple(scales.tolist()), zero_point=tuple(points.tolist()), axis=along)


def integer_type(node: OnnxNode, dtype_name: str, described: str = "quantized values") -> DataType:
    """Return the integer data type of that name, or raise Refusal about the `described` values."""
    integer_dtype = _INTEGERS.get(dtype_name)
    if integer_dtype is None:
        raise Refusal(
            Reason.UNSUPPORTED_DTYPE, f"{described} of {node.op_type} have type {dtype_name}; expected integers"
        )
    return integer_dtype


def as_quantized(context: ConversionContext, name: str, quantization: Quantization) -> int:
    """Return an integer value's operand, interpreted with this quantization, or raise Refusal."""
    type_ = context.type_of(name)
    if type_.dtype not in INTEGER:
        raise Refusal(Reason.UNSUPPORTED_DTYPE, f"{name!r} is {type_}; expected integers")
    _check_axis(name, quantization, type_.dimensions)
    if type_.quantization == quantization:
        return context.operand(name)
    if context.is_constant(name):
        return context.add_constant(context.constant(name), quantization)
    return add_storage_cast(context, context.operand(name), quantization)


def _check_axis(name: str, quantization: Quantization, dimensions: Sequence[int]) -> None:
    axis, count = quantization.axis, len(quantization.scale)
    if axis is not None and (axis >= len(dimensions) or dimensions[axis] != count):
        raise invalid(
            f"{name!r} of dimensions {list(dimensions)} has {count} scales along axis {axis}; expected one per index"
        )


def add_storage_cast(context: ConversionContext, operand: int, quantization: Quantization) -> int:
    """Return an operand with the same integers and this quantization; add STORAGE_CAST if it has another."""
    type_ = context.type_of(operand)
    if type_.quantization == quantization:
        return operand
    result = QuantizedType(type_.dtype, quantization)
    return context.add("STORAGE_CAST", (operand,), quantized=(result,))[0]


def bias_quantization(x: Quantization, filter_: Quantization) -> Quantization:
    """Return the quantization of an int32 bias for products of `x` and `filter_`."""
    scales = tuple(x.scale[0] * scale for scale in filter_.scale)
    return Quantization(scale=scales, zero_point=(0,) * len(scales), axis=None if len(scales) == 1 else 0)


def add_quantized_product(
    context: ConversionContext,
    type_: str,
    operands: Sequence[int],
    attributes: Mapping[str, AttributeValue],
    result: QuantizedType | None,
    outputs: Sequence[str] = (),
) -> int:
    """Add CONV_2D, FULLY_CONNECTED or MAT_MUL on quantized operands, or raise Refusal.

    An optional int32 bias is reinterpreted with the scale of the sums. `result` is None for int32 sums.
    """
    x, filter_, *bias = operands
    if bias:
        scales = [context.type_of(operand).quantization for operand in (x, filter_)]
        assert scales[0] is not None and scales[1] is not None, "a bias goes with quantized operands"
        bias = [reinterpreted(context, bias[0], bias_quantization(scales[0], scales[1]))]
    quantized = () if result is None else (result,)
    return context.add(type_, (x, filter_, *bias), attributes, outputs, quantized)[0]


def reinterpreted(context: ConversionContext, operand: int, quantization: Quantization) -> int:
    """Return an operand with the same integers and another quantization; constants stay constant."""
    value = context.value_of(operand)
    return (
        add_storage_cast(context, operand, quantization) if value is None else context.add_constant(value, quantization)
    )


def add_quantized_convolution(
    context: ConversionContext,
    operands: Sequence[int],
    attributes: Mapping[str, AttributeValue],
    result: QuantizedType | None,
    outputs: Sequence[str] = (),
) -> int:
    """Add CONV_2D on quantized operands; a sequence is reshaped to an image and back. See `add_quantized_product`."""
    x, filter_, *bias = operands
    dimensions = context.type_of(x).dimensions
    if len(dimensions) == 4:
        return add_quantized_product(context, "CONV_2D", operands, attributes, result, outputs)
    picture = _reshaped(context, x, (*dimensions[:2], 1, *dimensions[2:]))
    size = context.type_of(filter_).dimensions
    tall = _reshaped(context, filter_, (*size[:2], 1, *size[2:]))
    result_operand = add_quantized_product(context, "CONV_2D", (picture, tall, *bias), attributes, result)
    batch, channels, _, length = context.type_of(result_operand).dimensions
    return context.apply("RESHAPE", result_operand, outputs=outputs, shape=(batch, channels, length))


def _reshaped(context: ConversionContext, operand: int, shape: tuple[int, ...]) -> int:
    """Reshape an operand and preserve its quantization, which may be along axis 0."""
    type_, value = context.type_of(operand), context.value_of(operand)
    if value is not None:
        return context.add_constant(value.reshape(shape), type_.quantization)
    result = context.apply("RESHAPE", operand, shape=shape)
    return result if type_.quantization is None else add_storage_cast(context, result, type_.quantization)


_REAL = DataType.FLOAT32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linear:
    """QuantizeLinear or DequantizeLinear node with its parameters."""

    context: ConversionContext
    node: OnnxNode
    dtype: DataType

    @property
    def axis(self) -> int:
        """Axis of the scales, nonnegative; 0 for a single scale."""
        if not (self.block or self._has_many_scales):
            return 0  # the value may be internal to a group, with unknown shape
        rank = len(self.context.dimensions(self.node.input(0)))
        axis = self.node.integer("axis", 1)
        if rank and not -rank <= axis < rank and self._has_many_scales:
            raise invalid(f"attribute 'axis' of {self.node.op_type} is {axis}; expected one of {-rank} to {rank - 1}")
        return axis % rank if rank else 0

    @property
    def _has_many_scales(self) -> bool:
        return any(size != 1 for size in self.context.dimensions(self.node.input(1)))

    @property
    def block(self) -> int:
        """Elements per scale; 0 without blocks."""
        block = self.node.integer("block_size", 0)
        if block < 0:
            raise invalid(f"attribute 'block_size' of {self.node.op_type} is {block}; expected 0 or more")
        return block

    @property
    def is_constant(self) -> bool:
        """True if QUANTIZE or DEQUANTIZE can express the node."""
        names = [name for name in self.node.inputs[1:3] if name]
        if self.block or not all(map(self.context.is_constant, names)):
            return False
        scale = self.context.constant(self.node.input(1)).astype(np.float32)
        return scale.size > 0 and bool((np.isfinite(scale) & (scale > 0)).all())

    def result(self) -> QuantizedType:
        scale, zero_point = (self.context.optional_constant(self.node, position) for position in (1, 2))
        assert scale is not None
        return QuantizedType(self.dtype, parameters(self.node, scale, zero_point, self.axis))

    def spread(self, name: str, dtype: DataType) -> int:
        """Return a scale or zero point in a shape that broadcasts to the value."""
        context = self.context
        operand = cast(context, context.operand(name), dtype)
        dimensions, rank = context.type_of(operand).dimensions, len(context.dimensions(self.node.input(0)))
        if self.block:
            return self._in_blocks(operand)
        if all(size == 1 for size in dimensions):
            return reshaped(context, operand, ())
        if len(dimensions) != 1:
            raise invalid(f"scales {name!r} have dimensions {list(dimensions)}; expected at most one")
        return reshaped(context, operand, (*dimensions, *[1] * (rank - 1 - self.axis)))

    def _in_blocks(self, operand: int) -> int:
        context, axis, block = self.context, self.axis, self.block
        target = context.dimensions(self.node.input(0))
        size = context.type_of(operand).dimensions
        if len(size) != len(target) or size[axis] != -(-target[axis] // block):
            raise invalid(
                f"scales of {self.node.op_type} have dimensions {list(size)}; "
                f"expected one for each block of {block} elements along axis {axis} of shape {list(target)}"
            )
        expandable = reshaped(context, operand, (*size[: axis + 1], 1, *size[axis + 1 :]))
        repeated = (*size[: axis + 1], block, *size[axis + 1 :])
        many = context.apply("EXPAND", expandable, shape=repeated)
        repeated_elements = reshaped(context, many, (*size[:axis], size[axis] * block, *size[axis + 1 :]))
        if size[axis] * block == target[axis]:
            return repeated_elements
        ends = (target[axis],)
        return context.apply("SLICE", repeated_elements, axes=(axis,), starts=(0,), ends=ends, steps=(1,))


def quantized_type(context: ConversionContext, node: OnnxNode) -> QuantizedType | None:
    """Return the quantized type of a QuantizeLinear or DequantizeLinear node, if QUANTIZE or DEQUANTIZE can express it.

    Raises Refusal for types other than integers, and for scales and zero points that do not match.
    """
    if node.op_type == "QuantizeLinear":
        integer_dtype = _result_type(context, node)
    else:
        integer_dtype = integer_type(node, context.type_of(node.input(0)).dtype.value)
    linear = _Linear(context=context, node=node, dtype=integer_dtype)
    return linear.result() if linear.is_constant else None


@converter("QuantizeLinear", 10, 13, 19, 21, 23, 24, 25, 28)
def convert_quantize_linear(context: ConversionContext, node: OnnxNode) -> None:
    """Convert QuantizeLinear, to integers only, to QUANTIZE or arithmetic."""
    linear = _Linear(context=context, node=node, dtype=_result_type(context, node))
    _check_precision(context, node)
    x = context.operand(node.input(0))
    if not context.type_of(x).dtype.is_floating:
        x = cast(context, x, _REAL)
    if linear.is_constant:
        context.add("QUANTIZE", (x,), outputs=node.outputs, quantized=(linear.result(),))
        return
    scale = linear.spread(node.input(1), _REAL)
    zero_point = linear.spread(node.input(2), _REAL) if node.input(2) else None
    add_quantizing(context, cast(context, x, _REAL), scale, zero_point, linear.dtype, node.outputs)


def _result_type(context: ConversionContext, node: OnnxNode) -> DataType:
    code = node.integer("output_dtype", 0)
    named = data_type_name(code) if code else "uint8"
    type_name = context.type_of(node.input(2)).dtype.value if node.input(2) else named
    return integer_type(node, type_name)


def _check_precision(context: ConversionContext, node: OnnxNode) -> None:
    code = node.integer("precision", 0)
    if code and data_type_name(code) != _REAL.value:
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"attribute 'precision' of {node.op_type} asks for {data_type_name(code)}; expected float32",
        )


def add_quantizing(
    context: ConversionContext,
    x: int,
    scale: int,
    zero_point: int | None,
    dtype: DataType,
    outputs: tuple[str, ...] = (),
) -> int:
    """Add QuantizeLinear's definition on float32 operands: rounding half to even, saturated.

    `scale` and `zero_point` (default 0) broadcast to `x`.
    """
    quotient = context.apply("DIV", x, scale)
    return add_rounding(context, quotient, zero_point, dtype, outputs)


def add_rounding(
    context: ConversionContext, x: int, zero_point: int | None, dtype: DataType, outputs: tuple[str, ...] = ()
) -> int:
    """Round float32 half to even, add a zero point, and saturate."""
    rounded = context.apply("ROUND", x)
    if zero_point is not None:
        rounded = context.apply("ADD", rounded, zero_point)
    smallest, largest = map(float, integer_range(dtype))
    clipped = context.apply("CLIP", rounded, min=smallest, max=largest)
    return context.apply("CAST", clipped, outputs=outputs, to=dtype.value)


@converter("DequantizeLinear", 10, 13, 19, 21, 23, 24, 25, 28)
def convert_dequantize_linear(context: ConversionContext, node: OnnxNode) -> None:
    """Convert DequantizeLinear, of integers only, to DEQUANTIZE or arithmetic."""
    dtype = integer_type(node, context.type_of(node.input(0)).dtype.value)
    code = node.integer("output_dtype", 0)
    result_dtype = DataType(data_type_name(code)) if code else context.type_of(node.input(1)).dtype
    linear = _Linear(context=context, node=node, dtype=dtype)
    if linear.is_constant:
        quantization = linear.result().quantization
        x = as_quantized(context, node.input(0), quantization)
        context.apply("DEQUANTIZE", x, outputs=node.outputs, to=result_dtype.value)
        value = context.value_of(x)
        if value is not None:
            reals = partial(derived, _dequantized, value, quantization=quantization, dtype=result_dtype.value)
            context.record_contents(node.output(0), reals, Dequantized(value, quantization))
        return
    difference = cast(context, context.operand(node.input(0)), DataType.INT32)
    if node.input(2):
        zero_point = linear.spread(node.input(2), DataType.INT32)
        difference = context.apply("SUB", difference, zero_point)
    inputs = (cast(context, difference, _REAL), linear.spread(node.input(1), _REAL))
    if result_dtype is _REAL:
        context.apply("MUL", *inputs, outputs=node.outputs)
        return
    product = context.apply("MUL", *inputs)
    context.apply("CAST", product, outputs=node.outputs, to=result_dtype.value)


def _dequantized(x: Array, *, quantization: Quantization, dtype: str) -> Array:
    shape = [1] * x.ndim
    if quantization.axis is not None:
        shape[quantization.axis] = -1
    scale, zero_point = (np.array(values).reshape(shape) for values in (quantization.scale, quantization.zero_point))
    difference = (x.astype(np.int64) - zero_point).astype(np.float32)
    with np.errstate(over="ignore"):  # infinity, as on devices
        reals: Array = (difference * scale.astype(np.float32)).astype(np.dtype(dtype)).reshape(x.shape)
    return reals


@converter("DynamicQuantizeLinear", 11)
def convert_dynamic_quantize_linear(context: ConversionContext, node: OnnxNode) -> None:
    """Convert DynamicQuantizeLinear to arithmetic; the scale is 1 if all elements are 0, as in ONNX Runtime."""
    x = context.operand(node.input(0))
    zero, unit, steps = (context.add_constant(np.array(value, np.float32)) for value in (0, 1, 255))
    low = context.apply("MIN", _extreme(context, "REDUCE_MIN", x), zero)
    high = context.apply("MAX", _extreme(context, "REDUCE_MAX", x), zero)
    width = context.apply("SUB", high, low)
    step = context.apply("DIV", width, steps)
    is_empty = context.apply("EQUAL", width, zero)
    scale = context.apply("WHERE", is_empty, unit, step, outputs=(node.output(1),))
    below = context.apply("DIV", low, scale)
    point = context.apply("SUB", zero, below)
    clipped = context.apply("CLIP", point, min=0.0, max=255.0)
    rounded = context.apply("ROUND", clipped)
    context.apply("CAST", rounded, outputs=(node.output(2),), to="uint8")
    add_quantizing(context, x, scale, rounded, DataType.UINT8, node.outputs[:1])


def _extreme(context: ConversionContext, type_: str, operand: int) -> int:
    rank = context.type_of(operand).rank
    if not rank:
        return operand
    return context.apply(type_, operand, axes=tuple(range(rank)), keepdims=False)


_ZERO_ONLY = frozenset({DataType.INT32})


_LINEAR = frozenset({DataType.INT4, DataType.INT8, DataType.INT16, DataType.UINT4, DataType.UINT8, DataType.UINT16})


def on_reals(write: NodeWriter) -> bool:
    """Return whether the operation is exported on real values, between dequantization and quantization."""
    result, first, kind = write.result.type, write.type, write.operation.type
    if first.quantization is None or result.quantization is None:
        return False
    if kind in PRODUCTS:
        return True
    moves = kind in MOVERS and all(type_ is None or type_.quantized == result.quantized for type_ in write.types)
    return kind in REALS and not moves


def sums(write: NodeWriter) -> bool:
    """Return whether the operation returns int32 sums of products."""
    quantized = write.type.quantization is not None and write.result.type.quantization is None
    return quantized and write.operation.type in PRODUCTS


def dequantized(write: NodeWriter, name: str, type_: OperandType) -> str:
    """Write the dequantization of a value to float32; return other values unchanged."""
    quantization = type_.quantization
    if quantization is None or type_.dtype.is_floating:
        return name
    scale, zero_point = _scale(write, quantization), np.array(quantization.zero_point)
    if type_.dtype in _LINEAR or (type_.dtype in _ZERO_ONLY and not zero_point.any()):
        point = "" if type_.dtype in _ZERO_ONLY else _point(write, quantization, type_.dtype)
        reals = write.node("DequantizeLinear", name, scale, point, axis=quantization.axis)
        return write.declared(reals, DataType.FLOAT32)
    wide = write.node("Sub", write.cast(name, DataType.INT64), _spread(write, zero_point, quantization, type_.rank))
    scales = _spread(write, np.array(quantization.scale, np.float32), quantization, type_.rank)
    return write.node("Mul", write.cast(wide, DataType.FLOAT32), scales)


def quantized(write: NodeWriter, name: str, type_: OperandType) -> str:
    """Write the quantization of a real value to a quantized type."""
    quantization = type_.quantization
    assert quantization is not None, "asked for quantized results alone"
    real = write.cast(name, DataType.FLOAT32)
    if type_.dtype in _LINEAR:
        point = _point(write, quantization, type_.dtype)
        return write.node("QuantizeLinear", real, _scale(write, quantization), point, axis=quantization.axis)
    scales = _spread(write, np.array(quantization.scale, np.float32), quantization, type_.rank)
    rounded = write.cast(write.node("Round", write.node("Div", real, scales)), DataType.FLOAT64)
    points = _spread(write, np.array(quantization.zero_point, np.float64), quantization, type_.rank)
    low, high = (write.number(limit, DataType.FLOAT64) for limit in integer_range(type_.dtype))
    return write.cast(write.node("Clip", write.node("Add", rounded, points), low, high), type_.dtype)


def _scale(write: NodeWriter, quantization: Quantization) -> str:
    return write.constant(_vector(quantization.scale, quantization, np.dtype(np.float32)))


def _point(write: NodeWriter, quantization: Quantization, dtype: DataType) -> str:
    return write.constant(_vector(quantization.zero_point, quantization, dtype.array_type))


def _vector(values: object, quantization: Quantization, dtype: np.dtype[np.generic]) -> np.ndarray:
    array = np.array(values, dtype)
    return array.reshape(()) if quantization.axis is None else array


def _spread(write: NodeWriter, values: np.ndarray, quantization: Quantization, rank: int) -> str:
    axes = [] if quantization.axis is None else [-1 if dim == quantization.axis else 1 for dim in range(rank)]
    return write.constant(values.reshape(axes))


@exporter("QUANTIZE")
def export_quantize(write: NodeWriter) -> str:
    """Export QUANTIZE as QuantizeLinear, or as arithmetic for types that QuantizeLinear lacks."""
    return quantized(write, write.inputs[0], write.result.type)


@exporter("DEQUANTIZE")
def export_dequantize(write: NodeWriter) -> str:
    """Export DEQUANTIZE as DequantizeLinear and Cast; for types that DequantizeLinear lacks, Sub and Mul replace it."""
    return write.cast(dequantized(write, write.inputs[0], write.type), DataType(write.operation.to))


def export_sums(write: NodeWriter) -> str:
    """Export integer sums of products as ConvInteger or MatMulInteger, plus bias, or raise Refusal."""
    of = write.operation
    x_type, y_type = write.types[:2]
    assert x_type is not None and y_type is not None, "both are required"
    x, y = write.inputs[:2]
    x_point, y_point = (_integer_point(write, type_) for type_ in (x_type, y_type))
    if of.type == "CONV_2D_TRANSPOSE":
        raise Refusal(Reason.UNSUPPORTED_OPERATION, "ONNX has no transposed convolution of integers")
    if of.type == "CONV_2D":
        window = {name: of.attributes[name] for name in ("strides", "pads", "dilations", "group")}
        total = write.node("ConvInteger", x, y, x_point, y_point, **window)  # type: ignore[arg-type]
        return _with_bias(write, total, [-1, 1, 1])
    if of.type == "FULLY_CONNECTED" or of.attributes.get("transpose_y"):
        y = write.swapped(y, y_type.rank)
    if of.attributes.get("transpose_x"):
        x = write.swapped(x, x_type.rank)
    return _with_bias(write, write.node("MatMulInteger", x, y, x_point, y_point), [-1])


def _integer_point(write: NodeWriter, type_: OperandType) -> str:
    assert type_.quantization is not None, "both inputs of a quantized product are quantized"
    points = set(type_.quantization.zero_point)
    if len(points) == 1:
        return write.number(points.pop(), type_.dtype)
    return _point(write, type_.quantization, type_.dtype)


def _with_bias(write: NodeWriter, total: str, shape: list[int]) -> str:
    bias = write.inputs[2] if len(write.inputs) > 2 else ""
    if not bias:
        return total
    spread = bias if len(shape) == 1 else write.node("Reshape", bias, write.integers(*shape))
    return write.node("Add", total, spread)
