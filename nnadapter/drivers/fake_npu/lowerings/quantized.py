"""Lowerings of quantized operations: on integers, or by tables of the results for all 256 values of an 8-bit input.

Products of 8- and 16-bit integers use float kernels without rounding errors: sums are float32 (exact to 2^24) or
float64 (to 2^53), depending on the largest possible sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.execution import bind
from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.elementwise import to_integers
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.drivers.fake_npu.limits import USUAL
from nnadapter.drivers.fake_npu.lowerings import images
from nnadapter.drivers.fake_npu.lowerings.direct import Lower
from nnadapter.ir import ABSENT, Array, DataType, ModelBuilder, OperandType, Operation, Quantization
from nnadapter.ir.derived import applied, decided, derived
from nnadapter.ir.operand_checks import integer_range

_EXACT_IN_FLOAT32 = 1 << 24
_VALUES = 256


def _quantization(type_: OperandType) -> Quantization:
    assert type_.quantization is not None
    return type_.quantization


def on_integers(plain: Lower, quantized: Lower) -> Lower:
    """Return a lowering that is `quantized` if the first input is quantized, otherwise `plain`."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        is_quantized = emitter.model.type_at(operation.inputs[0]).quantization is not None
        (quantized if is_quantized else plain)(emitter, operation)

    return lower


def lower_quantize(emitter: Emitter, operation: Operation) -> None:
    """Lower QUANTIZE."""
    type_ = emitter.model.type_at(operation.outputs[0])
    quantization = _quantization(type_)
    minimum, maximum = integer_range(type_.dtype)
    parameters = {"axis": _axis(quantization), "minimum": minimum, "maximum": maximum}
    constants = _constants(emitter, quantization.scale, quantization.zero_point)
    emitter.emit_operation(operation, "quantize", parameters, inputs=[emitter.tensor(operation.inputs[0]), *constants])


def lower_dequantize(emitter: Emitter, operation: Operation) -> None:
    """Lower DEQUANTIZE."""
    quantization = _quantization(emitter.model.type_at(operation.inputs[0]))
    constants = _constants(emitter, quantization.zero_point, quantization.scale)
    inputs = [emitter.tensor(operation.inputs[0]), *constants]
    emitter.emit_operation(operation, "dequantize", {"axis": _axis(quantization)}, inputs=inputs)


def _constants(emitter: Emitter, *values: Sequence[float]) -> list[int]:
    return [emitter.add_constant(np.array(value, np.float32)) for value in values]


def _axis(quantization: Quantization) -> int:
    return -1 if quantization.axis is None else quantization.axis


def _largest(type_: OperandType) -> int:
    smallest, largest = integer_range(type_.dtype)
    return max(max(largest - point, point - smallest) for point in _quantization(type_).zero_point)


def _centered(weight: Array, *, zero_points: tuple[int, ...], axis: int, dtype: str) -> Array:
    shape = [1] * weight.ndim
    if axis >= 0:
        shape[axis] = -1
    points = np.array(zero_points, np.float64).reshape(shape if len(zero_points) > 1 else ())
    return (weight - points).astype(dtype)


def _sum_of_magnitudes(weight: Array, *, zero_points: tuple[int, ...], axis: int, output_axis: int) -> Array:
    centered = np.abs(_centered(weight, zero_points=zero_points, axis=axis, dtype="float64"))
    other_axes = tuple(dimension for dimension in range(weight.ndim) if dimension != output_axis % weight.ndim)
    return np.array(int(centered.sum(axis=other_axes).max(initial=0)))


def _sum_type(most: int) -> str:
    return "float32" if most < _EXACT_IN_FLOAT32 else "float64"


def _sum_type_of(weight: Array, bias: Array | None, *, output_axis: int, largest: int, more: int, **points: Any) -> str:
    sums = int(derived(_sum_of_magnitudes, weight, **points, output_axis=output_axis))
    return _sum_type(sums * largest + (more if bias is None else _largest_of(bias)))


def _largest_of(bias: Array) -> int:
    return int(np.abs(bias.astype(np.int64)).max(initial=0))


def _as_floats(bias: Array, *, dtype: str) -> Array:
    return bias.astype(dtype)


