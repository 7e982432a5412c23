"""Converters of reductions, TopK and cumulative ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nnadapter.converters.context import constant_integers, normalize_axes, normalize_axis, required_integers
from nnadapter.converters.registry import ConversionContext, OnnxNode, Reason, Refusal, converter, exporter
from nnadapter.ir import AttributeValue, DataType
from nnadapter.records import dataclass

if TYPE_CHECKING:
    from nnadapter.converters.writer import NodeWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reduction:
    context: ConversionContext
    input: int
    axes: tuple[int, ...]
    keepdims: bool
    outputs: tuple[str, ...]

    def reduce(self, type_: str, operand: int, outputs: tuple[str, ...] = ()) -> int:
        if self.axes:
            attributes: dict[str, AttributeValue] = {"axes": self.axes, "keepdims": self.keepdims}
            return self.context.add(type_, (operand,), attributes, outputs)[0]
        return self.context.add("ASSIGN", (operand,), outputs=outputs)[0] if outputs else operand

    def reduce_keeping_axes(self, type_: str, operand: int) -> int:
        return self.context.add(type_, (operand,), {"axes": self.axes, "keepdims": True})[0]

    def step(self, type_: str, *operands: int, outputs: tuple[str, ...] = ()) -> int:
        return self.context.add(type_, operands, outputs=outputs)[0]


_Rule = Callable[[_Reduction], object]


def _plain(type_: str, reduction: _Reduction) -> None:
    reduction.reduce(type_, reduction.input, reduction.outputs)


def _l1(reduction: _Reduction) -> None:
    if not reduction.axes:
        reduction.step("ABS", reduction.input, outputs=reduction.outputs)
        return
    reduction.reduce("REDUCE_SUM", reduction.step("ABS", reduction.input), reduction.outputs)


def _square_sum(reduction: _Reduction, outputs: tuple[str, ...]) -> int:
    if not reduction.axes:
        return reduction.step("MUL", reduction.input, reduction.input, outputs=outputs)
    return reduction.reduce("REDUCE_SUM", reduction.step("MUL", reduction.input, reduction.input), outputs)


def _l2(reduction: _Reduction) -> None:
    reduction.step("SQRT", _square_sum(reduction, ()), outputs=reduction.outputs)


def _log_sum(reduction: _Reduction) -> None:
    reduction.step("LOG", reduction.reduce("REDUCE_SUM", reduction.input), outputs=reduction.outputs)


def _log_sum_exp(reduction: _Reduction) -> None:
    """Subtract the finite maximum, so that nothing overflows and inf - inf does not occur."""
    if not reduction.axes:
        reduction.step("ASSIGN", reduction.input, outputs=reduction.outputs)
        return
    context = reduction.context
    largest = reduction.reduce_keeping_axes("REDUCE_MAX", reduction.input)
    limit = _largest_finite(context.type_of(reduction.input).dtype)
    (largest,) = context.add("CLIP", (largest,), {"min": -limit, "max": limit})
    raised = reduction.step("EXP", reduction.step("SUB", reduction.input, largest))
    logarithm = reduction.step("LOG", reduction.reduce_keeping_axes("REDUCE_SUM", raised))
    if reduction.keepdims:
        reduction.step("ADD", logarithm, largest, outputs=reduction.outputs)
        return
    total = reduction.step("ADD", logarithm, largest)
    dimensions = context.type_of(total).dimensions
    shape = tuple(size for axis, size in enumerate(dimensions) if axis not in reduction.axes)
    context.add("RESHAPE", (total,), {"shape": shape}, reduction.outputs)


def _largest_finite(data_type: DataType) -> float:
    # bfloat16 has float32's exponents and 8 bits of fraction; numpy only knows IEEE types
    special = {DataType.BFLOAT16: float.fromhex("0x1.fep127")}
    if data_type in special or not data_type.is_floating:
        return special.get(data_type, float("inf"))
    return float(np.finfo(np.dtype(data_type)).max)


_RULES: Mapping[str, tuple[_Rule, tuple[int, ...], tuple[int, ...]]] = {
    "ReduceL1": (_l1, (1, 11, 13), (18,)),
    "ReduceL2": (_l2, (1, 11, 13), (18,)),
    "ReduceLogSum": (_log_sum, (1, 11, 13), (18, 28)),
    "ReduceLogSumExp": (_log_sum_exp, (1, 11, 13), (18, 28)),
    "ReduceMax": (partial(_plain, "REDUCE_MAX"), (1, 11, 12, 13), (18, 20)),
    "ReduceMean": (partial(_plain, "REDUCE_MEAN"), (1, 11, 13), (18,)),
    "ReduceMin": (partial(_plain, "REDUCE_MIN"), (1, 11, 12, 13), (18, 20)),
    "ReduceProd": (partial(_plain, "REDUCE_PROD"), (1, 11, 13), (18,)),
    "ReduceSum": (partial(_plain, "REDUCE_SUM"), (1, 11), (13,)),
    "ReduceSumSquare": (
        lambda reduction: _square_sum(reduction, reduction.outputs),
        (1, 11, 13),
        (18,),
    ),
}
"""Op -> rule, versions with axes as an attribute, as an input."""


def _with_attribute(rule: _Rule, context: ConversionContext, node: OnnxNode) -> None:
    """Convert with axes as an attribute; empty means all."""
    _convert(rule, context, node, node.integers("axes") or None)


def _with_input(rule: _Rule, context: ConversionContext, node: OnnxNode) -> None:
    """Convert with axes as an input; empty means all, or none with `noop_with_empty_axes`."""
    axes = constant_integers(context, node, 1) or None
    _convert(rule, context, node, () if axes is None and node.integer("noop_with_empty_axes", 0) else axes)


def _convert(rule: _Rule, context: ConversionContext, node: OnnxNode, axes: tuple[int, ...] | None) -> None:
    rank = len(context.dimensions(node.input(0)))
    reduced = range(rank) if axes is None else sorted(normalize_axes(node, axes, rank))
    rule(
        _Reduction(
            context=context,
            input=context.operand(node.input(0)),
            axes=tuple(reduced),
            keepdims=bool(node.integer("keepdims", 1)),
            outputs=node.outputs,
        )
    )


for _op_type, (_rule, _attribute_versions, _input_versions) in _RULES.items():
    converter(_op_type, *_attribute_versions)(partial(_with_attribute, _rule))
    converter(_op_type, *_input_versions)(partial(_with_input, _rule))


@converter("CumProd", 26)
def convert_cum_prod(context: ConversionContext, node: OnnxNode) -> None:
    """Convert CumProd (26), with a constant axis, to CUM_PROD."""
    axes = required_integers(context, node, 1)
    if len(axes) != 1:
        raise Refusal(Reason.INVALID_NODE, f"input 1 of CumProd has {len(axes)} elements; expected one axis")
    axis = normalize_axis(node, axes[0], len(context.dimensions(node.input(0))))
    flags = {name: bool(node.integer(name, 0)) for name in ("exclusive", "reverse")}
    context.add("CUM_PROD", (context.operand(node.input(0)),), {"axis": axis, **flags}, node.outputs)


def _axis(context: ConversionContext, node: OnnxNode, default: int) -> int:
    return normalize_axis(node, node.integer("axis", default), len(context.dimensions(node.input(0))))


@converter("TopK", 1)
def convert_top_k_attribute(context: ConversionContext, node: OnnxNode) -> None:
    """Convert TopK (1) to TOP_K."""
    _add_top_k(context, node, node.integer("k"))


@converter("TopK", 10, 11, 24)
def convert_top_k(context: ConversionContext, node: OnnxNode) -> None:
    """Convert TopK (10, 11, 24), with constant k, to TOP_K."""
    (k,) = _single_integer(context, node, 1)
    _add_top_k(context, node, k)


def _add_top_k(context: ConversionContext, node: OnnxNode, k: int) -> None:
    attributes: dict[str, AttributeValue] = {
        "k": k,
        "axis": _axis(context, node, -1),
        "largest": bool(node.integer("largest", 1)),
        "sorted": bool(node.integer("sorted", 1)),
    }
    context.add("TOP_K", (context.operand(node.input(0)),), attributes, node.outputs)


@converter("CumSum", 11, 14)
def convert_cum_sum(context: ConversionContext, node: OnnxNode) -> None:
    """Convert CumSum (11, 14), with a constant axis, to CUM_SUM."""
    (axis,) = _single_integer(context, node, 1)
    attributes: dict[str, AttributeValue] = {
        "axis": normalize_axis(node, axis, len(context.dimensions(node.input(0)))),
        "exclusive": bool(node.integer("exclusive", 0)),
        "reverse": bool(node.integer("reverse", 0)),
    }
    context.add("CUM_SUM", (context.operand(node.input(0)),), attributes, node.outputs)


def _single_integer(context: ConversionContext, node: OnnxNode, position: int) -> tuple[int]:
    values = required_integers(context, node, position)
    if len(values) != 1:
        raise Refusal(
            Reason.INVALID_NODE, f"input {position} of {node.op_type} is {list(values)}; expected one integer"
        )
    return (values[0],)


_REDUCTIONS: Mapping[str, str] = {
    "REDUCE_MAX": "ReduceMax",
    "REDUCE_MEAN": "ReduceMean",
    "REDUCE_MIN": "ReduceMin",
    "REDUCE_PROD": "ReduceProd",
    "REDUCE_SUM": "ReduceSum",
}


@exporter(*_REDUCTIONS)
def export_reduction(write: NodeWriter) -> str:
    """Export reductions as ReduceMax (20), ReduceMin (20), ReduceMean (18), ReduceProd (18), ReduceSum (13)."""
    axes = write.operation.axes
    if not axes:
        return write.node("Identity", write.inputs[0])
    op_type = _REDUCTIONS[write.operation.type]
    return write.node(op_type, write.inputs[0], write.integers(*axes), keepdims=write.operation.keepdims)
