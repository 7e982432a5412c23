"""Pooling over images [N, H, W, C]: first along rows, then along columns, one pass per tap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.copying import bind_padded_copy, copy_dimensions
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Outline, Run
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.ir.operand import Array

Combine = Callable[..., object]
"""A function of two variables, called as `combine(x, y, out=out)`."""


def _pooling_scratch(outline: Outline) -> tuple[TensorType, ...]:
    """The result along rows, then the padded copy if there is one."""
    window, image, result = Window.of(outline.parameters), outline.inputs[0].dimensions, outline.outputs[0].dimensions
    dtype, phases = outline.inputs[0].dtype, window.strides[1]
    lines = (image[0], window.reach(result[1:3])[0], *result[2:])
    copy = copy_dimensions(window, image, result, phases)
    return tuple(TensorType(dtype, dimensions) for dimensions in (lines, copy) if dimensions is not None)


def _bind_windows(call: KernelArguments, combine: Combine, fill: float) -> Run:
    """Bind `out = ` all pixels of each window, combined; pixels outside the image are `fill`."""
    (x,), (out,), (lines, *copy) = call.inputs, call.outputs, call.scratch
    window = Window.of(call.parameters)
    prepare = bind_padded_copy(x, copy[0], window, fill) if copy else None
    image = copy[0] if copy else x[:, :, None]
    height, width = out.shape[1:3]
    runs = []
    for column in range(window.kernel_shape[1]):
        shift, phase = divmod(column * window.dilations[1], image.shape[2])
        runs.append(image[:, : lines.shape[1], phase, shift : shift + width])
    span = (height - 1) * window.strides[0] + 1
    starts = [row * window.dilations[0] for row in range(window.kernel_shape[0])]
    rows = [lines[:, start : start + span : window.strides[0]] for start in starts]

    def run() -> None:
        if prepare is not None:
            prepare()
        _reduce(runs, combine, lines)
        _reduce(rows, combine, out)

    return run


def _reduce(parts: Sequence[Array], combine: Combine, out: Array) -> None:
    """Combine all `parts` into `out`, which has their dimensions."""
    if len(parts) == 1:
        np.copyto(out, parts[0])
        return
    combine(parts[0], parts[1], out=out)
    for part in parts[2:]:
        combine(out, part, out=out)


def _bind_max(call: KernelArguments) -> Run:
    """A window with an element that is not a number has none for its largest, wherever it stands.

    What ONNX Runtime makes of it depends on its place, and on how it vectorizes.
    """
    dtype = call.inputs[0].dtype
    lowest = -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)
    return _bind_windows(call, np.maximum, lowest)


def _bind_average(call: KernelArguments) -> Run:
    """The sum of each window over the number of pixels that count."""
    (x,), (out,) = call.inputs, call.outputs
    include_pad = bool(call.parameters["count_include_pad"])
    share = Window.of(call.parameters).shares(x.shape[1:3], out.shape[1:3], include_pad=include_pad)[:, :, None]
    total = _bind_windows(call, np.add, 0)

    def run() -> None:
        total()
        np.multiply(out, share, out)

    return run


KERNELS: Mapping[str, NumpyKernel] = {
    "average_pool": NumpyKernel(bind=_bind_average, scratch=_pooling_scratch),
    "max_pool": NumpyKernel(bind=_bind_max, scratch=_pooling_scratch),
}
"""Rows of the kernel table."""
