"""Converters of reductions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from nnadapter.converters.context import ConversionContext, normalize_axes
from nnadapter.converters.registry import NodeWriter, OnnxNode, converter, exporter
from nnadapter.ir import DataType
from nnadapter.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reduction:
    context: ConversionContext
    input: int
    axes: tuple[int, ...]
    keepdims: bool
    outputs: tuple[str, ...]

    def reduce(self, type_: str, operand: int, outputs: tuple[str, ...] = ()) -> int:
        if self.axes:
            return self.context.apply(type_, operand, outputs=outputs, axes=self.axes, keepdims=self.keepdims)
        return self.context.apply("ASSIGN", operand, outputs=outputs) if outputs else operand

    def reduce_keeping_axes(self, type_: str, operand: int) -> int:
        return self.context.apply(type_, operand, axes=self.axes, keepdims=True)

    def step(self, type_: str, *operands: int, outputs: tuple[str, ...] = ()) -> int:
        return self.context.apply(type_, *operands, outputs=outputs)


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
    """Add log(sum(exp(x - m))) + m for the finite maximum m: nothing overflows, and inf - inf does not occur."""
    if not reduction.axes:
        reduction.step("ASSIGN", reduction.input, outputs=reduction.outputs)
        return
    context = reduction.context
    largest = reduction.reduce_keeping_axes("REDUCE_MAX", reduction.input)
    limit = _largest_finite(context.type_of(reduction.input).dtype)
    largest = context.apply("CLIP", largest, min=-limit, max=limit)
    raised = reduction.step("EXP", reduction.step("SUB", reduction.input, largest))
    logarithm = reduction.step("LOG", reduction.reduce_keeping_axes("REDUCE_SUM", raised))
    if reduction.keepdims:
        reduction.step("ADD", logarithm, largest, outputs=reduction.outputs)
        return
    total = reduction.step("ADD", logarithm, largest)
    dimensions = context.type_of(total).dimensions
    shape = tuple(size for axis, size in enumerate(dimensions) if axis not in reduction.axes)
    context.apply("RESHAPE", total, outputs=reduction.outputs, shape=shape)


def _largest_finite(data_type: DataType) -> float:
    # bfloat16 has float32's exponents and 8 bits of fraction; numpy only knows IEEE types
    special = {DataType.BFLOAT16: float.fromhex("0x1.fep127")}
    if data_type in special or not data_type.is_floating:
        return special.get(data_type, float("inf"))
    return float(np.finfo(np.dtype(data_type)).max)


_RULES: Mapping[str, tuple[_Rule, tuple[int, ...]]] = {
    "ReduceL1": (_l1, (1, 11, 13, 18)),
    "ReduceL2": (_l2, (1, 11, 13, 18)),
    "ReduceLogSum": (_log_sum, (1, 11, 13, 18, 28)),
    "ReduceLogSumExp": (_log_sum_exp, (1, 11, 13, 18, 28)),
    "ReduceMax": (partial(_plain, "REDUCE_MAX"), (1, 11, 12, 13, 18, 20)),
    "ReduceMean": (partial(_plain, "REDUCE_MEAN"), (1, 11, 13, 18)),
    "ReduceMin": (partial(_plain, "REDUCE_MIN"), (1, 11, 12, 13, 18, 20)),
    "ReduceProd": (partial(_plain, "REDUCE_PROD"), (1, 11, 13, 18)),
    "ReduceSum": (partial(_plain, "REDUCE_SUM"), (1, 11, 13)),
    "ReduceSumSquare": (lambda reduction: _square_sum(reduction, reduction.outputs), (1, 11, 13, 18)),
}


def _convert(rule: _Rule, context: ConversionContext, node: OnnxNode) -> None:
    rank = context.rank(node)
    axes: Sequence[int] = context.attribute_or_input(node, "axes", 1) or ()
    if not axes and not node.integer("noop_with_empty_axes", 0):
        axes = range(rank)
    rule(
        _Reduction(
            context=context,
            input=context.operand(node.input(0)),
            axes=tuple(sorted(normalize_axes(node, axes, rank))),
            keepdims=bool(node.integer("keepdims", 1)),
            outputs=node.outputs,
        )
    )


for _op_type, (_rule, _versions) in _RULES.items():
    converter(_op_type, *_versions)(partial(_convert, _rule))


_REDUCTIONS: Mapping[str, str] = {
    "REDUCE_MAX": "ReduceMax",
    "REDUCE_MEAN": "ReduceMean",
    "REDUCE_MIN": "ReduceMin",
    "REDUCE_PROD": "ReduceProd",
    "REDUCE_SUM": "ReduceSum",
}


@exporter(*_REDUCTIONS)
def export_reduction(write: NodeWriter) -> str:
    """Export reductions as ReduceMax, ReduceMin, ReduceMean, ReduceProd and ReduceSum."""
    axes = write.operation.axes
    if not axes:
        return write.node("Identity", write.inputs[0])
    op_type = _REDUCTIONS[write.operation.type]
    return write.node(op_type, write.inputs[0], write.integers(*axes), keepdims=write.operation.keepdims)
