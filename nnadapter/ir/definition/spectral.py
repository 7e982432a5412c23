"""Fourier transforms, as products with waves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


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


SPECTRAL: Mapping[str, Callable[..., Any]] = {"DFT": _dft, "STFT": _stft}
"""By operation."""
