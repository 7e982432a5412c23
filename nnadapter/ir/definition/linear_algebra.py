"""Reference: matrix products, determinants, triangles, and Fourier transforms."""

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
    each = np.unpackbits(packed, axis=-1, bitorder="little").reshape(*packed.shape[:-1], count, bits)
    return each @ (1 << np.arange(bits))


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
    """Compute with numpy's einsum; 4-bit integers are widened, as it does not support them."""
    return np.einsum(equation, *(x.astype(np.int64) if x.dtype.name in ("int4", "uint4") else x for x in inputs))


def _waves(length: int, sign: int) -> Any:
    return np.exp(sign * 2j * np.pi * np.outer(np.arange(length), np.arange(length)) / length)


def _dft(x: Array, axis: int, length: int, inverse: bool, onesided: bool) -> Array:
    numbers = np.moveaxis(x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0), axis, -1)
    full = np.zeros((*numbers.shape[:-1], length), np.complex128)
    kept = min(length, numbers.shape[-1])
    full[..., :kept] = numbers[..., :kept]
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
    """Return determinants: by Laplace expansion, exact for integers, up to 4 x 4; by elimination above."""
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
"""Operation type -> function over an array namespace xp, numpy or jax.numpy."""

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "FULLY_CONNECTED": _fully_connected,
    "MAT_MUL_N_BITS": _mat_mul_n_bits,
    "EINSUM": _einsum,
    "DFT": _dft,
    "STFT": _stft,
}

