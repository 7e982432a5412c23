"""ONNX's own DynamicQuantizeLinear, MatMulInteger and ConvInteger, written down in float32, in which they are exact.

float32 has all integers up to 2^24. Where sums of products may be larger, what is summed over is cut into parts, whose
sums are added up in int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from nnadapter.ir.operand import Array
from nnadapter.onnx.body import BodyBuilder
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason

OLDEST_INTEGER_OPSET = 11
"""The oldest opset in which they can be written down: Clip has its bounds as inputs, and Round is there."""
_LARGEST = 255
"""The largest difference of two integers of 8 bits, and as many steps as these have."""
_EXACT = 2**24
_OLDEST_QUANTIZED = 13
"""The oldest opset whose DequantizeLinear is written."""
_SPLIT_INPUT = 13
"""The opset since which Split gets its sizes as an input."""


def dynamic_quantize_linear_body(body: BodyBuilder) -> Sequence[str]:
    """The range of the input with 0 in it, in 255 steps; where all is 0 a step is 1, as in ONNX Runtime.

    What rounds is not QuantizeLinear, which devices do in ways of their own.

    Source: ONNX DynamicQuantizeLinear-11.
    """
    zero, unit_scale, steps = (body.constant(value, "float32") for value in (0, 1, _LARGEST))
    x = body.input(0)
    numbers = body.reshape(x, -1)
    low = body.add("Min", body.add("ReduceMin", numbers, keepdims=0), zero)
    high = body.add("Max", body.add("ReduceMax", numbers, keepdims=0), zero)
    width = body.add("Sub", high, low)
    scale = body.add("Where", body.add("Equal", width, zero), unit_scale, body.add("Div", width, steps))
    below = body.add("Sub", zero, body.add("Div", low, scale))
    point = body.add("Round", body.add("Clip", below, zero, steps))
    moved = body.add("Add", body.add("Round", body.add("Div", x, scale)), point)
    clipped = body.add("Clip", moved, zero, steps)
    # These are integers already: a step of 1 changes none, and shows a device that they are.
    is_shown = body.opset >= _OLDEST_QUANTIZED and body.inputs.rank(0)
    y = (
        body.add("QuantizeLinear", clipped, unit_scale, body.constant(0, "uint8"))
        if is_shown
        else body.cast(clipped, "uint8")
    )
    return [y, scale, body.cast(point, "uint8")]


def mat_mul_integer_body(body: BodyBuilder) -> Sequence[str]:
    """Zero points of A are one for all or one per row, of B one per column. Source: ONNX MatMulInteger-10."""
    rank, summed = body.inputs.rank(0), max(body.inputs.rank(1) - 2, 0)
    if _is_quantized(body):
        return [_quantized_product(body)]
    a, b = _centered(body, 0, (-1, 1)), _centered(body, 1, (-1,))
    if _is_known(body):
        weights = np.moveaxis(_magnitudes(body, (-1,)), summed, 0)
    else:
        weights = _unknown(body, body.inputs.width(1, summed) or body.inputs.width(0), 1)
    sizes = _parts(body, weights)
    pairs = zip(_cut(body, a, rank - 1, sizes), _cut(body, b, summed, sizes), strict=True)
    return [_sum(body, [body.add("MatMul", *pair) for pair in pairs])]


def _is_quantized(body: BodyBuilder) -> bool:
    """Whether it is what quantize_dynamic makes of a Linear: by a known matrix of int8 whose zero point is 0."""
    if body.opset < _OLDEST_QUANTIZED or not _is_known(body) or (body.input(3) and body.inputs.contents(3).any()):
        return False
    is_one = not body.input(2) or body.inputs.rank(2) == 0 or (body.inputs.rank(2) == 1 and body.inputs.width(2) == 1)
    ranks, dtypes = (body.inputs.rank(0), body.inputs.rank(1)), (body.inputs.dtype(0), body.inputs.dtype(1))
    return is_one and min(ranks) > 1 and ranks[1] == 2 and dtypes == ("uint8", "int8")


def _quantized_product(body: BodyBuilder) -> str:
    """The product of both without the zero point of A, less that times the sums of the columns of B.

    So it reads dequantized values of scale 1, which devices multiply in integers.
    """
    weights = body.inputs.contents(1).astype(np.int16)
    sizes = _parts(body, np.abs(weights))
    unit_scale, point = body.constant(1, "float32"), body.cast(body.input(2), "float32") if body.input(2) else ""
    first, second = _cut(body, body.input(0), body.inputs.rank(0) - 1, sizes), _cut(body, body.input(1), 0, sizes)
    sums = []
    for a, b, part in zip(first, second, np.split(weights, np.cumsum(sizes)[:-1]), strict=True):
        product = body.add(
            "MatMul", body.add("DequantizeLinear", a, unit_scale), body.add("DequantizeLinear", b, unit_scale)
        )
        columns = body.constant(part.sum(axis=0, dtype=np.int64), "float32")
        sums.append(body.add("Sub", product, body.add("Mul", point, columns)) if point else product)
    return _sum(body, sums)


def conv_integer_body(body: BodyBuilder) -> Sequence[str]:
    """What lies outside of the picture is the zero point of x. Source: ONNX ConvInteger-10."""
    along = (-1, *(1,) * (body.inputs.rank(1) - 1))
    pixels = tuple(range(2, len(along)))
    x, filters = _centered(body, 0, along), _centered(body, 1, along)
    if _is_known(body):
        weights = _magnitudes(body, along).sum(axis=pixels, dtype=np.int64).T
    else:
        window = [body.inputs.width(1, axis) for axis in pixels]
        weights = _unknown(body, body.inputs.width(1, 1), None if None in window else prod(filter(None, window)))
    sizes = _parts(body, weights)
    if len(sizes) > 1 and body.node.integer("group", 1) > 1:
        raise body.unsupported("group", "is above 1 where sums of products may be above 2^24")
    pairs = zip(_cut(body, x, 1, sizes), _cut(body, filters, 1, sizes), strict=True)
    return [_sum(body, [body.add("Conv", *pair, **body.node.attributes) for pair in pairs])]


def _centered(body: BodyBuilder, position: int, along: tuple[int, ...]) -> str:
    """One of two inputs less its zero point; if that is several numbers in a row, they run along a shape."""
    numbers, point = body.cast(body.input(position), "float32"), position + 2
    if not body.input(point) or (body.inputs.knows(point) and not body.inputs.contents(point).any()):
        return numbers
    points = body.cast(body.input(point), "float32")
    if body.inputs.rank(point) == 1 and body.inputs.width(point) != 1 and len(along) > 1:
        points = body.reshape(points, *along)
    return body.add("Sub", numbers, points)


def _is_known(body: BodyBuilder) -> bool:
    """Whether the second input and its zero point are known."""
    return body.inputs.knows(1) and (not body.input(3) or body.inputs.knows(3))


def _magnitudes(body: BodyBuilder, along: tuple[int, ...]) -> Array:
    """The second input less its zero point, without the sign."""
    weights = body.inputs.contents(1).astype(np.int16)
    points = body.inputs.contents(3).astype(np.int16) if body.input(3) else np.zeros((), np.int16)
    magnitudes: Array = np.abs(weights - (points.reshape(along) if points.ndim == 1 and points.size > 1 else points))
    return magnitudes


def _unknown(body: BodyBuilder, summed: int | None, window: int | None) -> Array:
    """The largest magnitudes that there can be."""
    if summed is None or window is None:
        problem = f"how many products {body.node.op_type} sums is not known, nor what it multiplies by"
        raise Refusal(Reason.NOT_CONSTANT, problem)
    return np.full((summed, 1), _LARGEST * window)


def _parts(body: BodyBuilder, weights: Array) -> list[int]:
    """The sizes of the parts of what is summed over, the first axis of `weights`, whose sums float32 has exactly."""
    for count in range(1, len(weights) + 1):
        parts = np.array_split(weights, count)
        if all(part.sum(axis=0, dtype=np.int64).max(initial=0) * _LARGEST <= _EXACT for part in parts):
            return [len(part) for part in parts]
    raise body.unsupported("kernel_shape", "has so many pixels that sums over one channel may be above 2^24")


def _cut(body: BodyBuilder, name: str, axis: int, sizes: list[int]) -> Sequence[str]:
    if len(sizes) == 1:
        return [name]
    if body.opset < _SPLIT_INPUT:
        return body.add_several("Split", [name], len(sizes), axis=axis, split=sizes)
    return body.add_several("Split", [name, body.constant(sizes)], len(sizes), axis=axis)


def _sum(body: BodyBuilder, parts: Sequence[str]) -> str:
    total, *addends = (body.cast(part, "int32") for part in parts)
    for part in addends:
        total = body.add("Add", total, part)
    return total
