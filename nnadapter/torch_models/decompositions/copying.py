"""Copies into a tensor, which PyTorch's exporter writes without spreading what is copied."""

from __future__ import annotations

from torch import Tensor


def copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """The source in the data type and dimensions of the target. Source: aten::copy."""
    copied = source.to(target.dtype) if source.dtype != target.dtype else source.clone()
    return copied if copied.shape == target.shape else copied.expand(target.shape)
