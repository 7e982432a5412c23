"""Matrix products, triangular matrices, determinants, EINSUM and Fourier transforms.

In Fourier transforms, the last axis has size 2 for complex numbers and 1 for real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import DataType, OperandType
from nnadapter.ir.operations.equation import label_sizes, read_equation
from nnadapter.ir.operations.row import (
    Dimensions,
    Row,
    as_first,
    broadcast,
    check_at_least,
    check_axis,
    check_dimensions,
    check_vector,
    family,
)
from nnadapter.ir.operations.windows import FUSED, fusable, fused

row = family(cost="matrix")
PACKED_BITS = (2, 4, 8)
"""Bits of packed integers, which never span two bytes."""


def _fully_connected(first: OperandType, weight: OperandType, bias: OperandType | None = None) -> OperandType:
    if weight.rank != 2:
        raise InvalidModelError(f"weight has dimensions {list(weight.dimensions)}, expected two, [N, K]")
    units, depth = weight.dimensions
    if first.dimensions[-1] != depth:
        raise InvalidModelError(f"the last axis of input has {first.dimensions[-1]} elements, expected {depth}")
    check_vector("bias", bias, units)
    return OperandType(first.dtype, (*first.dimensions[:-1], units))


def _operand(name: str, type_: OperandType, transposed: bool) -> Dimensions:
    dimensions = type_.dimensions
    if not transposed:
        return dimensions
    if len(dimensions) < 2:
        raise InvalidModelError(f"transpose_{name} is True on {name} of rank {len(dimensions)}, expected at least 2")
    return (*dimensions[:-2], dimensions[-1], dimensions[-2])


def _mat_mul(first: OperandType, second: OperandType, transpose_x: bool, transpose_y: bool) -> OperandType:
    if second.rank == 0:
        raise InvalidModelError("y has rank 0, expected rank 1 or more")
    x, y = _operand("x", first, transpose_x), _operand("y", second, transpose_y)
    # As in numpy.matmul, a left vector is a row and a right one a column; the added axis is removed again.
    depth = y[0] if len(y) == 1 else y[-2]
    if x[-1] != depth:
        raise InvalidModelError(f"x {list(x)} and y {list(y)} have inner sizes {x[-1]} and {depth}, expected the same")
    batch = broadcast((x[:-2], y[:-2])) if len(x) > 2 or len(y) > 2 else ()
    return OperandType(first.dtype, (*batch, *x[-2:-1], *(y[-1:] if len(y) > 1 else ())))


def _mat_mul_n_bits(
    x: OperandType,
    weight: OperandType,
    scale: OperandType,
    zero_point: OperandType | None = None,
    bias: OperandType | None = None,
    *,
    bits: int,
    block_size: int,
) -> OperandType:
    if bits not in PACKED_BITS:
        raise InvalidModelError(f"bits is {bits}, expected one of {list(PACKED_BITS)}")
    if block_size < 1 or block_size * bits % 8:
        raise InvalidModelError(f"block_size is {block_size}, expected 1 or more {bits}-bit numbers that fill bytes")
    if weight.rank != 3:
        raise InvalidModelError(f"weight has dimensions {list(weight.dimensions)}, expected three, [N, blocks, bytes]")
    units, blocks = weight.dimensions[0], -(-x.dimensions[-1] // block_size)
    check_dimensions("weight", weight, (units, blocks, block_size * bits // 8))
    check_dimensions("scale", scale, (units, blocks))
    packed = zero_point is not None and zero_point.dtype is DataType.UINT8
    check_dimensions("zero_point", zero_point, (units, -(-blocks * bits // 8) if packed else blocks))
    check_vector("bias", bias, units)
    return OperandType(x.dtype, (*x.dimensions[:-1], units))


def _determinant(first: OperandType) -> OperandType:
    rows, columns = first.dimensions[-2:]
    if rows != columns:
        raise InvalidModelError(f"input {list(first.dimensions)} has matrices of {rows} by {columns}, expected squares")
    return OperandType(first.dtype, first.dimensions[:-2])


def _determinant_flops(outputs: Sequence[OperandType], first: OperandType) -> int:
    size = first.dimensions[-1]
    return outputs[0].size * (2 * size * size * size // 3 + size)


def _einsum(*types: OperandType, equation: str) -> OperandType:
    shapes = [type_.dimensions for type_ in types]
    parsed = read_equation(equation, list(map(len, shapes)))
    sizes = label_sizes(parsed, shapes)
    return OperandType(types[0].dtype, tuple(sizes[label] for label in parsed.result))


def _einsum_flops(outputs: Sequence[OperandType], *types: OperandType, equation: str) -> int:
    """Count products and sums for contraction of pairs from left to right, and of all at once; return the minimum."""
    shapes = [type_.dimensions for type_ in types]
    parsed = read_equation(equation, list(map(len, shapes)))
    sizes = label_sizes(parsed, shapes)
    at_once = (len(types) - 1 + (len(sizes) > len(parsed.result))) * prod(sizes.values())
    remaining_labels, pairwise = parsed.terms[0], 0
    for position, term in enumerate(parsed.terms[1:], 2):
        meeting = dict.fromkeys((*remaining_labels, *term))
        read = {*parsed.result, *(label for later in parsed.terms[position:] for label in later)}
        remaining_labels = tuple(label for label in meeting if label in read)
        pairwise += (1 + (len(remaining_labels) < len(meeting))) * prod(sizes[label] for label in meeting)
    return min(at_once, pairwise) if pairwise else at_once


def _parts(type_: OperandType) -> int:
    parts = type_.dimensions[-1]
    if parts not in (1, 2):
        raise InvalidModelError(f"the last axis of input has {parts} elements, expected 1 (real) or 2 (complex)")
    return parts


def _fourier(first: OperandType, axis: int, length: int, inverse: bool, onesided: bool) -> OperandType:
    check_axis(axis, first.rank - 1)
    parts = _parts(first)
    check_at_least(1, length=(length,))
    if onesided and (parts == 2) is not bool(inverse):
        raise InvalidModelError(
            f"a one-sided transform with inverse {bool(inverse)} got {'complex' if parts == 2 else 'real'} numbers, "
            "expected real ones if inverse is False, complex ones if it is True"
        )
    size = length // 2 + 1 if onesided and not inverse else length
    dimensions = (*first.dimensions[:axis], size, *first.dimensions[axis + 1 : -1])
    return OperandType(first.dtype, (*dimensions, 1 if onesided and inverse else 2))


def _short_time(
    first: OperandType, window: OperandType | None = None, *, frame_step: int, frame_length: int, onesided: bool
) -> OperandType:
    check_at_least(1, frame_step=(frame_step,), frame_length=(frame_length,))
    batch, size, _ = first.dimensions
    if size < frame_length:
        raise InvalidModelError(f"frames have {frame_length} elements, expected at most {size}, those of the signal")
    check_vector("window", window, frame_length)
    if onesided and _parts(first) == 2:
        raise InvalidModelError("a one-sided transform got complex numbers, expected real ones")
    frames, frequencies = (size - frame_length) // frame_step + 1, frame_length // 2 + 1 if onesided else frame_length
    return OperandType(first.dtype, (batch, frames, frequencies, 2))


def _fast_flops(elements: int, length: int) -> int:
    return 5 * elements * max(1, (length - 1).bit_length())


def _fourier_flops(
    outputs: Sequence[OperandType], first: OperandType, axis: int, length: int, **attributes: object
) -> int:
    others = outputs[0].size // (outputs[0].dimensions[axis] * outputs[0].dimensions[-1] or 1)
    return _fast_flops(others * int(length), int(length))


def _short_time_flops(
    outputs: Sequence[OperandType], *types: OperandType | None, frame_length: int, **attributes: object
) -> int:
    batch, frames, _, _ = outputs[0].dimensions
    elements = batch * frames * int(frame_length)
    return _fast_flops(elements, int(frame_length)) + (elements if len(types) > 1 else 0)


ROWS: tuple[Row, ...] = (
    row(
        f"FULLY_CONNECTED(input[1..]: float, weight: float as input, bias?: float as input; {FUSED})",
        fusable(_fully_connected),
        fused(lambda outputs, x, weight, bias=None: outputs[0].size * (2 * weight.dimensions[1] + (bias is not None))),
        "NNAPI FULLY_CONNECTED, with every leading axis kept; ONNX Gemm-13 with transB",
        quantization="product",
    ),
    row(
        "MAT_MUL(x[1..]: number, y: number as x; transpose_x: bool = False, transpose_y: bool = False, " + FUSED + ")",
        fusable(_mat_mul),
        fused(lambda outputs, x, y, transpose_x, transpose_y: 2 * outputs[0].size * _operand("x", x, transpose_x)[-1]),
        "NNADAPTER_MAT_MUL; NNAPI BATCH_MATMUL; ONNX MatMul-13",
        quantization="product",
    ),
    row(
        "MAT_MUL_N_BITS(x[1..]: float, weight: uint8, scale: float as x, zero_point?: float|uint8, "
        "bias?: float as x; bits: int, block_size: int)",
        _mat_mul_n_bits,
        lambda outputs, x, weight, scale, zero_point=None, bias=None, **attributes: (
            outputs[0].size * (2 * x.dimensions[-1] + (bias is not None))
        ),
        "ONNX Runtime MatMulNBits-1: FULLY_CONNECTED whose weight [N, K] is packed in blocks along K, the first "
        "integer in the lowest bits of a byte, each block with a scale and a zero point; absent: 2^(bits - 1)",
    ),
    row(
        "TRILU(input[2..]; upper: bool = True, k: int = 0)",
        as_first,
        0,
        "ONNX Trilu-14: a triangle of each matrix, zeros elsewhere",
        cost="movement",
    ),
    row("DETERMINANT(input[2..]: float)", _determinant, _determinant_flops, "ONNX Det-22"),
    row("EINSUM(*inputs: number as inputs; equation: string)", _einsum, _einsum_flops, "ONNX Einsum-28"),
    row(
        "DFT(input[2..]: float; axis: int, length: int, inverse: bool = False, onesided: bool = False)",
        _fourier,
        _fourier_flops,
        "ONNX DFT-20",
    ),
    row(
        "STFT(input[3]: float, window?: float as input; frame_step: int, frame_length: int, onesided: bool = False)",
        _short_time,
        _short_time_flops,
        "ONNX STFT-17",
    ),
)
