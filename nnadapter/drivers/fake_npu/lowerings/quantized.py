"""Lowerings of operations on quantized operands, by integers or by tables of all 256 values.

Lowerings of operations on quantized operands.

Products of 8-bit integers go through the floating-point kernels, because a matrix product of floats is many times as
fast as numpy's of integers. It is exact: zero points are subtracted first, so that all factors are whole numbers below
512 in magnitude; a sum of products, in whatever order and with whatever partial sums, is a whole number no larger than
the sum of the magnitudes, and float32 has every whole number up to 2^24, float64 up to 2^53. Which of the two is
needed is decided here, by the largest sum of magnitudes that the weights allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.execution import bind
from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.quantized_elements import to_integers
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.drivers.fake_npu.limits import USUAL
from nnadapter.drivers.fake_npu.lowerings.direct import Lower
from nnadapter.drivers.fake_npu.lowerings.images import (
    convolution_kernel,
    emit_filter,
    image_of,
    image_type,
    pack_constant_filter,
    set_image,
    window_parameters,
)
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.derived import applied, decided, derived
from nnadapter.ir.model import ABSENT, Operation
from nnadapter.ir.operand import Array, DataType, OperandType, Quantization
from nnadapter.ir.operand_checks import integer_range

_EXACT_IN_FLOAT32 = 1 << 24


def quantization_of(type_: OperandType) -> Quantization:
    """The quantization of an operand that has one."""
    assert type_.quantization is not None
    return type_.quantization


def on_integers(plain: Lower, quantized: Lower) -> Lower:
    """`quantized` for an operation whose first input is quantized, else `plain`."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        is_quantized = emitter.model.operands[operation.inputs[0]].type.quantization is not None
        (quantized if is_quantized else plain)(emitter, operation)

    return lower


def lower_quantize(emitter: Emitter, operation: Operation) -> None:
    """QUANTIZE."""
    (output,) = operation.outputs
    type_ = emitter.model.operands[output].type
    quantization = quantization_of(type_)
    inputs = (emitter.tensor(operation.inputs[0]), *_constants(emitter, quantization.scale, quantization.zero_point))
    smallest, largest = integer_range(type_.dtype)
    parameters = {"axis": _axis(quantization), "minimum": smallest, "maximum": largest}
    emitter.assign(output, emitter.emit("quantize", inputs, (emitter.result_type(output),), parameters)[0])


def lower_dequantize(emitter: Emitter, operation: Operation) -> None:
    """DEQUANTIZE."""
    quantization = quantization_of(emitter.model.operands[operation.inputs[0]].type)
    zero_point, scale = _constants(emitter, quantization.zero_point, quantization.scale)
    results = (emitter.result_type(operation.outputs[0]),)
    inputs = (emitter.tensor(operation.inputs[0]), zero_point, scale)
    (output,) = emitter.emit("dequantize", inputs, results, {"axis": _axis(quantization)})
    emitter.assign(operation.outputs[0], output)


def _constants(emitter: Emitter, *values: Sequence[float]) -> list[int]:
    return [emitter.add_constant(np.array(value, np.float32)) for value in values]


def _axis(quantization: Quantization) -> int:
    return -1 if quantization.axis is None else quantization.axis


def _largest(type_: OperandType) -> int:
    """The largest magnitude of an integer of that type without its zero point."""
    smallest, largest = integer_range(type_.dtype)
    points = quantization_of(type_).zero_point
    return max(max(largest - point, point - smallest) for point in points)


def _centered(weight: Array, *, zero_points: tuple[int, ...], axis: int, dtype: str) -> Array:
    """The whole numbers `weight - zero_points`, as floats."""
    shape = [1] * weight.ndim
    if axis >= 0:
        shape[axis] = -1
    points = np.array(zero_points, np.float64).reshape(shape if len(zero_points) > 1 else ())
    return (weight - points).astype(dtype)


