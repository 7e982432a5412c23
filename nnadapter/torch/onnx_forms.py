"""ONNX forms that replace the exporter's: for arithmetic on numbers, LSTM, GRU, and functions that it gets wrong.

The exporter writes real numbers as float32, so float64 results and sizes can be wrong: `int(30 * 0.7)` is 20 in Python,
but 21 in float32. AOTAutograd unrolls LSTM and GRU for each length. So at inference, custom operators replace them
before AOTAutograd runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir
import torch
from onnxscript import opset18 as op
from torch import Tensor, fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.ops import aten

_BOOL, _INT64, _FLOAT, _DOUBLE = (getattr(onnx_ir.DataType, name) for name in ("BOOL", "INT64", "FLOAT", "DOUBLE"))
_NOT_SAID = -1
_TYPES = {bool: _BOOL, int: _INT64, float: _FLOAT}


def _scalar_tensor(s: Any, dtype: int = _NOT_SAID, **_: Any) -> Any:
    return _tensor(s, _FLOAT if dtype == _NOT_SAID else dtype)


def _full(size: Any, fill_value: Any, dtype: int = _NOT_SAID, **_: Any) -> Any:
    return op.Expand(_tensor(fill_value, dtype), op.Cast(size, to=_INT64))


def _full_like(self: Any, fill_value: Any, dtype: int = _NOT_SAID, **_: Any) -> Any:
    return op.Expand(_tensor(fill_value, self.dtype if dtype == _NOT_SAID else dtype), op.Shape(self))


def _new_full(self: Any, size: Any, fill_value: Any, dtype: int = _NOT_SAID, **_: Any) -> Any:
    return _full(size, fill_value, self.dtype if dtype == _NOT_SAID else dtype)


def _sym_float(self: Any) -> Any:
    return op.Cast(self, to=_DOUBLE)


def _arithmetic(of_reals: Callable[..., Any], of_whole: Callable[..., Any] | None) -> Callable[..., Any]:
    def form(*numbers: Any) -> Any:
        are_whole = (type(number) is int or getattr(number, "dtype", None) == _INT64 for number in numbers)
        if of_whole is not None and all(are_whole):
            return of_whole(*(_tensor(number, _INT64) for number in numbers))
        return of_reals(*(_tensor(number, _DOUBLE) for number in numbers))

    return form


def _floor_quotient(first: Any, second: Any) -> Any:
    """Divide and round down; ONNX rounds integer quotients toward 0."""
    return op.Div(op.Sub(first, op.Mod(first, second)), second)


def as_float32(number: Any) -> Any:
    """Return the number unchanged; its ONNX form casts it to float32."""
    return number


ARITHMETIC: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.sym_float: _sym_float,
    operator.truediv: _arithmetic(op.Div, None),
    operator.mul: _arithmetic(op.Mul, op.Mul),
    operator.add: _arithmetic(op.Add, op.Add),
    operator.sub: _arithmetic(op.Sub, op.Sub),
    operator.neg: _arithmetic(op.Neg, op.Neg),
}
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
_NAMES = {"FLOAT": torch.float32, "DOUBLE": torch.float64, "FLOAT16": torch.float16}
_NAMES |= {"INT64": torch.int64, "INT32": torch.int32, "INT16": torch.int16, "INT8": torch.int8, "UINT8": torch.uint8}
_DTYPES = {_NOT_SAID: None, **{getattr(onnx_ir.DataType, name): dtype for name, dtype in _NAMES.items()}}


def register_numbers(registry: Any) -> None:
    """Register the ONNX forms of arithmetic on numbers and of sequences such as `arange`."""
    for target, function in WRITTEN.items():
        registry.register_op(target, function)
    for target in _SEQUENCES:
        registry.register_op(target, _sequence(target, registry.get_decomps(target)[0].onnx_function))


def _sequence(target: torch._ops.OpOverload, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Return a form that computes constant sequences in PyTorch, because rounding can change their length."""

    def form(*numbers: Any, dtype: int = _NOT_SAID, **options: Any) -> Any:
        are_known = all(isinstance(number, (int, float)) for number in numbers)
        with unset_fake_temporarily():
            sequence = target(*numbers, dtype=_DTYPES[dtype]).numpy() if are_known and dtype in _DTYPES else None
        if sequence is None or sequence.size > _LONGEST:
            return theirs(*numbers, dtype=dtype, **options)
        return op.Constant(value=onnx_ir.tensor(sequence))

    return form


def as_tensors(graph: fx.Graph) -> None:
    """Convert real numbers that are computed from sizes to the data type of the operator that reads them."""
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
    """Remove the type of float32 scalars, because the exporter declares all real numbers as float32."""
    for value in (value for node in model.graph for value in node.outputs):
        if value.dtype == _FLOAT and value.shape is not None and not len(value.shape) and not value.is_graph_output():
            value.type = None


def _tensor(number: Any, dtype: int) -> Any:
    if not isinstance(number, (bool, int, float)):
        if dtype == _NOT_SAID:
            dtype = _INT64 if number.dtype == _INT64 else _FLOAT
        return op.Cast(number, to=dtype)
    data_type = _TYPES[type(number)] if dtype == _NOT_SAID else onnx_ir.DataType(dtype)
    return op.Constant(value=onnx_ir.tensor(number, dtype=data_type))


