"""Numbers in a program, as they are: PyTorch's exporter writes real ones as float32, wherever they go.

In a program on float64 tensors `x * 1.1` is `x * 1.10000002384`, off in the eighth digit. So operators that make a
tensor of a number, which all others on such a number are written in, are written here. So are real numbers that follow
from sizes: Python computes these as float64, and `int(30 * 0.7)` is 20, where float32 says 21.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir
import torch
from onnxscript import opset18 as op
from torch.ops import aten

if TYPE_CHECKING:
    from torch import fx

_BOOL, _INT64, _FLOAT, _DOUBLE = (getattr(onnx_ir.DataType, name) for name in ("BOOL", "INT64", "FLOAT", "DOUBLE"))
_NOT_SAID = -1
_TYPES = {bool: _BOOL, int: _INT64, float: _FLOAT}
"""What PyTorch makes of a number where no data type is said."""


def _scalar_tensor(s: Any, dtype: int = _NOT_SAID, **_: Any) -> Any:
    """A tensor [] of a number. Source: `aten::scalar_tensor`."""
    return _tensor(s, _FLOAT if dtype == _NOT_SAID else dtype)


def _full(size: Any, fill_value: Any, dtype: int = _NOT_SAID, **_: Any) -> Any:
    """A tensor of this size, of one number. Source: `aten::full`."""
    return op.Expand(_tensor(fill_value, dtype), op.Cast(size, to=_INT64))


def _full_like(self: Any, fill_value: Any, dtype: int = _NOT_SAID, **_: Any) -> Any:
    """A tensor of the size of another one, of one number. Source: `aten::full_like`."""
    return op.Expand(_tensor(fill_value, self.dtype if dtype == _NOT_SAID else dtype), op.Shape(self))


def _sym_float(self: Any) -> Any:
    """A size as a real number. Source: `torch.sym_float`."""
    return op.Cast(self, to=_DOUBLE)


def _arithmetic(write: Callable[..., Any], *, of_whole: bool = True) -> Callable[..., Any]:
    """Whole numbers make a whole one, as far as `of_whole` says so; others are computed in float64."""

    def written(*numbers: Any) -> Any:
        are_whole = (type(each) is int or getattr(each, "dtype", None) == _INT64 for each in numbers)
        dtype = _INT64 if of_whole and all(are_whole) else _DOUBLE
        return write(*(_tensor(each, dtype) for each in numbers))

    return written


ARITHMETIC: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.sym_float: _sym_float,
    operator.truediv: _arithmetic(op.Div, of_whole=False),
    operator.mul: _arithmetic(op.Mul),
    operator.add: _arithmetic(op.Add),
    operator.sub: _arithmetic(op.Sub),
    operator.neg: _arithmetic(op.Neg),
}
"""How numbers are made of sizes."""
WRITTEN: Mapping[Callable[..., Any], Callable[..., Any]] = {
    **ARITHMETIC,
    aten.scalar_tensor.default: _scalar_tensor,
    aten.full.default: _full,
    aten.full_like.default: _full_like,
}


def register(registry: Any) -> None:
    """Let the exporter write these operators so."""
    for target, function in WRITTEN.items():
        registry.register_op(target, function)


def as_tensors(graph: fx.Graph) -> None:
    """Let operators on tensors read real numbers that follow from sizes as tensors of their own data type."""
    for node in list(graph.nodes):
        like = node.meta.get("val")
        if not isinstance(like, torch.Tensor) or node.target is aten.scalar_tensor.default:
            continue
        for number in [each for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.SymFloat)]:
            with graph.inserting_before(node):
                made = graph.call_function(aten.scalar_tensor.default, (number,), {"dtype": like.dtype})
            made.meta["val"] = like.new_empty(())
            node.replace_input_with(number, made)


def without_types(model: onnx_ir.Model) -> None:
    """Take away the data type of single numbers of float32: the exporter says that of all real ones."""
    for value in (value for node in model.graph for value in node.outputs):
        if value.dtype == _FLOAT and value.shape is not None and not len(value.shape) and not value.is_graph_output():
            value.type = None


def _tensor(number: Any, dtype: int) -> Any:
    """A tensor [] of this data type; the number may be a value already, that of a size."""
    if not isinstance(number, (bool, int, float)):
        return number if dtype == _NOT_SAID else op.Cast(number, to=dtype)
    wanted = _TYPES[type(number)] if dtype == _NOT_SAID else onnx_ir.DataType(dtype)
    return op.Constant(value=onnx_ir.tensor(number, dtype=wanted))
