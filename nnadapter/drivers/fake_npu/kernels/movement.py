"""Kernels that move elements, or make them from next to nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from nnadapter.drivers.fake_npu.kernels.copying import bind_copies, bind_copy, has_short_runs
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Run, check_indices
from nnadapter.ir.operand import Array


def _bind_copy(call: KernelArguments) -> Run:
    return bind_copy(call.inputs[0], call.outputs[0])


def _bind_transpose(call: KernelArguments) -> Run:
    return bind_copy(call.inputs[0].transpose(call.parameters["perm"]), call.outputs[0])


def _bind_expand(call: KernelArguments) -> Run:
    (x,), (out,) = call.inputs, call.outputs
    return bind_copy(np.broadcast_to(x, out.shape), out)


def _bind_tile(call: KernelArguments) -> Run:
    """Seen as [r0, d0, r1, d1, …], a tiled tensor is one broadcast."""
    (x,), (out,) = call.inputs, call.outputs
    repeats = tuple(call.parameters["repeats"])
    pairs = [size for pair in zip(repeats, x.shape, strict=True) for size in pair]
    source = x.reshape([size for dimension in x.shape for size in (1, dimension)])
    return bind_copy(np.broadcast_to(source, pairs), out.reshape(pairs))


def _part(array: Array, index: Sequence[slice]) -> Array:
    """A part of an array, as a view also where there is no axis: without the ellipsis numpy would copy a scalar."""
    places: Any = (*index, ...)
    part: Array = array[places]
    return part


def _along(axis: int, part: slice) -> tuple[slice, ...]:
    """The index that takes `part` of one axis and all of those before it."""
    return (slice(None),) * axis + (part,)


def _bind_concat(call: KernelArguments) -> Run:
    (out,), axis = call.outputs, call.parameters["axis"]
    if not any(has_short_runs(part, axis) for part in call.inputs):
        return partial(np.concatenate, call.inputs, axis, out)
    ends = accumulate(part.shape[axis] for part in call.inputs)
    pairs = [
        (part, out[_along(axis, slice(end - part.shape[axis], end))])
        for part, end in zip(call.inputs, ends, strict=True)
    ]
    return bind_copies(pairs)


def _bind_split(call: KernelArguments) -> Run:
    (x,), axis = call.inputs, call.parameters["axis"]
    ends = accumulate(part.shape[axis] for part in call.outputs)
    pairs = [
        (x[_along(axis, slice(end - part.shape[axis], end))], part)
        for part, end in zip(call.outputs, ends, strict=True)
    ]
    return bind_copies(pairs)


def _bind_slice(call: KernelArguments) -> Run:
    (x,), (out,), parameters = call.inputs, call.outputs, call.parameters
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(*(parameters[name] for name in ("axes", "starts", "ends", "steps")), strict=True):
        index[axis] = slice(start, end, step)
    return bind_copy(_part(x, index), out)


def _bind_gather(call: KernelArguments) -> Run:
    (x, indices), (out,), axis = call.inputs, call.outputs, call.parameters["axis"]
    size = x.shape[axis]

    def run() -> None:
        check_indices(indices, size)
        # Negative indices count from the end; numpy copies once more for any mode that checks.
        np.take(x, indices, axis=axis, out=out, mode="wrap")

    return run


def _bind_gather_elements(call: KernelArguments) -> Run:
    (x, indices), (out,), axis = call.inputs, call.outputs, call.parameters["axis"]
    size = x.shape[axis]
    # The other axes may be shorter in the indices than in the data.
    x = x[tuple(slice(None) if place == axis else slice(length) for place, length in enumerate(indices.shape))]

    def run() -> None:
        check_indices(indices, size)
        np.copyto(out, np.take_along_axis(x, indices, axis=axis))

    return run


def _bind_pad(call: KernelArguments) -> Run:
    """Negative pads crop; what the other modes repeat is taken from what is left."""
    (x,), (out,), parameters = call.inputs, call.outputs, call.parameters
    begins, ends = parameters["pads"][: x.ndim], parameters["pads"][x.ndim :]
    kept = [slice(max(0, -begin), size - max(0, -end)) for begin, end, size in zip(begins, ends, x.shape, strict=True)]
    x = _part(x, kept)
    pads = [(max(0, begin), max(0, end)) for begin, end in zip(begins, ends, strict=True)]
    if parameters["mode"] != "constant":
        places = [
            np.pad(np.arange(size), pad, mode=parameters["mode"]) for size, pad in zip(x.shape, pads, strict=True)
        ]
        index = np.ix_(*places)
        return lambda: np.copyto(out, x[index])
    inside = _part(out, [slice(begin, begin + size) for (begin, _), size in zip(pads, x.shape, strict=True)])
    value = parameters["value"]

    def run() -> None:
        out[...] = value
        np.copyto(inside, x)

    return run


def _bind_range(call: KernelArguments) -> Run:
    """The result start + i delta, in the result's type."""
    (start, delta), (out,) = call.inputs, call.outputs
    # Positions beyond a narrow type wrap around in it, and so do products and sums with them.
    positions = np.arange(out.size).astype(out.dtype)

    def run() -> None:
        np.multiply(positions, delta, out)
        np.add(out, start, out)

    return run


def _bind_diagonal(call: KernelArguments) -> Run:
    """Ones on the k-th diagonal of a matrix [N, M], zeros elsewhere."""
    (out,), k = call.outputs, call.parameters["k"]
    rows, columns = out.shape
    first_row, first_column = max(0, -k), max(0, k)
    length = max(0, min(rows - first_row, columns - first_column))
    start = first_row * columns + first_column
    ones = out.reshape(-1)[start : start + length * (columns + 1) : columns + 1]

    def run() -> None:
        out[...] = 0
        ones[...] = 1

    return run


def _bind_bit_cast(call: KernelArguments) -> Run:
    """The same bits; a byte becomes true unless it is 0, because no other byte is a truth value."""
    (x,), (out,) = call.inputs, call.outputs
    if out.dtype.kind == "b":
        return lambda: np.not_equal(x, 0, out=out)
    return lambda: np.copyto(out, x.view(out.dtype))


KERNELS: Mapping[str, NumpyKernel] = {
    "concat": NumpyKernel(bind=_bind_concat),
    "copy": NumpyKernel(bind=_bind_copy),
    "expand": NumpyKernel(bind=_bind_expand),
    "gather": NumpyKernel(bind=_bind_gather),
    "gather_elements": NumpyKernel(bind=_bind_gather_elements),
    "pad": NumpyKernel(bind=_bind_pad),
    "slice": NumpyKernel(bind=_bind_slice),
    "split": NumpyKernel(bind=_bind_split),
    "tile": NumpyKernel(bind=_bind_tile),
    "transpose": NumpyKernel(bind=_bind_transpose),
    "bit_cast": NumpyKernel(bind=_bind_bit_cast),
    "diagonal": NumpyKernel(bind=_bind_diagonal),
    "range": NumpyKernel(bind=_bind_range),
}
"""Rows of the kernel table."""
