"""Fourier transforms, by numpy's fast ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Outline, Run
from nnadapter.ir.operand import Array


def _numbers(x: Array) -> Array:
    """[…, 1] seen as real numbers, […, 2] as complex ones."""
    return x.view(np.complex64)[..., 0] if x.shape[-1] == 2 else x[..., 0]


def _bind_transform(call: KernelArguments) -> Run:
    source, target = _numbers(call.inputs[0]), _numbers(call.outputs[0])
    axis, length = call.parameters["axis"], call.parameters["length"]
    inverse, onesided = call.parameters["inverse"], call.parameters["onesided"]
    transform = _TRANSFORMS[inverse, onesided]
    return lambda: np.copyto(target, transform(source, length, axis), casting="same_kind")


_TRANSFORMS: Mapping[tuple[bool, bool], Callable[..., Array]] = {
    (False, False): np.fft.fft,
    (False, True): np.fft.rfft,
    (True, False): np.fft.ifft,
    (True, True): np.fft.irfft,
}
"""By inverse and onesided."""


def _bind_short_time(call: KernelArguments) -> Run:
    """The transforms of frames of the signal, which may overlap, times the window."""
    (x, *window), (out,), (framed,) = call.inputs, call.outputs, call.scratch
    step, length = call.parameters["frame_step"], call.parameters["frame_length"]
    frames = np.lib.stride_tricks.sliding_window_view(_numbers(x), length, axis=1)[:, ::step]
    transform = _TRANSFORMS[False, call.parameters["onesided"]]
    factors = window[0] if window else 1
    numbers, target = _numbers(framed), _numbers(out)

    def run() -> None:
        np.multiply(frames, factors, numbers)
        np.copyto(target, transform(numbers, length, 2), casting="same_kind")

    return run


def _short_time_scratch(outline: Outline) -> tuple[TensorType, ...]:
    batch, frames = outline.outputs[0].dimensions[:2]
    return (
        TensorType(
            outline.inputs[0].dtype,
            (batch, frames, outline.parameters["frame_length"], outline.inputs[0].dimensions[2]),
        ),
    )


KERNELS: Mapping[str, NumpyKernel] = {
    "fourier_transform": NumpyKernel(bind=_bind_transform),
    "short_time_fourier_transform": NumpyKernel(bind=_bind_short_time, scratch=_short_time_scratch),
}
"""Rows of the kernel table."""