DOCS = """\
# *
bias: [N]; none adds nothing.
# FULLY_CONNECTED: A layer of a network: rows of numbers times a matrix of weights.
| output[…, n] = activation(bias[n] + sum over k of input[…, k] * weight[n, k])
input: […, K]: any leading axes, which are kept.
weight: [N, K]: a row for every output, as PyTorch's Linear and Gemm with transB have it.
-> output: […, N]. The data type of `input`.
- The weight is [N, K], not [K, N].
- NNAPI's flattens leading axes to one; this one keeps them.
- Quantized: zero points are subtracted first; the weight may be quantized along axis 0. Without a quantized result, the
  sums come out in int32, and no fuse code applies.
- matmul_to_fully_connected makes it of MAT_MUL with a constant matrix.
FLOPs: 2 * output elements * K, 1 more for each with a bias, and the activation's steps
example: [[1.0, 2.0]], [[1.0, 0.0], [0.0, 1.0], [1.0, -2.0]], [0.0, 10.0, 0.0], fuse_code='relu'
# MAT_MUL: A product of matrices, or of stacks of them, as numpy.matmul.
| output[…, i, j] = activation(sum over k of x[…, i, k] * y[…, k, j])
x: […, M, K], or [K]; [M, K] is read as [K, M] with transpose_x.
y: […, K, N], or [K].
transpose_x: True: the last two axes of x change places before.
transpose_y: True: the last two axes of y change places before: it is […, N, K].
-> output: […, M, N], leading axes broadcast. The data type of `x`.
- A vector on the left is a row, one on the right a column; that axis of 1 is not in the result. Two vectors give a
  scalar. Vectors cannot be transposed.
- Leading axes broadcast, the last two do not.
- Integers wrap around in their own data type.
- On integers, fuse_code may be `none`, `relu` or `clip` alone; limits of `clip` are taken as CLIP takes them.
- Quantized: zero points are subtracted first; y may be quantized along its output axis. Without a quantized result, the
  sums come out in int32, and no fuse code applies.
- fuse_attention makes ATTENTION of two of them with a SOFTMAX between.
FLOPs: 2 * output elements * K, and the activation's steps
example: counting(2, 2), [[1.0, 0.0], [1.0, -1.0]], transpose_y=True
# MAT_MUL_N_BITS: FULLY_CONNECTED with a weight of few bits that stays packed, in blocks with a scale and a zero point.
| W[n, k] = (integer[n, k] - zero_point[n, b]) * scale[n, b] with b = floor(k / block_size)
| integer[n, k] = floor(weight[n, b, floor(p * bits / 8)] / 2^((p * bits) mod 8)) mod 2^bits with p = k mod block_size
| output[…, n] = bias[n] + sum over k of x[…, k] * W[n, k]
x: […, K]: any leading axes, which are kept.
weight: [N, blocks, block_size * bits / 8] with blocks = ceil(K / block_size); unsigned integers, the first one in the
  lowest bits of a byte.
scale: [N, blocks].
zero_point: uint8: [N, ceil(blocks * bits / 8)], packed as the weight is. Floating-point: [N, blocks]. None: 2^(bits -
  1) everywhere.
bits: Of an integer: 2, 4 or 8.
block_size: Integers in a block; they fill whole bytes.
-> output: […, N]. The data type of `x`.
- K need not fill the last block: what lies behind K is not read.
- The zero point of 4 bits that is left out is 8, not 0.
- With 8 bits the integers are unsigned, too.
- Rows of packed zero points begin at a byte of their own.
- It is no quantized operation: operands have no quantization, and x is floating-point.
FLOPs: 2 * output elements * K, and 1 more for each with a bias
example: [[1.0, 10.0, 100.0]], uint8([[[152], [15]]]), [[0.5, 2.0]], bits=4, block_size=2
# TRILU: A triangle of every matrix; zeros elsewhere.
| upper: output[…, i, j] = input[…, i, j] if j - i >= k, else 0
| lower: output[…, i, j] = input[…, i, j] if j - i <= k, else 0
input: Matrices […, rows, columns].
upper: True: the upper triangle. False: the lower one.
k: Where the triangle ends: 0 the main diagonal, 1 the one above it, -1 the one below.
- The diagonal k itself belongs to either triangle.
- ONNX's k is an input, and here a number.
example: counting(3, 3), upper=False, k=-1
# DETERMINANT: The determinant of every matrix.
| output[…] = det(input[…, :, :])
input: Square matrices […, n, n].
-> output: The data type of `input`; the last two axes go.
- The determinant of a matrix of 0 rows is 1.
FLOPs: floor(2 / 3 * n^3) + n for each matrix
example: counting(2, 2)
# EINSUM: Sums of products, as an equation says them.
| output[result] = sum over all other letters of inputs[0][term 0] * inputs[1][term 1] * …
inputs: One for each term, of one data type.
equation: Terms with commas between them, then `->` and the result: a letter for each axis. `...` stands for leading
  axes. Without `->`, the result is the ellipsis and the letters that occur once, in ASCII's order.
-> output: The inputs' data type; a dimension for each letter of the result.
- A letter twice in one term is the diagonal.
- An axis of size 1 spreads to the size that its letter has elsewhere.
- Spaces mean nothing; upper and lower case differ. A result must not have a letter twice.
- Integers wrap around.
FLOPs: per input but the first: product of its letters' sizes and of those still read of what is before it * (1, and 1
  more if a letter is summed over)
example: counting(2, 2), [10.0, 1.0], equation='ij,j->i'
# DFT: The discrete Fourier transform along an axis, or its inverse.
| forwards: output[k] = sum over n of x[n] * exp(-2i * pi * k * n / length)
| inverse:  output[k] = 1 / length * sum over n of x[n] * exp(2i * pi * k * n / length)
| x: the input along the axis, cut off or filled up with zeros to `length`
input: […, 1] or […, 2]. The last axis has size 1 for real numbers, 2 for complex ones (real part, imaginary part).
axis: The axis that is transformed, from 0 to rank - 2: not the last one.
length: How many elements are transformed, 1 or more.
inverse: True: back, divided by the length.
onesided: Forwards: real numbers in, and of the result only the first floor(length / 2) + 1 elements. Inverse: such
  elements in, real numbers out.
-> output: The data type of `input`. The axis has size `length`, or floor(length / 2) + 1 if one-sided and forwards. The
  last axis has size 2, or 1 if one-sided and inverse.
- `length` is always given; ONNX's optional input has been resolved.
- One-sided inverse: elements behind floor(length / 2) are the conjugates of those before; the imaginary parts of
  element 0, and of the middle one of an even length, count for nothing.
- A one-sided inverse reads at most `length` elements, not floor(length / 2) + 1 exactly: what is missing is 0.
FLOPs: 5 * elements * ceil(log2(length)), the logarithm 1 at least, for `length` elements along the axis
example: counting(1, 4, 1), axis=1, length=4, onesided=True
# STFT: Fourier transforms of overlapping frames of signals.
| output[b, f, k] = sum over n of input[b, f * frame_step + n] * window[n] * exp(-2i * pi * k * n / frame_length)
| frames = floor((length of signal - frame_length) / frame_step) + 1
input: Signals [B, length, 1] or [B, length, 2]. The last axis has size 1 for real numbers, 2 for complex ones (real
  part, imaginary part).
window: [frame_length]; none: ones.
frame_step: Distance of two frames, 1 or more.
frame_length: Elements of a frame; at most those of the signal.
onesided: True: real signals in, and the first floor(frame_length / 2) + 1 elements of each transform.
-> output: [B, frames, frame_length, 2], or [B, frames, floor(frame_length / 2) + 1, 2].
- onesided is false unless given; ONNX's is true.
- A last frame that does not fit whole is left out. Nothing is padded or centered.
FLOPs: as DFT for every frame, and 1 for each element of a frame with a window
example: counting(1, 4, 1), frame_step=2, frame_length=2, onesided=True
"""
"""Documentation, parsed by `documentation`."""
