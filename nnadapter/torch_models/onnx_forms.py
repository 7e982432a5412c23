"""Operators written in ONNX in place of the exporter's functions, which differ from PyTorch's kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir
import torch
from onnxscript import opset18 as op
from torch.ops import aten


def _diagonal(self: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Return a diagonal by its indices: the exporter multiplies by a mask, and infinities times 0 are NaN.

    Source: `aten::diagonal`.
    """
    rank = len(self.shape)
    dim1, dim2 = dim1 % rank, dim2 % rank
    other_axes = [axis for axis in range(rank) if axis not in (dim1, dim2)]
    moved = op.Transpose(self, perm=[*other_axes, dim1, dim2])
    shape = op.Shape(moved)
    rows, columns = op.Shape(moved, start=rank - 2, end=rank - 1), op.Shape(moved, start=rank - 1)
    last = op.Mul(rows, columns)
    flat = op.Reshape(moved, op.Concat(op.Slice(shape, [0], [rank - 2]), last, axis=0), allowzero=True)
    row, column = max(-offset, 0), max(offset, 0)
    zero = op.Constant(value_ints=[0])
    length = op.Max(op.Min(op.Sub(rows, [row]), op.Sub(columns, [column])), zero)
    places = op.Range(op.Constant(value_int=0), op.Squeeze(length, zero), op.Constant(value_int=1))
    indices = op.Add(op.Mul(places, op.Add(columns, [1])), op.Add(op.Mul(columns, [row]), [column]))
    return op.Gather(flat, indices, axis=-1)


def _determinant(A: Any) -> tuple[Any, Any, Any]:  # noqa: N803  as the operator's schema has it
    """Return a determinant as the first of three results, of which the others are not read.

    The exporter writes it as if it was the only one. Source: `aten::_linalg_det`.
    """
    return op.Det(A), op.Identity(A), op.Cast(A, to=onnx_ir.DataType.INT32)


def _quantize_per_tensor(input: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: int) -> Any:  # noqa: A002
    """Return integers between the bounds, which the exporter drops.

    Source: `quantized_decomposed::quantize_per_tensor`.
    """
    kind = onnx_ir.DataType(dtype)
    bounds = (op.Constant(value=onnx_ir.tensor(bound, dtype=kind)) for bound in (quant_min, quant_max))
    is_known = isinstance(zero_point, int)
    zero = op.Constant(value=onnx_ir.tensor(zero_point, dtype=kind)) if is_known else op.Cast(zero_point, to=dtype)
    quantized = op.QuantizeLinear(input, scale, zero)
    return quantized if (quant_min, quant_max) == _range(kind) else op.Clip(quantized, *bounds)


def _range(kind: onnx_ir.DataType) -> tuple[int, int]:
    return int(kind.min), int(kind.max)


FORMS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    aten.diagonal.default: _diagonal,
    aten.diagonal_copy.default: _diagonal,
    aten._linalg_det.default: _determinant,
}


def register_forms(registry: Any) -> None:
    """Replace the exporter's functions."""
    for target, function in FORMS.items():
        registry.register_op(target, function)
    if has_quantization():
        operator = torch.ops.quantized_decomposed.quantize_per_tensor
        for overload in operator.overloads():
            registry.register_op(getattr(operator, overload), _quantize_per_tensor)


def has_quantization() -> bool:
    """Return whether PyTorch has loaded its operators of quantization, which happens at any time."""
    return hasattr(torch.ops.quantized_decomposed, "quantize_per_tensor")
