"""Tensors of PyTorch as arrays, and back: the same memory, no copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

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
