"""Forms that the engine computes wrongly are handed over as others that it does not: a table of what is done, by op."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from nnadapter.drivers.openvino.booleans import compare_booleans
from nnadapter.drivers.openvino.comparisons import compare_the_other_way
from nnadapter.drivers.openvino.divisions import divide_exactly
from nnadapter.drivers.openvino.extremes import reach_infinities
from nnadapter.drivers.openvino.guards import GUARDS
from nnadapter.drivers.openvino.integer_sums import keep_sums
from nnadapter.drivers.openvino.joined_steps import join_steps
from nnadapter.drivers.openvino.kept_shapes import separate_shape_preserving
from nnadapter.drivers.openvino.large_terms import keep_small_terms
from nnadapter.drivers.openvino.lone_keys import part_scores
from nnadapter.drivers.openvino.opposite_orders import leave_out_opposite_orders
from nnadapter.drivers.openvino.overlaps import exclude_thresholds
from nnadapter.drivers.openvino.permutations import keep_permutations
from nnadapter.drivers.openvino.quantization import QUANTIZING
from nnadapter.drivers.openvino.reals import keep_real
from nnadapter.drivers.openvino.rectified import part_rectified
from nnadapter.drivers.openvino.reductions import reduce_in_four_dimensions
from nnadapter.drivers.openvino.shared_products import part_products
from nnadapter.drivers.openvino.signs import keep_signs
from nnadapter.drivers.openvino.turned_products import part_from_orders
from nnadapter.drivers.openvino.wide_steps import keep_bounds

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_REDUCING = (*(f"Reduce{name}" for name in _REDUCTIONS), "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")
"""Ops of which the engine makes reductions."""
_WORKAROUNDS: Sequence[tuple[Collection[str], Sequence[Callable[[Any], None]]]] = (
    (QUANTIZING, (join_steps, keep_bounds, keep_real, part_products, keep_signs, part_rectified, keep_sums)),
    (("NonMaxSuppression",), (exclude_thresholds,)),
    (("Add", "Sub", "Mul", "Div"), (keep_small_terms,)),
    (("Gather", "Split"), (keep_permutations,)),
    (("Greater", "GreaterOrEqual"), (compare_the_other_way,)),
    (("Cast",), (compare_booleans,)),
    (("Round",), (divide_exactly,)),
    (("Exp", "Softmax"), (part_scores,)),
    (("Transpose",), (leave_out_opposite_orders, part_from_orders, separate_shape_preserving)),
    (("ReduceMax", "ReduceMin"), (reach_infinities,)),
    (_REDUCING, (reduce_in_four_dimensions,)),
)
"""ONNX's ops, and what is done where a model has one of them, in this order."""


NOTES = ("nnadapter", "notes")
"""Where an engine's model has notes of what was changed, a line for each."""


def mend(model: Any, ops: Collection[str]) -> None:
    """Change an engine's model, and write notes for the report into it.

    Args:
        model: as the engine read it.
        ops: names of ONNX's ops that it was written in.
    """
    for concerned, steps in _WORKAROUNDS:
        if not set(concerned).isdisjoint(ops):
            for step in steps:
                step(model)
    operators = [(operator.get_type_name(), operator) for operator in model.get_ordered_ops()]
    notes = list(filter(None, [guard(operators) for guard in GUARDS.values()]))
    if notes:
        model.set_rt_info("\n".join(notes), list(NOTES))
