"""Fourier transforms."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from nnadapter.drivers.tables.lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.closing import ALL_FLOATS, computes
from nnadapter.ir.named_operation import NamedOperation


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


@lowers("DFT", types=ALL_FLOATS)
def lower_fourier_transform(operation: NamedOperation) -> Computes:
    """Of whole signals."""
    return computes(operation, _dft)


@lowers("STFT", types=ALL_FLOATS)
def lower_short_time_fourier_transform(operation: NamedOperation) -> Computes:
    """Of frames of signals."""
    return computes(operation, _stft)
