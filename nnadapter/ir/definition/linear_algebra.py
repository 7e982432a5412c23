"""Reference implementations: matrix products, determinants, triangles, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


def _fully_connected(x: Array, weight: Array, bias: Array | None = None) -> Array:
    return x @ weight.T if bias is None else x @ weight.T + bias


def _integers(packed: Array, bits: int) -> Array:
    """Return the integers in the bytes of the last axis, lowest bits first."""
    count = packed.shape[-1] * 8 // bits
    bit_rows = np.unpackbits(packed, axis=-1, bitorder="little").reshape(*packed.shape[:-1], count, bits)
    return bit_rows @ (1 << np.arange(bits))


def _mat_mul_n_bits(
    x: Array,
    weight: Array,
    scale: Array,
    zero_point: Array | None = None,
    bias: Array | None = None,
    *,
    bits: int,
    block_size: int,
) -> Array:
    integers = _integers(weight, bits)
    if zero_point is None:
        points: Array = np.full(scale.shape, 1 << (bits - 1))
    else:
        points = _integers(zero_point, bits)[:, : scale.shape[1]] if zero_point.dtype == np.uint8 else zero_point
    reals = (integers - points[..., None]) * scale[..., None]
    return _fully_connected(x, reals.reshape(len(weight), prod(reals.shape[1:]))[:, : x.shape[-1]], bias)


_EXPANDED = 4


def _einsum(*inputs: Array, equation: str) -> Any:
    """Compute with numpy's einsum, with 4-bit integers widened, since numpy lacks them."""
    return np.einsum(equation, *(x.astype(np.int64) if x.dtype.name in ("int4", "uint4") else x for x in inputs))


def _waves(length: int, sign: int) -> Any:
    return np.exp(sign * 2j * np.pi * np.outer(np.arange(length), np.arange(length)) / length)


