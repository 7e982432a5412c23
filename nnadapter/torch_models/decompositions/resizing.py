"""Sizes changed by scales that are no whole numbers, which PyTorch multiplies by and ONNX divides by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch._decomp import get_decompositions
from torch.ops import aten

_NEAREST = (aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec)
BY_SCALES = (*_NEAREST, aten.upsample_bicubic2d.vec)


def _nearest(
    written: Callable[..., Tensor],
    values: Tensor,
    output_size: Any,
    scale_factors: Sequence[float] | None,
) -> Any:
    """The nearest elements: which these are hangs on a rounding, where a scale or its inverse is no whole number."""
    if all(is_whole(scale) or is_whole(1 / scale) for scale in scale_factors or ()):
        return NotImplemented
    assert scale_factors is not None, "else there would be no scale that is none"
    if any(hangs_on_length(scale, length) for scale, length in zip(scale_factors, values.shape[2:], strict=True)):
        return NotImplemented
    return written(values, output_size, list(map(_taken, scale_factors, values.shape[2:])))


def hangs_on_length(scale: float, length: Any) -> bool:
    """Whether a scale may leave a length as it is, or double it: then PyTorch goes by that, and not by the scale."""
    return scale > 1 and not is_whole(scale) and not isinstance(length, int)


def _taken(scale: float, length: Any) -> float:
    """The scale that PyTorch takes."""
    grown = int(length * scale) if isinstance(length, int) else None
    return {length: 1.0, 2 * length: 2.0}.get(grown, scale) if grown else scale


def is_whole(scale: float) -> bool:
    """Whether a scale is a whole number."""
    return float(scale).is_integer()


NEAREST = {operator: partial(_nearest, written) for operator, written in get_decompositions(_NEAREST).items()}
"""Source: `aten::upsample_nearest2d` and those of one and three axes."""