def _sum_of_magnitudes(weight: Array, *, zero_points: tuple[int, ...], axis: int, kept: int) -> int:
    """The largest sum of |weight - zero point| over all axes but `kept`."""
    centered = np.abs(_centered(weight, zero_points=zero_points, axis=axis, dtype="float64"))
    others = tuple(dimension for dimension in range(weight.ndim) if dimension != kept % weight.ndim)
    return int(centered.sum(axis=others).max(initial=0))


class _Product:
    """One product on its way from quantized operands to a result: what is the same for all of them."""

    def __init__(self, emitter: Emitter, operation: Operation) -> None:
        self.emitter = emitter
        self.operation = operation
        operands = emitter.model.operands
        self.types = [operands[index].type for index in operation.inputs if index != ABSENT]
        self.result = operands[operation.outputs[0]].type
        self.dtype = "float32"

    def weigh(self, weight: Array, kept: int) -> None:
        """Choose the type to add up in: `weight` is constant, its axis `kept` is that of the outputs."""
        bias = self._bias()
        known = None if bias is None or not self.emitter.is_constant(bias) else self.emitter.constant(bias)
        more = self._largest_bias() if known is None else 0
        most = {"largest": _largest(self.types[0]), "more": more}
        self.dtype = decided(_sum_type_of, weight, known, **self._points(1), kept=kept, **most)

    def count(self, depth: int) -> None:
        """Choose the type to add up in: so many products for each sum."""
        self.dtype = _sum_type(depth * _largest(self.types[0]) * _largest(self.types[1]) + self._largest_bias())

    def _points(self, position: int) -> dict[str, Any]:
        quantization = quantization_of(self.types[position])
        return {"zero_points": quantization.zero_point, "axis": _axis(quantization)}

    def _largest_bias(self) -> int:
        bias = self._bias()
        if bias is None:
            return 0
        known = self.emitter.is_constant(bias)
        return _largest_of(self.emitter.constant(bias)) if known else 1 << 31

    def _bias(self) -> int | None:
        inputs = self.operation.inputs
        return inputs[2] if len(inputs) > 2 and inputs[2] != ABSENT else None

    def bias(self) -> list[int]:
        """The bias as floats in a list, an empty one if there is none."""
        bias = self._bias()
        if bias is None:
            return []
        if self.emitter.is_constant(bias):
            return [self.emitter.add_constant(applied(_as_floats, self.emitter.constant(bias), dtype=self.dtype))]
        tensor = self.emitter.tensor(bias)
        result = TensorType(self.dtype, self.emitter.type_of(tensor).dimensions)
        return [*self.emitter.emit("cast", (tensor,), (result,))]

    def weight(self) -> Array:
        """The second input, a constant, without its zero point."""
        return derived(_centered, self.emitter.constant(self.operation.inputs[1]), **self._points(1), dtype=self.dtype)

    def factor(self, position: int, tensor: int) -> int:
        """An input in `tensor` without its zero point."""
        dimensions = self.emitter.type_of(tensor).dimensions
        quantization = quantization_of(self.types[position])
        inputs = (tensor, *_constants(self.emitter, quantization.zero_point))
        result = TensorType(self.dtype, dimensions)
        return self.emitter.emit("center", inputs, (result,), {"axis": _axis(quantization)})[0]

    def sums(self, kernel: str, inputs: Sequence[int], dimensions: Sequence[int], parameters: Any = None) -> int:
        """Sums of products, by a kernel of floats."""
        return self.emitter.emit(kernel, inputs, (TensorType(self.dtype, tuple(dimensions)),), parameters)[0]

    def finished(self, sums: int) -> int:
        """The result of `sums`, whose last axis is that of the channels."""
        dimensions = self.emitter.type_of(sums).dimensions
        if self.result.quantization is None:
            return self._as_int32(sums)
        factors = self._factors()
        axis = len(dimensions) - 1 if factors.size > 1 else -1
        (zero_point,) = self.result.quantization.zero_point
        constants = [self.emitter.add_constant(factors), *_constants(self.emitter, (zero_point,))]
        minimum, maximum = self._bounds()
        parameters = {"axis": axis, "minimum": minimum, "maximum": maximum}
        result = TensorType(self.result.dtype.value, dimensions)
        return self.emitter.emit("requantize", (sums, *constants), (result,), parameters)[0]

    def _as_int32(self, sums: int) -> int:
        """Sums wrap around as they do where they are added up in int32, so they are whole numbers of 64 bits first."""
        dimensions = self.emitter.type_of(sums).dimensions
        if self.dtype == "float64":
            (sums,) = self.emitter.emit("cast", (sums,), (TensorType("int64", dimensions),))
        return self.emitter.emit("cast", (sums,), (TensorType("int32", dimensions),))[0]

    def _factors(self) -> Array:
        """Scales of the inputs over that of the result, computed in float32 in this order, as ONNX Runtime does it."""
        x, y, result = (np.array(quantization_of(type_).scale, np.float32) for type_ in (*self.types[:2], self.result))
        factors: Array = x * y / result
        return factors

    def _bounds(self) -> tuple[int, int]:
        """Smallest and largest integer of the result, the fused activation included."""
        limits = integer_range(self.result.dtype)
        bounds = _REAL_BOUNDS[str(self.operation.attributes["fuse_code"])](self.operation)
        quantization = quantization_of(self.result)
        moved = np.rint(np.array(bounds, np.float32) / np.float32(quantization.scale[0])) + quantization.zero_point[0]
        low, high = np.clip(moved, *limits).tolist()
        return int(low), int(high)