def _diagonal(self: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Select a diagonal by indices: the exporter multiplies by a mask, and infinity times 0 is NaN."""
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
    """Return a determinant, and two unused results that the operator's schema requires. Source: `aten::_linalg_det`."""
    return op.Det(A), op.Identity(A), op.Cast(A, to=onnx_ir.DataType.INT32)


def _quantize_per_tensor(input: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: int) -> Any:  # noqa: A002
    """Clip to the bounds, which the exporter ignores. Source: `quantized_decomposed::quantize_per_tensor`."""
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
    """Register `FORMS`, and the forms of PyTorch's quantization operators."""
    for target, function in FORMS.items():
        registry.register_op(target, function)
    if has_quantization():
        operator = torch.ops.quantized_decomposed.quantize_per_tensor
        for overload in operator.overloads():
            registry.register_op(getattr(operator, overload), _quantize_per_tensor)


def has_quantization() -> bool:
    """Return True once PyTorch has loaded its quantization operators."""
    return hasattr(torch.ops.quantized_decomposed, "quantize_per_tensor")


_SEQUENCE, _STATE, _LAYERS, _DROPOUT, _TRAIN = 0, 1, 4, 5, 6
_ARGUMENTS = 9


@torch.library.custom_op("nnadapter::lstm", mutates_args=())  # type: ignore[untyped-decorator]
def _lstm(
    input: Tensor,  # noqa: A002  the exporter matches ATen's names
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    results = torch.lstm(
        input, list(hx), list(params), has_biases, num_layers, dropout, train, bidirectional, batch_first
    )
    return tuple(result.clone() for result in results)


@torch.library.custom_op("nnadapter::gru", mutates_args=())  # type: ignore[untyped-decorator]
def _gru(
    input: Tensor,  # noqa: A002
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor]:
    results = torch.gru(input, hx, list(params), has_biases, num_layers, dropout, train, bidirectional, batch_first)
    return tuple(result.clone() for result in results)


@_lstm.register_fake  # type: ignore[untyped-decorator]
def _of_lstm(input: Tensor, hx: Sequence[Tensor], params: Any, *options: Any) -> tuple[Tensor, Tensor, Tensor]:  # noqa: A002
    return _strided_result(input, hx[0], *options[-2:]), hx[0].new_empty(hx[0].shape), hx[1].new_empty(hx[1].shape)


@_gru.register_fake  # type: ignore[untyped-decorator]
def _of_gru(input: Tensor, hx: Tensor, params: Any, *options: Any) -> tuple[Tensor, Tensor]:  # noqa: A002
    return _strided_result(input, hx, *options[-2:]), hx.new_empty(hx.shape)


def _strided_result(sequence: Tensor, state: Tensor, bidirectional: bool, batch_first: bool) -> Tensor:
    first, second = (1, 0) if batch_first else (0, 1)
    width = state.shape[-1] * (2 if bidirectional else 1)
    result = sequence.new_empty((sequence.shape[first], sequence.shape[second], width))
    return result.transpose(0, 1) if batch_first else result


PRESERVED_OPERATORS: Mapping[Any, tuple[Any, Any]] = {
    torch.lstm: (torch.ops.nnadapter.lstm.default, aten.lstm.input),
    torch.gru: (torch.ops.nnadapter.gru.default, aten.gru.input),
}
"""Captured function -> our operator, and the ATen operator that provides its ONNX form."""


def preserve_recurrence(graph_module: fx.GraphModule, registry: Any) -> None:
    """Replace LSTM and GRU by our operators if `registry` can write them."""
    for node in graph_module.graph.nodes:
        custom_operator, theirs = PRESERVED_OPERATORS.get(node.target, (None, None))
        if custom_operator is not None and registry.is_registered(theirs) and _is_plain(node):
            node.target = custom_operator
    graph_module.recompile()


@contextmanager
def without_onednn_lstm(graph_module: fx.GraphModule) -> Iterator[None]:
    """Disable oneDNN for graphs with an LSTM, because PyTorch 2.13 may choose an operator without gradients."""
    was = torch._C._get_mkldnn_enabled()
    is_there = bool(graph_module.graph.find_nodes(op="call_function", target=torch.lstm))
    torch._C._set_mkldnn_enabled(was and not is_there)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was)


def register_recurrence(registry: Any) -> None:
    """Register the ONNX forms of ATen's operators for our own."""
    for custom_operator, theirs in PRESERVED_OPERATORS.values():
        for form in registry.get_decomps(theirs):
            registry.register_op(custom_operator, form.onnx_function)


def _is_plain(node: fx.Node) -> bool:
    if len(node.args) != _ARGUMENTS or node.kwargs or not isinstance(node.args[2], (tuple, list)):
        return False
    states = node.args[_STATE] if isinstance(node.args[_STATE], (tuple, list)) else [node.args[_STATE]]
    widths = [state.meta["example_value"].shape[-1] for state in states if isinstance(state, fx.Node)]
    drops = node.args[_TRAIN] and node.args[_DROPOUT] and node.args[_LAYERS] != 1
    return len(set(widths)) == 1 and not drops
