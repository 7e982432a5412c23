"""Matrix products, determinants, triangles, and Fourier transforms."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnadapter.drivers.table_lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.elementwise import FUSED
from nnadapter.drivers.xla.lowerings.numerics import (
    ALL_FLOATS,
    ALL_NUMBERS,
    COMPUTED,
    HELD,
    computes,
    direct,
    moves,
    shared,
)
from nnadapter.ir.named_operation import NamedOperation


def fully_connected(x: Any, weight: Any, bias: Any = None) -> Any:
    """Multiply by the transposed weight, and add a bias."""
    result = jax.lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())))
    return result if bias is None else result + bias


lower_mat_mul = direct(shared("MAT_MUL"), computes, types=ALL_NUMBERS, fuse_codes=FUSED, quantized=True)
lower_fully_connected = direct(
    {"FULLY_CONNECTED": fully_connected}, computes, types=(*ALL_FLOATS, *COMPUTED), fuse_codes=FUSED, quantized=True
)


def _integers(packed: Any, bits: int) -> Any:
    """Unpack integers from the last axis, lowest bits first."""
    bit_values = packed[..., None] >> jnp.arange(8, dtype=jnp.uint8) & 1
    fields = bit_values.reshape(*packed.shape[:-1], -1, bits).astype(jnp.int32)
    return (fields << jnp.arange(bits, dtype=jnp.int32)).sum(-1)


def _mat_mul_n_bits(
    x: Any, weight: Any, scale: Any, zero_point: Any = None, bias: Any = None, *, bits: int, block_size: int
) -> Any:
    integers = _integers(weight, bits)
    if zero_point is None:
        points: Any = 1 << (bits - 1)
    else:
        packed = zero_point.dtype == jnp.uint8
        points = (_integers(zero_point, bits)[:, : scale.shape[1]] if packed else zero_point)[..., None]
    reals = (integers - points).astype(scale.dtype) * scale[..., None]
    return fully_connected(x, reals.reshape(len(weight), -1)[:, : x.shape[-1]].astype(x.dtype), bias)


lower_mat_mul_n_bits = direct({"MAT_MUL_N_BITS": _mat_mul_n_bits}, computes, types=(*ALL_FLOATS, "uint8"))
lower_einsum = direct({"EINSUM": lambda *inputs, equation: jnp.einsum(equation, *inputs)}, computes, types=ALL_NUMBERS)
lower_triangle = direct(shared("TRILU"), moves, types=HELD)


@lowers("EYE_LIKE", types=HELD)
def lower_eye(operation: NamedOperation) -> Computes:
    """Lower EYE_LIKE."""
    result = operation.output.type
    rows, columns = result.dimensions
    return moves(operation, lambda x, to, k: jnp.eye(rows, columns, int(k), dtype=result.dtype.array_type))


def _dft(x: Any, axis: int, length: int, inverse: bool, onesided: bool) -> Any:
    numbers = jnp.moveaxis(x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0), axis, -1)
    if inverse and onesided:
        parts = [jnp.fft.irfft(numbers, length)]
    elif onesided:
        half = jnp.fft.fft(numbers, length)[..., : length // 2 + 1]
        parts = [half.real, half.imag]
    else:
        full = (jnp.fft.ifft if inverse else jnp.fft.fft)(numbers, length)
        parts = [full.real, full.imag]
    return jnp.stack([jnp.moveaxis(part, -1, axis) for part in parts], -1)


def _stft(x: Any, window: Any = None, *, frame_step: int, frame_length: int, onesided: bool) -> Any:
    starts = np.arange(0, x.shape[1] - frame_length + 1, frame_step)
    frames = x[:, starts[:, None] + np.arange(frame_length)]
    factors = jnp.ones(frame_length, x.dtype) if window is None else window
    return _dft(frames * factors[:, None], 2, frame_length, False, onesided)


lower_floats = direct(shared("DETERMINANT") | {"DFT": _dft, "STFT": _stft}, computes, types=ALL_FLOATS)