def _dft(x: Array, axis: int, length: int, inverse: bool, onesided: bool) -> Array:
    numbers = np.moveaxis(x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0), axis, -1)
    full = np.zeros((*numbers.shape[:-1], length), np.complex128)
    length_read = min(length, numbers.shape[-1])
    full[..., :length_read] = numbers[..., :length_read]
    if inverse and onesided:  # the other half is the conjugate of the first
        half = length // 2 + 1
        full[..., half:] = np.conj(full[..., 1 : length - half + 1][..., ::-1])
        full[..., 0] = full[..., 0].real
        if length % 2 == 0:
            full[..., length // 2] = full[..., length // 2].real
    result = full @ _waves(length, 1 if inverse else -1) / (length if inverse else 1)
    if onesided and not inverse:
        result = result[..., : length // 2 + 1]
    result = np.moveaxis(result, -1, axis)
    parts = [result.real] if onesided and inverse else [result.real, result.imag]
    return np.stack(parts, -1)


def _stft(x, window=None, *, frame_step, frame_length, onesided):  # type: ignore[no-untyped-def]
    starts = range(0, x.shape[1] - frame_length + 1, frame_step)
    factors = np.ones(frame_length) if window is None else window
    frames = [x[:, start : start + frame_length] * factors[:, None] for start in starts]
    return np.stack([_dft(frame, 1, frame_length, False, onesided) for frame in frames], 1)


def _mat_mul(xp: Any, x: Any, y: Any, transpose_x: bool, transpose_y: bool) -> Any:
    return xp.matmul(x.swapaxes(-1, -2) if transpose_x else x, y.swapaxes(-1, -2) if transpose_y else y)


def _determinant(xp: Any, x: Any) -> Any:
    """Return determinants: up to 4 x 4 by Laplace expansion, exact for integers; larger ones by elimination."""
    size = x.shape[-1]
    if size > _EXPANDED:
        return xp.linalg.det(x)
    if size == 0:
        return xp.ones(x.shape[:-2], x.dtype)
    total = xp.zeros(x.shape[:-2], x.dtype)
    for column in range(size):
        minor = xp.delete(x[..., 1:, :], column, -1)
        total = total + (-1) ** column * x[..., 0, column] * _determinant(xp, minor)
    return total


SHARED: Mapping[str, Callable[..., Any]] = {
    "DETERMINANT": _determinant,
    "MAT_MUL": _mat_mul,
    "TRILU": lambda xp, x, upper, k: xp.triu(x, k) if upper else xp.tril(x, k),
}

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "FULLY_CONNECTED": _fully_connected,
    "MAT_MUL_N_BITS": _mat_mul_n_bits,
    "EINSUM": _einsum,
    "DFT": _dft,
    "STFT": _stft,
}

DOCS = """\
# *
bias: [N]; absent: 0.
# FULLY_CONNECTED: A linear layer: rows times a weight matrix.
| output[…, n] = activation(bias[n] + sum over k of input[…, k] * weight[n, k])
input: […, K] with any leading axes.
weight: [N, K]: a row per output, as in PyTorch's Linear and Gemm with transB.
-> output: […, N]. The data type of `input`.
- The weight is [N, K], not [K, N].
- Leading axes are kept; NNAPI flattens them to one.
- Quantized: zero points are subtracted first; the weight may be quantized along axis 0. Without a quantized result, the
  result is the sums in int32 (int64 with 16 bits), and no fuse code applies.
- The pass matmul_to_fully_connected creates it from MAT_MUL with a constant matrix.
FLOPs: 2 * output elements * K, plus 1 per output element for the bias, plus the activation
example: [[1.0, 2.0]], [[1.0, 0.0], [0.0, 1.0], [1.0, -2.0]], [0.0, 10.0, 0.0], fuse_code='relu'
# MAT_MUL: A product of matrices, or of stacks of matrices, as in numpy.matmul.
| output[…, i, j] = activation(sum over k of x[…, i, k] * y[…, k, j])
x: […, M, K], or [K]; [M, K] is read as [K, M] with transpose_x.
y: […, K, N], or [K].
transpose_x: True: swap the last two axes of x first.
transpose_y: True: swap the last two axes of y first: y is […, N, K].
-> output: […, M, N], leading axes broadcast. The data type of `x`.
- A vector on the left is a row, on the right a column; the added axis is not in the result. Two vectors give a scalar.
  Vectors cannot be transposed.
- Leading axes broadcast, the last two do not.
- Integers wrap around in their own data type.
- Integers allow only the fuse codes `none`, `relu` and `clip`, with limits as in CLIP.
- Quantized: zero points are subtracted first; y may be quantized along its output axis. Without a quantized result, the
  result is the sums in int32 (int64 with 16 bits), and no fuse code applies.
- The pass fuse_attention recognizes ATTENTION in two of them with a SOFTMAX between.
FLOPs: 2 * output elements * K, plus the activation
example: counting(2, 2), [[1.0, 0.0], [1.0, -1.0]], transpose_y=True
# MAT_MUL_N_BITS: FULLY_CONNECTED with a packed weight of few bits, in blocks with a scale and a zero point each.
| W[n, k] = (integer[n, k] - zero_point[n, b]) * scale[n, b] with b = floor(k / block_size)
| integer[n, k] = floor(weight[n, b, floor(p * bits / 8)] / 2^((p * bits) mod 8)) mod 2^bits with p = k mod block_size
| output[…, n] = bias[n] + sum over k of x[…, k] * W[n, k]
x: […, K] with any leading axes.
weight: [N, blocks, block_size * bits / 8] with blocks = ceil(K / block_size); unsigned integers, the first in the
  lowest bits of a byte.
scale: [N, blocks].
zero_point: uint8: [N, ceil(blocks * bits / 8)], packed like the weight. Floating-point: [N, blocks]. Absent: 2^(bits -
  1).
bits: Bits of an integer: 2, 4 or 8.
block_size: Integers per block; they must fill whole bytes.
-> output: […, N]. The data type of `x`.
- K need not fill the last block: elements after K are not read.
- The default zero point for 4 bits is 8, not 0.
- Integers of 8 bits are unsigned, too.
- Each row of packed zero points starts at a new byte.
- Operands have no quantization, and x is floating-point.
FLOPs: 2 * output elements * K, plus 1 per output element for the bias
example: [[1.0, 10.0, 100.0]], uint8([[[152], [15]]]), [[0.5, 2.0]], bits=4, block_size=2
# TRILU: A triangle of every matrix, with zeros elsewhere.
| upper: output[…, i, j] = input[…, i, j] if j - i >= k, else 0
| lower: output[…, i, j] = input[…, i, j] if j - i <= k, else 0
input: Matrices […, rows, columns].
upper: True: the upper triangle. False: the lower one.
k: Diagonal at which the triangle ends: 0 the main one, 1 the one above it, -1 the one below.
- The diagonal k belongs to both triangles.
- k is an attribute here, but an input in ONNX.
example: counting(3, 3), upper=False, k=-1
# DETERMINANT: The determinant of every matrix.
| output[…] = det(input[…, :, :])
input: Square matrices […, n, n].
-> output: The data type of `input`; without the last two axes.
- The determinant of a matrix without rows is 1.
FLOPs: floor(2 / 3 * n^3) + n per matrix
example: counting(2, 2)
# EINSUM: Sums of products, defined by an equation.
| output[result] = sum over all other letters of inputs[0][term 0] * inputs[1][term 1] * …
inputs: One per term, all of one data type.
equation: Terms separated by commas, then `->` and the result, with a letter for each axis. `...` covers leading axes.
  Without `->`, the result is the ellipsis and the letters that occur once, in ASCII order.
-> output: The inputs' data type; a dimension for each letter of the result.
- A letter twice in one term selects the diagonal.
- An axis of size 1 broadcasts to the size of its letter elsewhere.
- Spaces are ignored; letters are case-sensitive. A letter must not occur twice in the result.
- Integers wrap around.
FLOPs: for each input except the first: product of the sizes of its letters and of those still needed from earlier
  inputs * (1, or 2 if a letter is summed over)
example: counting(2, 2), [10.0, 1.0], equation='ij,j->i'
# DFT: The discrete Fourier transform along an axis, or its inverse.
| forwards: output[k] = sum over n of x[n] * exp(-2i * pi * k * n / length)
| inverse:  output[k] = 1 / length * sum over n of x[n] * exp(2i * pi * k * n / length)
| x: the input along the axis, truncated or zero-padded to `length`
input: […, 1] or […, 2]. The last axis has size 1 for real numbers, 2 for complex ones (real part, imaginary part).
axis: The transformed axis, from 0 to rank - 2; not the last one.
length: Number of transformed elements, 1 or more.
inverse: True: the inverse transform, divided by the length.
onesided: Forwards: real input, and only the first floor(length / 2) + 1 elements of the result. Inverse: such elements
  as input, real output.
-> output: The data type of `input`. The axis has size `length`, or floor(length / 2) + 1 if one-sided and forwards. The
  last axis has size 2, or 1 if one-sided and inverse.
- `length` is required; it is an optional input in ONNX.
- One-sided inverse: elements after floor(length / 2) are the conjugates of earlier ones. The imaginary parts of element
  0, and of the middle element for an even length, are ignored.
- A one-sided inverse reads at most `length` elements, and pads missing ones with 0.
FLOPs: 5 * elements * max(1, ceil(log2(length))), with `length` elements along the axis
example: counting(1, 4, 1), axis=1, length=4, onesided=True
# STFT: Fourier transforms of overlapping frames of signals.
| output[b, f, k] = sum over n of input[b, f * frame_step + n] * window[n] * exp(-2i * pi * k * n / frame_length)
| frames = floor((length of signal - frame_length) / frame_step) + 1
input: Signals [B, length, 1] or [B, length, 2]. The last axis has size 1 for real numbers, 2 for complex ones (real
  part, imaginary part).
window: [frame_length]; absent: ones.
frame_step: Distance between two frames, 1 or more.
frame_length: Elements per frame; at most the length of the signal.
onesided: True: real signals, and only the first floor(frame_length / 2) + 1 elements of each transform.
-> output: [B, frames, frame_length, 2], or [B, frames, floor(frame_length / 2) + 1, 2].
- onesided defaults to false, in ONNX to true.
- A last frame that does not fit completely is omitted. Nothing is padded or centered.
FLOPs: as DFT for every frame, plus 1 per element of a frame with a window
example: counting(1, 4, 1), frame_step=2, frame_length=2, onesided=True
"""
