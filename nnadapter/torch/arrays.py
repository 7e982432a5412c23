"""Conversion between tensors and arrays, and session outputs as tensors with the layout of PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import fx

from nnadapter.drivers.tensor_copies import Copies
from nnadapter.errors import ExecutionError
from nnadapter.torch_models.layouts import Order, laid_out, order_of, strides_of_one, without_elements

Array = np.ndarray[Any, Any]


def to_array(dtype: torch.dtype) -> Callable[[Any], Array]:
    """Return what makes an array of a tensor of `dtype` on the host, in its memory."""
    return {torch.bfloat16: _bfloat16_array, torch.float16: _float16_array}.get(dtype, _array)


def to_tensor(dtype: torch.dtype) -> Callable[[Array], Any]:
    """Return what makes a tensor of `dtype` of an array, in its memory."""
    return _bfloat16_tensor if dtype is torch.bfloat16 else torch.from_numpy


def number_array(number: int) -> Array:
    """Return a size as an array."""
    return np.asarray(int(number), np.int64)


def _array(tensor: Any) -> Array:
    array: Array = tensor.numpy(force=True)  # detaches in the same call
    return array


def _float16_array(tensor: Any) -> Array:
    """As `_bfloat16_array`, rounded where an operator of PyTorch gave more than its graph says: layer norm does."""
    array: Array = tensor.to(torch.float16).numpy(force=True)
    return array


def _bfloat16_array(tensor: Any) -> Array:
    import ml_dtypes

    array: Array = tensor.detach().to(torch.bfloat16).view(torch.uint16).numpy(force=True)
    return array.view(ml_dtypes.bfloat16)


def _bfloat16_tensor(array: Array) -> Any:
    return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)


Results = Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]]
"""Arrays that a session gave, and the region's inputs -> tensors."""
_Place = tuple[int, int]
"""An input of a region, and one of its axes."""


def results_of(inputs: Sequence[fx.Node], outputs: Sequence[fx.Node], shown: Sequence[bool]) -> Results:
    """Return what makes tensors of a region's results.

    Args:
        inputs: the region's inputs.
        outputs: its results.
        shown: for each of them whether somebody may see how it lies in memory.

    What lies on a device may come as `Copies`, and is given so. Data types and sizes are held against the graph's; of
    open sizes those that an input has as well. The function returned raises ExecutionError where one differs.
    """
    places = _places(inputs)
    likes = [node.meta["val"] for node in outputs]
    converts = [_converted(like, is_visible) for like, is_visible in zip(likes, shown, strict=True)]
    promised = [(_dtype(like.dtype), tuple(map(_static_size, like.shape))) for like in likes]
    dynamic_shapes = [
        (place, axis, source) for place, like in enumerate(likes) for axis, source in _dynamic_sizes(like, places)
    ]
    names = [node.name for node in outputs]

    def results(arrays: Sequence[Any], input_tensors: Sequence[Any]) -> tuple[Any, ...]:
        for array, (dtype, shape), name in zip(arrays, promised, names, strict=True):
            if array.dtype != dtype or (array.shape != shape and not _fits(array.shape, shape)):
                raise _differs(name, array, dtype, shape)
        for place, axis, (source, source_axis) in dynamic_shapes:
            if arrays[place].shape[axis] != input_tensors[source].shape[source_axis]:
                expected_shape = (
                    *arrays[place].shape[:axis],
                    input_tensors[source].shape[source_axis],
                    *arrays[place].shape[axis + 1 :],
                )
                raise _differs(names[place], arrays[place], promised[place][0], expected_shape)
        return tuple([convert(array) for convert, array in zip(converts, arrays, strict=True)])

    return results


def _places(inputs: Sequence[fx.Node]) -> Mapping[Any, _Place]:
    """Where each open size can be read."""
    tensors = [(place, node.meta["val"]) for place, node in enumerate(inputs)]
    return {
        size.node.expr: (place, axis)
        for place, value in tensors
        if isinstance(value, torch.Tensor)
        for axis, size in enumerate(value.shape)
        if isinstance(size, torch.SymInt)
    }


def _dynamic_sizes(like: Any, places: Mapping[Any, _Place]) -> list[tuple[int, _Place]]:
    sizes = [(axis, size.node.expr) for axis, size in enumerate(like.shape) if isinstance(size, torch.SymInt)]
    return [(axis, places[expression]) for axis, expression in sizes if expression in places]


def _static_size(size: Any) -> int | None:
    return None if isinstance(size, torch.SymInt) else int(size)


def _dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The data type of arrays; its name is that of numpy, too, but for bfloat16, which numpy has from a package."""
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if dtype is torch.bfloat16 else str(dtype).removeprefix("torch."))


def _fits(sizes: Sequence[int], promised: Sequence[int | None]) -> bool:
    if len(sizes) != len(promised):
        return False
    return all(
        promised_size is None or size == promised_size for size, promised_size in zip(sizes, promised, strict=True)
    )


def _differs(name: str, array: Any, dtype: Any, shape: Sequence[int | None]) -> ExecutionError:
    actual, expected = (
        f"{array.dtype}{list(array.shape)}",
        ", ".join("?" if size is None else str(size) for size in shape),
    )
    return ExecutionError(f"result {name!r} came as {actual} and PyTorch's graph says {dtype}[{expected}]")


def _converted(like: Any, is_visible: bool) -> Callable[[Any], Any]:
    """What makes a tensor of an array, laid out in memory as PyTorch's own would be where somebody may see it."""
    convert, order = to_tensor(like.dtype), order_of(like) if is_visible else None
    converter = _in_rows(convert) if order is None else _in_order(convert, order)
    strides = strides_of_one(like) if is_visible else None
    if strides is not None:
        return _strided(converter, tuple(like.shape), strides)
    if not is_visible or not _may_be_empty(like):
        return converter
    empty = without_elements(like)
    return lambda value: converter(value) if prod(value.shape) else empty(value.shape)


def _in_rows(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: value if type(value) is Copies else convert(value)


def _in_order(convert: Callable[[Any], Any], order: Order) -> Callable[[Any], Any]:
    arrange = laid_out(order)
    return lambda value: value if type(value) is Copies else arrange(convert(value))


def _strided(converter: Callable[[Any], Any], shape: Sequence[int], strides: Sequence[int]) -> Callable[[Any], Any]:
    def strided(value: Any) -> Any:
        tensor = converter(value)
        return tensor if type(tensor) is Copies else tensor.as_strided(shape, strides)

    return strided


def _may_be_empty(like: Any) -> bool:
    return any(isinstance(size, torch.SymInt) or size == 0 for size in like.shape)