class _Product:
    def __init__(self, emitter: Emitter, operation: Operation, depth: int, output_axis: int | None) -> None:
        """Choose the data type of sums from a constant weight, otherwise from `depth`, the products per sum."""
        operands, inputs = emitter.model.operands, operation.inputs
        self.emitter, self.operation = emitter, operation
        self.types = [operands[index].type for index in inputs if index != ABSENT]
        self.result = operands[operation.outputs[0]].type
        self._bias = inputs[2] if len(inputs) > 2 and inputs[2] != ABSENT else None
        bias = None if self._bias is None or not emitter.is_constant(self._bias) else emitter.constant(self._bias)
        largest, more = _largest(self.types[0]), 0 if self._bias is None or bias is not None else 1 << 31
        if output_axis is not None and emitter.is_constant(inputs[1]):
            sums = {"output_axis": output_axis, "largest": largest, "more": more}
            self.dtype = decided(_sum_type_of, emitter.constant(inputs[1]), bias, **self._points(1), **sums)
        else:
            more = more if bias is None else _largest_of(bias)
            self.dtype = _sum_type(depth * largest * _largest(self.types[1]) + more)

    def _points(self, position: int) -> dict[str, Any]:
        quantization = _quantization(self.types[position])
        return {"zero_points": quantization.zero_point, "axis": _axis(quantization)}

    def bias(self) -> list[int]:
        if self._bias is None:
            return []
        if self.emitter.is_constant(self._bias):
            return [self.emitter.add_constant(applied(_as_floats, self.emitter.constant(self._bias), dtype=self.dtype))]
        tensor = self.emitter.tensor(self._bias)
        result = TensorType(self.dtype, self.emitter.type_of(tensor).dimensions)
        return [*self.emitter.emit("cast", (tensor,), (result,))]

    def second(self) -> Array | int:
        operand = self.operation.inputs[1]
        if not self.emitter.is_constant(operand):
            return self.factor(1, self.emitter.tensor(operand))
        return derived(_centered, self.emitter.constant(operand), **self._points(1), dtype=self.dtype)

    def lower_matrices(self, kernel: str, parameters: Any = None) -> None:
        emitter, second = self.emitter, self.second()
        first = self.factor(0, emitter.tensor(self.operation.inputs[0]))
        inputs = [first, second if isinstance(second, int) else emitter.add_constant(second), *self.bias()]
        emitter.assign(self.operation.outputs[0], self.finished(kernel, inputs, self.result.dimensions, parameters))

    def factor(self, position: int, tensor: int) -> int:
        quantization = _quantization(self.types[position])
        inputs = (tensor, *_constants(self.emitter, quantization.zero_point))
        result = TensorType(self.dtype, self.emitter.type_of(tensor).dimensions)
        return self.emitter.emit("center", inputs, (result,), {"axis": _axis(quantization)})[0]

    def finished(self, kernel: str, inputs: Sequence[int], dimensions: Sequence[int], parameters: Any = None) -> int:
        """Emit a kernel that sums products, and requantize the sums if the result is quantized. Channels are last."""
        sums_type = TensorType(self.dtype, tuple(dimensions))
        (sums,) = self.emitter.emit(kernel, inputs, (sums_type,), parameters)
        if self.result.quantization is None:
            # sums wrap around as int32, so float64 becomes int64 first
            wide = ("int64",) if self.dtype == "float64" else ()
            for dtype in dict.fromkeys((*wide, self.result.dtype.value)):
                (sums,) = self.emitter.emit("cast", (sums,), (sums_type._replace(dtype=dtype),))
            return sums
        # as in ONNX Runtime: float32, in this order
        x, y, result = (np.array(_quantization(type_).scale, np.float32) for type_ in (*self.types[:2], self.result))
        factors: Array = x * y / result
        minimum, maximum = self._bounds()
        axis = len(dimensions) - 1 if factors.size > 1 else -1
        parameters = {"axis": axis, "minimum": minimum, "maximum": maximum}
        constants = self.emitter.add_constant(factors), *_constants(self.emitter, self.result.quantization.zero_point)
        result_type = sums_type._replace(dtype=self.result.dtype.value)
        return self.emitter.emit("requantize", (sums, *constants), (result_type,), parameters)[0]

    def _bounds(self) -> tuple[int, int]:
        attributes: Any = self.operation.attributes
        code, quantization = attributes["fuse_code"], _quantization(self.result)
        bounds = {"none": (-np.inf, np.inf), "relu": (0.0, np.inf), "clip": attributes["fuse_parameters"][:2]}[code]
        moved = np.rint(np.array(bounds, np.float32) / np.float32(quantization.scale[0])) + quantization.zero_point[0]
        low, high = np.clip(moved, *integer_range(self.result.dtype)).tolist()
        return int(low), int(high)