def _clip_bounds(operation: Operation) -> tuple[float, float]:
    bounds: Any = operation.attributes["fuse_parameters"]
    return float(bounds[0]), float(bounds[1])


_REAL_BOUNDS: dict[str, Callable[[Operation], tuple[float, float]]] = {
    "none": lambda operation: (-np.inf, np.inf),
    "relu": lambda operation: (0.0, np.inf),
    "clip": _clip_bounds,
}


def _sum_type(most: int) -> str:
    """The type in which sums of that magnitude are exact."""
    return "float32" if most < _EXACT_IN_FLOAT32 else "float64"


def _sum_type_of(weight: Array, bias: Array | None, *, kept: int, largest: int, more: int, **points: Any) -> str:
    """The type for sums of products of `weight` and integers up to `largest`, with a bias, or `more` for it."""
    sums = int(derived(_sum_as_array, weight, **points, kept=kept))
    return _sum_type(sums * largest + (more if bias is None else _largest_of(bias)))


def _largest_of(bias: Array) -> int:
    return int(np.abs(bias.astype(np.int64)).max(initial=0))


def _as_floats(bias: Array, *, dtype: str) -> Array:
    return bias.astype(dtype)


def _sum_as_array(weight: Array, *, zero_points: tuple[int, ...], axis: int, kept: int) -> Array:
    return np.array(_sum_of_magnitudes(weight, zero_points=zero_points, axis=axis, kept=kept))


def lower_convolution(emitter: Emitter, operation: Operation) -> None:
    """CONV_2D of quantized operands."""
    product, weight = _Product(emitter, operation), operation.inputs[1]
    dimensions = product.types[1].dimensions
    group: Any = operation.attributes["group"]
    parameters = window_parameters(operation, dimensions[2:])
    kernel = convolution_kernel(dimensions, group, Window(**parameters))
    if emitter.is_constant(weight):
        product.weigh(emitter.constant(weight), 0)
        packed = emitter.add_constant(pack_constant_filter(kernel, product.weight(), group))
    else:
        product.count(prod(dimensions[1:]))
        packed = emit_filter(emitter, kernel, product.factor(1, emitter.tensor(weight)), group)
    inputs = [product.factor(0, image_of(emitter, operation.inputs[0])), packed, *product.bias()]
    sums = product.sums(kernel, inputs, image_type(emitter, operation.outputs[0]).dimensions, parameters)
    set_image(emitter, operation.outputs[0], product.finished(sums))


