"""Predicates for nodes that OpenVINO may compute wrongly; `verdicts.py` has the table.

The engine moves DequantizeLinear past its readers, so neighbors of quantized values matter.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import onnx
from onnx import numpy_helper

from nnadapter.drivers.openvino.layout_workarounds import preserves_shape
from nnadapter.drivers.openvino.operators import FLOATS, QUANTIZING, name_set
from nnadapter.ir.operand import Array
from nnadapter.onnx.parts import Parts
from nnadapter.records import dataclass


class DynamicSizeError(Exception):
    """A decision depends on a dynamic size; internal to this package."""


def _raise_dynamic_size(*_: object) -> Any:
    raise DynamicSizeError


@dataclass(frozen=True, slots=True, eq=False)
class DynamicSize:
    """Dynamic dimension.

    Any use of its value raises DynamicSizeError, except comparison with a dimension of the same name.
    """

    name: str
    """Equal names mean equal dimensions."""

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, DynamicSize) and bool(self.name) and other.name == self.name) or _raise_dynamic_size()

    __hash__ = __bool__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = _raise_dynamic_size
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __rmod__ = _raise_dynamic_size


@dataclass(frozen=True, slots=True)
class Form:
    """Node with its attributes and values; shapes are static, or dynamic with a known rank."""

    node: onnx.NodeProto
    attributes: Mapping[str, Any]
    parts: Parts
    sizes: Collection[str]
    """Names of values computed from dynamic shapes."""

    @staticmethod
    def of(node: onnx.NodeProto, parts: Parts, sizes: Collection[str] = ()) -> Form:
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        return Form(node, attributes, parts, sizes)

    @property
    def opset(self) -> int:
        return self.parts.opset

    @property
    def has_dynamic_shapes(self) -> bool:
        names = filter(None, (*self.node.input, *self.node.output))
        return any(isinstance(size, DynamicSize) for name in names for size in self._shape(name))

    @property
    def output_shape(self) -> tuple[Any, ...]:
        return self._shape(self.node.output[0])

    @property
    def scales(self) -> Sequence[float]:
        position = 2 if self.node.op_type == "Resize" and self.opset > 10 else 1
        if self.has(position) and not self.is_constant(position):
            raise DynamicSizeError
        if self.has(position):
            return list(map(float, numpy_helper.to_array(self.parts.constants[self.node.input[position]])))
        return list(self.attribute("scales", []))

    def attribute(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)

    def has(self, position: int) -> bool:
        return len(self.node.input) > position and bool(self.node.input[position])

    def is_constant(self, position: int) -> bool:
        return self.has(position) and self.node.input[position] in self.parts.constants

    def constant(self, *positions: int) -> bool:
        """Check that every input at these positions is absent, constant, or computed from dynamic shapes."""
        return all(
            not self.has(position) or self.is_constant(position) or self.node.input[position] in self.sizes
            for position in positions
        )

    def shape(self, position: int) -> tuple[Any, ...]:
        return self._shape(self.node.input[position])

    def dtype(self, position: int) -> str | None:
        value = self.parts.value(self.node.input[position])
        return value.dtype if value else None

    def per_axis(self, name: str, default: int = 1) -> Sequence[int]:
        return list(self.attribute(name, [])) or [default] * (len(self.shape(0)) - 2)

    def padding(self) -> Sequence[int]:
        rank = len(self.shape(0)) - 2
        pads = list(self.attribute("pads", [])) or [0] * 2 * rank
        return list(map(sum, zip(pads[:rank], pads[rank:], strict=True)))

    def _shape(self, name: str) -> tuple[Any, ...]:
        value = self.parts.value(name)
        shape: Sequence[Any] = (value.shape if value else None) or ()
        return tuple(size if isinstance(size, int) else DynamicSize(size or "") for size in shape)


def makes_part_of_pixel(form: Form) -> bool:
    """Check whether Resize scales a dimension to a fractional number of pixels before rounding."""
    shape = form.shape(0)
    axes = form.attribute("axes", range(len(shape)))
    scaled = ((scale, shape[axis]) for axis, scale in zip(axes, form.scales, strict=False))
    return any(scale % 1 and round(scale * size, 4) % 1 for scale, size in scaled)


def changes_channels(form: Form) -> bool:
    """Check whether Resize changes the batch size or the number of channels."""
    if len(form.shape(0)) < 4:
        return False
    pairs = zip(form.shape(0)[:2], form.output_shape[:2], strict=True)
    return any(
        output_size != size for size, output_size in pairs if isinstance(size, int) and isinstance(output_size, int)
    )


def wide_strides(form: Form) -> bool:
    """Check for `SAME` padding with dilations, or with strides wider than the window."""
    windows = zip(form.per_axis("kernel_shape"), form.per_axis("strides"), form.per_axis("dilations"), strict=True)
    return bool(form.attribute("auto_pad", b"").startswith(b"SAME")) and any(
        stride > _extent(size, dilation) or _extent(size, dilation) > size for size, stride, dilation in windows
    )


def overhanging(form: Form) -> bool:
    """Check for an average pool that counts padding, with a last window that extends beyond the padding."""
    if not (form.attribute("ceil_mode", 0) and form.attribute("count_include_pad", 0)):
        return False
    sizes = form.shape(0)[2:]
    padding = form.padding() if form.attribute("auto_pad", b"NOTSET") == b"NOTSET" else [0] * len(sizes)
    windows = map(_extent, form.per_axis("kernel_shape"), form.per_axis("dilations"))
    strides = form.per_axis("strides")
    return any(
        (size + pad - window) % step for size, pad, window, step in zip(sizes, padding, windows, strides, strict=True)
    )


def pads_whole_windows(form: Form) -> bool:
    """Check for a convolution with a window that may lie completely in the padding."""
    if form.attribute("auto_pad", b"NOTSET") != b"NOTSET":
        return True
    windows = map(_extent, form.shape(1)[2:], form.per_axis("dilations"))
    return any(pad >= window for pad, window in zip(form.padding(), windows, strict=True))


def padding_to_shape(form: Form) -> bool:
    """Check whether the engine computes a ConvTranspose with this `output_shape` wrongly."""
    output_shape = form.attribute("output_shape", [])
    if not output_shape:
        return False
    windows = map(_extent, form.shape(1)[2:], form.per_axis("dilations"))
    unpadded_shape = [
        step * (size - 1) + more + window
        for size, step, more, window in zip(
            form.shape(0)[2:], form.per_axis("strides"), form.per_axis("output_padding", 0), windows, strict=True
        )
    ]
    cut = [size - want for size, want in zip(unpadded_shape, output_shape, strict=True)]
    if form.attribute("auto_pad", b"") == b"SAME_UPPER" and any(excess % 2 for excess in cut):
        return True
    return any(excess < 0 for excess in cut) or (form.attribute("group", 1) > 1 and any(cut))


def single_column(form: Form) -> bool:
    """Check for a one-channel convolution with one output column, a last stride over 1 and an earlier stride of 1."""
    *outer_strides, last = form.per_axis("strides")
    strides = last > 1 and 1 in outer_strides and form.shape(1)[1] * form.attribute("group", 1) == 1
    return bool(strides and form.output_shape[-1] == 1)


def padded_pixels(form: Form) -> bool:
    """Check for a convolution by a kernel of one pixel, with strides and padding."""
    pads = any(form.attribute("pads", [])) or form.attribute("auto_pad", b"").startswith(b"SAME")
    return bool(pads and max(form.per_axis("strides")) > 1 and set(form.shape(1)[2:]) == {1})


def other_functions_backwards(form: Form) -> bool:
    """Check whether the directions of a recurrent op have different activation functions."""
    lists = [form.attribute(f"activation{name}", []) for name in ("s", "_alpha", "_beta")]
    both = form.attribute("direction", b"forward") == b"bidirectional"
    return both and any(list(values[: len(values) // 2]) != list(values[len(values) // 2 :]) for values in lists)


def is_crossed(form: Form) -> bool:
    """Check for a Softmax of an old opset, over several axes together."""
    shape, axis = form.shape(0), form.attribute("axis", 1)
    if form.opset < 11:
        return len(shape) == 1 and axis == 1
    return form.opset < 13 and any(size > 1 for size in shape[axis:][1:])


def swaps_alike(form: Form) -> bool:
    """Check for a Transpose of integers or booleans that moves dimensions without changing the shape."""
    if form.has_dynamic_shapes or form.dtype(0) in FLOATS:
        return False
    shape = form.shape(0)
    order = list(form.attribute("perm", range(len(shape))[::-1]))
    return len(order) == len(shape) and preserves_shape(shape, order)  # otherwise the rank is unknown


def is_read_plainly_too(form: Form) -> bool:
    """Check for a Gemm that transposes weights (`transB`) that other nodes read, too."""
    name = form.node.input[1]
    return bool(form.attribute("transB", 0)) and name in form.parts.weights and len(form.parts.readers[name]) > 1


def is_spread_over_weights(form: Form) -> bool:
    """Check for a MatMul that broadcasts its first input over a stack of constant matrices."""
    factor, weights = form.shape(0), form.shape(1)
    if form.node.input[1] not in form.parts.weights or len(weights) < 3 or len(factor) > 3:
        return False
    stack = factor[:-2]
    is_alike = bool(stack) and isinstance(stack[-1], int) and stack[-1] == weights[-3]
    return prod(weights[:-2]) > 1 and not is_alike


def is_crosswise(form: Form) -> bool:
    """Check for an empty input, or for inputs with dynamic dimensions at different axes counted from the end."""
    shapes = [form.shape(position) for position in range(len(form.node.input)) if form.has(position)]
    axes = [{len(shape) - at for at, size in enumerate(shape) if isinstance(size, DynamicSize)} for shape in shapes]
    opened = [dynamic_axes for dynamic_axes in axes if dynamic_axes]
    empty = any(not isinstance(size, DynamicSize) and size == 0 for shape in shapes for size in shape)
    return empty or any(dynamic_axes != opened[0] for dynamic_axes in opened)


def is_filled(form: Form) -> bool:
    """Check for an input that ConstantOfShape or Expand computes.

    The engine ignores the expansion, so a dimension of 0 becomes 1.
    """
    return any(_made_by(form, name) in {"ConstantOfShape", "Expand"} for name in form.node.input)


def is_plain_einsum(form: Form) -> bool:
    """Check for an Einsum that returns its input unchanged."""
    terms, result = _equation(form)
    return terms == [result]


def lone_labels(form: Form) -> Sequence[str]:
    """Return the terms of an Einsum with a label that occurs neither in other terms nor in the result."""
    terms, result = _equation(form)
    everything = "".join(terms) + result
    return [term for term in terms if any(everything.count(label) == term.count(label) for label in term)]


def _made_by(form: Form, name: str) -> str:
    """Return the op type that produces a value, skipping Identity and Dropout; "" for an input."""
    maker = form.parts.makers.get(name)
    while maker is not None and maker.op_type in {"Identity", "Dropout"}:
        maker = form.parts.makers.get(maker.input[0])
    return "" if maker is None else str(maker.op_type)


def _extent(size: int, dilation: int) -> int:
    return (size - 1) * dilation + 1


def _equation(form: Form) -> tuple[list[str], str]:
    terms, arrow, result = form.attribute("equation", b"").decode().replace(" ", "").partition("->")
    if not arrow:
        labels = terms.replace(",", "").replace(".", "")
        once = "".join(sorted(label for label in labels if labels.count(label) == 1))
        result = ("..." if "..." in terms else "") + once
    return terms.split(","), result


_WINDOWED = name_set("Conv ConvTranspose")
_SCALED_AXES: Mapping[str, Mapping[int, int]] = {
    "Conv": {1: 0, 2: 0},
    "ConvTranspose": {1: 1, 2: 0},
    "MatMul": {1: 1},
    "Gemm": {1: 1, 2: 0},
    "Gather": {0: 0},
}
"""Op type -> position of a constant input -> axis along which the engine supports several scales."""
_ANY_AXIS = name_set("Add Sub Mul")


def is_beside_quantized(form: Form) -> bool:
    """Check whether the model contains QuantizeLinear or DequantizeLinear."""
    return not QUANTIZING.isdisjoint(form.parts.op_types)


def has_scales_elsewhere(form: Form) -> bool:
    """Check for a weight with scales per block, or with scales along an axis that one reader does not support."""
    if not _is_weight(form) or math.prod(form.shape(1)) == 1:
        return False
    if len(form.shape(1)) != 1 or form.attribute("block_size", 0):
        return True
    rank = len(form.shape(0))
    return not _may_be_scaled(form, form.node.output[0], form.attribute("axis", 1) % rank, rank)


def _may_be_scaled(form: Form, name: str, axis: int, rank: int) -> bool:
    return all(
        _takes(form, reader, position, axis, rank)
        for reader in form.parts.readers.get(name, ())
        for position, read in enumerate(reader.input)
        if read == name
    )


def _takes(form: Form, reader: onnx.NodeProto, position: int, axis: int, rank: int) -> bool:
    if reader.op_type == "Transpose" and rank == 2:
        order = next((list(attribute.ints) for attribute in reader.attribute if attribute.name == "perm"), [1, 0])
        return _may_be_scaled(form, reader.output[0], order.index(axis), rank)
    if reader.op_type in _ANY_AXIS:
        return True
    nonzero_attributes = {attribute.name for attribute in reader.attribute if attribute.i}
    if (reader.op_type == "MatMul" and rank != 2) or (reader.op_type == "Gather" and "axis" in nonzero_attributes):
        return False
    is_transposed = reader.op_type == "Gemm" and position == 1 and "transB" in nonzero_attributes
    return axis == (0 if is_transposed else _SCALED_AXES.get(reader.op_type, {}).get(position))


def has_unsigned_filter(form: Form) -> bool:
    """Check for a uint8 convolution filter with zero point 0."""
    if not _is_weight(form) or form.dtype(0) != "uint8":
        return False
    readers = form.parts.readers.get(form.node.output[0], ())
    is_filter = any(reader.op_type in _WINDOWED and form.node.output[0] in reader.input[1:2] for reader in readers)
    return is_filter and not (form.has(2) and _points(form).any())


def _is_weight(form: Form) -> bool:
    return form.node.input[0] in form.parts.weights


def _points(form: Form) -> Array:
    return numpy_helper.to_array(form.parts.constants[form.node.input[2]])