def lower_convolution(emitter: Emitter, operation: Operation) -> None:
    """Lower CONV_2D."""
    dimensions, group = emitter.model.type_at(operation.inputs[1]).dimensions, operation.attributes["group"]
    parameters = images.window_parameters(operation, dimensions[2:])
    kernel = images.convolution_kernel(dimensions, group, Window(**parameters))  # type: ignore[arg-type]
    _lower_images(_Product(emitter, operation, prod(dimensions[1:]), 0), kernel, parameters)


def lower_transposed_convolution(emitter: Emitter, operation: Operation) -> None:
    """Lower CONV_2D_TRANSPOSE."""
    channels, _, *kernel_shape = emitter.model.type_at(operation.inputs[1]).dimensions
    parameters = images.window_parameters(operation, tuple(kernel_shape))
    product = _Product(emitter, operation, channels * prod(kernel_shape), 1)
    _lower_images(product, "transposed_convolution", parameters)


def _lower_images(product: _Product, kernel: str, parameters: Any) -> None:
    emitter, operation = product.emitter, product.operation
    packed = images.pack_filter(emitter, kernel, product.second(), operation.attributes["group"])
    inputs = [product.factor(0, images.image_of(emitter, operation.inputs[0])), packed, *product.bias()]
    result = images.image_type(emitter, operation.outputs[0]).dimensions
    images.set_image(emitter, operation.outputs[0], product.finished(kernel, inputs, result, parameters))


def lower_fully_connected(emitter: Emitter, operation: Operation) -> None:
    """Lower FULLY_CONNECTED."""
    depth = emitter.model.type_at(operation.inputs[1]).dimensions[1]
    _Product(emitter, operation, depth, 0).lower_matrices("fully_connected")


def lower_matmul(emitter: Emitter, operation: Operation) -> None:
    """Lower MAT_MUL."""
    x, y = (emitter.model.type_at(operand) for operand in operation.inputs)
    parameters: dict[str, Any] = {name: operation.attributes[name] for name in ("transpose_x", "transpose_y")}
    depth = x.dimensions[-2 if parameters["transpose_x"] and x.rank > 1 else -1]
    output_axis = (-2 if parameters["transpose_y"] else -1) if y.rank == 2 else None
    _Product(emitter, operation, depth, output_axis).lower_matrices("matmul", parameters)


def by_table(plain: Lower) -> Lower:
    """Return a lowering to a table of results for all inputs if input and result are quantized; otherwise `plain`."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        operands = emitter.model.operands
        source, result = operands[operation.inputs[0]].type, operands[operation.outputs[0]].type
        if source.quantization is None or result.quantization is None:
            plain(emitter, operation)
            return
        table = emitter.add_constant(_quantized(_computed(plain, operation, _reals(source)), result))
        emitter.emit_operation(operation, "look_up", inputs=(emitter.tensor(operation.inputs[0]), table))

    return lower


def _reals(type_: OperandType) -> Array:
    quantization = _quantization(type_)
    integers = np.arange(_VALUES, dtype=np.uint8).view(type_.dtype.value).astype(np.int32)
    reals: Array = (integers - quantization.zero_point[0]).astype(np.float32) * np.float32(quantization.scale[0])
    return reals


def _quantized(reals: Array, type_: OperandType) -> Array:
    quantization, integers = _quantization(type_), np.empty(reals.shape, type_.dtype.value)
    scale, zero_point = (np.array(values, np.float32) for values in (quantization.scale, quantization.zero_point))
    minimum, maximum = integer_range(type_.dtype)
    to_integers(integers, reals, scale, zero_point, combine=np.divide, axis=-1, minimum=minimum, maximum=maximum)
    return integers


def _computed(plain: Lower, operation: Operation, reals: Array) -> Array:
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, reals.shape))
    model = builder.finish(builder.add_operation(operation.type, (x,), operation.attributes))
    emitter = Emitter(model, USUAL)
    plain(emitter, model.operations[0])
    graph = emitter.finish()
    arrays = [np.empty(tensor.type.dimensions, tensor.type.dtype) for tensor in graph.tensors]
    arrays[graph.inputs[0]] = reals
    for instruction in graph.instructions:
        bind(instruction, arrays)()
    return arrays[graph.outputs[0]]