def lower_fully_connected(emitter: Emitter, operation: Operation) -> None:
    """FULLY_CONNECTED of quantized operands."""
    product = _Product(emitter, operation)
    if emitter.is_constant(operation.inputs[1]):
        product.weigh(emitter.constant(operation.inputs[1]), 0)
        weight = emitter.add_constant(product.weight())
    else:
        product.count(product.types[1].dimensions[1])
        weight = product.factor(1, emitter.tensor(operation.inputs[1]))
    inputs = [product.factor(0, emitter.tensor(operation.inputs[0])), weight, *product.bias()]
    sums = product.sums("fully_connected", inputs, product.result.dimensions)
    emitter.assign(operation.outputs[0], product.finished(sums))


def lower_matmul(emitter: Emitter, operation: Operation) -> None:
    """MAT_MUL of quantized operands."""
    product = _Product(emitter, operation)
    names = ("transpose_x", "transpose_y")
    parameters: dict[str, Any] = {name: operation.attributes[name] for name in names}
    constant = emitter.is_constant(operation.inputs[1])
    if constant and product.types[1].rank == 2:
        product.weigh(emitter.constant(operation.inputs[1]), -2 if parameters["transpose_y"] else -1)
    else:
        first = product.types[0].dimensions
        product.count(first[-2] if parameters["transpose_x"] and len(first) > 1 else first[-1])
    x = product.factor(0, emitter.tensor(operation.inputs[0]))
    second = operation.inputs[1]
    y = emitter.add_constant(product.weight()) if constant else product.factor(1, emitter.tensor(second))
    sums = product.sums("matmul", (x, y), product.result.dimensions, parameters)
    emitter.assign(operation.outputs[0], product.finished(sums))


_VALUES = 256


def by_table(plain: Lower) -> Lower:
    """A look-up where input and result are quantized, else `plain`."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        operands = emitter.model.operands
        source, result = operands[operation.inputs[0]].type, operands[operation.outputs[0]].type
        if source.quantization is None or result.quantization is None:
            plain(emitter, operation)
            return
        reals = _computed(plain, operation, _reals(source))
        inputs = (emitter.tensor(operation.inputs[0]), emitter.add_constant(_integers(reals, result)))
        (output,) = emitter.emit("look_up", inputs, (emitter.result_type(operation.outputs[0]),))
        emitter.assign(operation.outputs[0], output)

    return lower


def _reals(type_: OperandType) -> Array:
    """What every integer stands for, in the order of their bits."""
    quantization = quantization_of(type_)
    integers = np.arange(_VALUES, dtype=np.uint8).view(type_.dtype.value).astype(np.int32)
    reals: Array = (integers - quantization.zero_point[0]).astype(np.float32) * np.float32(quantization.scale[0])
    return reals


def _integers(reals: Array, type_: OperandType) -> Array:
    quantization = quantization_of(type_)
    integers = np.empty(reals.shape, type_.dtype.value)
    scale, zero_point = (np.array(values, np.float32) for values in (quantization.scale, quantization.zero_point))
    minimum, maximum = integer_range(type_.dtype)
    to_integers(integers, reals, scale, zero_point, combine=np.divide, axis=-1, minimum=minimum, maximum=maximum)
    return integers


def _computed(plain: Lower, operation: Operation, reals: Array) -> Array:
    """What the device's own kernels make of `reals`."""
    builder = ModelBuilder()
    input_operand = builder.add_input("x", OperandType(DataType.FLOAT32, reals.shape))
    model = builder.finish(builder.add_operation(operation.type, (input_operand,), operation.attributes))
    emitter = Emitter(model, USUAL)
    plain(emitter, model.operations[0])
    graph = emitter.finish()
    arrays = [np.empty(tensor.type.dimensions, tensor.type.dtype) for tensor in graph.tensors]
    arrays[graph.inputs[0]] = reals
    for instruction in graph.instructions:
        bind(instruction, arrays)()
    return arrays[graph.outputs[0]]
