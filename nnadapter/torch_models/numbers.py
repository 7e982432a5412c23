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
from torch._subclasses.fake_tensor import unset_fake_temporarily
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


def _new_full(self: Any, size: Any, fill_value: Any, dtype: int = _NOT_SAID, **_: Any) -> Any:
    """Return a tensor of this size, of one number, with the data type of another one. Source: `aten::new_full`."""
    return _full(size, fill_value, self.dtype if dtype == _NOT_SAID else dtype)


def _sym_float(self: Any) -> Any:
    """A size as a real number. Source: `torch.sym_float`."""
    return op.Cast(self, to=_DOUBLE)


def _arithmetic(of_reals: Callable[..., Any], of_whole: Callable[..., Any] | None) -> Callable[..., Any]:
    """Whole numbers make a whole one where there is a function for that; others are computed in float64."""

    def written(*numbers: Any) -> Any:
        are_whole = (type(number) is int or getattr(number, "dtype", None) == _INT64 for number in numbers)
        if of_whole is not None and all(are_whole):
            return of_whole(*(_tensor(number, _INT64) for number in numbers))
        return of_reals(*(_tensor(number, _DOUBLE) for number in numbers))

    return written


def _floor_quotient(first: Any, second: Any) -> Any:
    """Rounded down, as Python divides; ONNX rounds quotients of whole numbers towards 0."""
    return op.Div(op.Sub(first, op.Mod(first, second)), second)


def as_float32(number: Any) -> Any:
    """The same number, which the exporter is told to write as float32."""
    return number


ARITHMETIC: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.sym_float: _sym_float,
    operator.truediv: _arithmetic(op.Div, None),
    operator.mul: _arithmetic(op.Mul, op.Mul),
    operator.add: _arithmetic(op.Add, op.Add),
    operator.sub: _arithmetic(op.Sub, op.Sub),
    operator.neg: _arithmetic(op.Neg, op.Neg),
}
"""How numbers are made of sizes."""
WRITTEN: Mapping[Callable[..., Any], Callable[..., Any]] = {
    **ARITHMETIC,
    operator.floordiv: _arithmetic(lambda first, second: op.Floor(op.Div(first, second)), _floor_quotient),
    as_float32: lambda number: op.Cast(number, to=_FLOAT),
    aten.scalar_tensor.default: _scalar_tensor,
    aten.full.default: _full,
    aten.full_like.default: _full_like,
    aten.new_full.default: _new_full,
}
_SEQUENCES = (
    aten.arange.default, aten.arange.start, aten.arange.start_step, aten.linspace.default, aten.hamming_window.default,
)  # fmt: skip
_LONGEST = 1 << 16
"""Elements of a sequence that is a constant."""
_NAMES = {"FLOAT": torch.float32, "DOUBLE": torch.float64, "FLOAT16": torch.float16}
_NAMES |= {"INT64": torch.int64, "INT32": torch.int32, "INT16": torch.int16, "INT8": torch.int8, "UINT8": torch.uint8}
_DTYPES = {_NOT_SAID: None, **{getattr(onnx_ir.DataType, name): dtype for name, dtype in _NAMES.items()}}


def register_numbers(registry: Any) -> None:
    """Let the exporter write these operators so."""
    for target, function in WRITTEN.items():
        registry.register_op(target, function)
    for target in _SEQUENCES:
        registry.register_op(target, _sequence(target, registry.get_decomps(target)[0].onnx_function))


def _sequence(target: torch._ops.OpOverload, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """A sequence of known numbers is what PyTorch makes of them: how many there are hangs on a rounding, for one."""

    def written(*numbers: Any, dtype: int = _NOT_SAID, **options: Any) -> Any:
        are_known = all(isinstance(number, (int, float)) for number in numbers)
        with unset_fake_temporarily():
            sequence = target(*numbers, dtype=_DTYPES[dtype]).numpy() if are_known and dtype in _DTYPES else None
        if sequence is None or sequence.size > _LONGEST:
            return theirs(*numbers, dtype=dtype, **options)
        return op.Constant(value=onnx_ir.tensor(sequence))

    return written


def as_tensors(graph: fx.Graph) -> None:
    """Let operators on tensors read real numbers that follow from sizes in the data type that they compute in.

    As a tensor where they take one, else as a number.
    """
    for node in list(graph.nodes):
        if not isinstance(node.target, torch._ops.OpOverload) or node.target in WRITTEN:
            continue
        read = [(input_node, input_node.meta.get("val")) for input_node in node.all_input_nodes]
        tensors = [value for _, value in read if isinstance(value, torch.Tensor)]
        dtype = torch.result_type(tensors[0], 1.0) if tensors else torch.float32
        for number in [input_node for input_node, value in read if isinstance(value, torch.SymFloat)]:
            with graph.inserting_before(node):
                replacement = _in_its_place(graph, node, number, dtype)
            if replacement is not None:
                node.replace_input_with(number, replacement)


def _in_its_place(graph: fx.Graph, node: fx.Node, number: fx.Node, dtype: torch.dtype) -> fx.Node | None:
    """What an operator reads in place of a number, if it does not read that."""
    places = zip(node.target._schema.arguments, node.args, strict=False)
    if any("Tensor" in str(argument.type) for argument, value in places if value is number):
        replacement = graph.call_function(aten.scalar_tensor.default, (number,), {"dtype": dtype})
        replacement.meta["val"] = next(
            input_node.meta["val"]
            for input_node in node.all_input_nodes
            if isinstance(input_node.meta["val"], torch.Tensor)
        ).new_empty((), dtype=dtype)
        return replacement
    if dtype is torch.float64:
        return None
    replacement = graph.call_function(as_float32, (number,))
    replacement.meta["val"] = number.meta["val"]
    return replacement


def without_types(model: onnx_ir.Model) -> None:
    """Take away the data type of single numbers of float32: the exporter says that of all real ones."""
    for value in (value for node in model.graph for value in node.outputs):
        if value.dtype == _FLOAT and value.shape is not None and not len(value.shape) and not value.is_graph_output():
            value.type = None


def _tensor(number: Any, dtype: int) -> Any:
    """A tensor [] of this data type; the number may be a value already, that of a size."""
    if not isinstance(number, (bool, int, float)):
        if dtype == _NOT_SAID:
            dtype = _INT64 if number.dtype == _INT64 else _FLOAT
        return op.Cast(number, to=dtype)
    data_type = _TYPES[type(number)] if dtype == _NOT_SAID else onnx_ir.DataType(dtype)
    return op.Constant(value=onnx_ir.tensor(number, dtype=data_type))
