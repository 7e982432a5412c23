"""Table of OpenVINO's defects and their workarounds.

Each row has a model in `tests/drivers/openvino/test_workarounds.py`. When that test fails, delete the row and its
function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from nnadapter.drivers.openvino import arithmetic_workarounds as arithmetic
from nnadapter.drivers.openvino import fusion_workarounds as fusion
from nnadapter.drivers.openvino import layout_workarounds as layout
from nnadapter.drivers.openvino import quantized_workarounds as quantized
from nnadapter.drivers.openvino.graph import Operators
from nnadapter.drivers.openvino.operators import QUANTIZING, name_set
from nnadapter.records import dataclass

_REDUCTIONS = name_set(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)


@dataclass(frozen=True, kw_only=True)
class Workaround:
    """Defect of the engine and its workaround."""

    name: str
    defect: str
    action: str
    apply: Callable[..., str | None] | None = None
    """Function that changes one operator of `kinds` or, if `kinds` is empty, all operators. May return a note."""
    function: str = ""
    kinds: frozenset[str] = frozenset()
    ops: frozenset[str] = frozenset()
    """ONNX ops that require it; empty for every model."""
    seen: str = "2026.4.1"
    """Newest version with the defect."""
    fixed: str = ""
    """Version without the defect; keep the row until `engine.OLDEST` reaches it."""
    processors: str = ""
    changes_shapes: bool = False

    def run(self, operators: Operators) -> str | None:
        if self.apply is None:
            return None
        if not self.kinds:
            return self.apply(operators)
        for kind, operator in operators:
            if kind in self.kinds:
                self.apply(operator)
        return None


_quantized = partial(Workaround, ops=QUANTIZING)
_transposed = partial(Workaround, ops=name_set("Transpose"), kinds=name_set("Transpose"))

WORKAROUNDS: tuple[Workaround, ...] = (
    _quantized(
        name="joined values of 8 bits",
        defect="The quantizer and dequantizer of a Concat move before it in several steps: the process "
        "crashes if the last of them was fused into a consumer, and zero points of int8 become -128 for 128.",
        action="One step quantizes and dequantizes.",
        apply=quantized.join_steps,
    ),
    _quantized(
        name="bounds of 16 bits",
        defect="A value that is quantized to 16 bits and dequantized at once is neither; its bounds are lost, also a "
        "Relu that became one.",
        action="A maximum and a minimum before the quantizer keep the bounds; only rounding is missing.",
        apply=quantized.keep_bounds,
        kinds=name_set("FakeQuantize"),
    ),
    _quantized(
        name="operators in integers",
        defect="Operators that read dequantized values are computed in integers: padding is the integer 0, bounds are "
        "whole numbers, zero points of dynamic channels are mistaken, and reductions of three dimensions read the "
        "zero points of the first batch for all of them.",
        action="An opaque step is inserted before the operator.",
        apply=quantized.keep_real,
        kinds=frozenset(quantized.REAL),
    ),
    _quantized(
        name="products with several readers",
        defect="With dynamic shapes a product of quantized values is scaled for one reader, and others scale it again.",
        action="A step after the product is its only reader.",
        apply=quantized.part_products,
        kinds=quantized.PRODUCTS,
    ),
    _quantized(
        name="negative factors",
        defect="With dynamic shapes and a factor per channel a quantizer does the product as well, between bounds of "
        "which the lower one is the larger.",
        action="An opaque step separates a product with negative numbers from the quantizer before or after it.",
        apply=quantized.keep_signs,
    ),
    _quantized(
        name="rectified products",
        defect="The scale of a product without bias absorbs the factor of the rectified product: relu(s x) "
        "for s relu(x), also for a negative s.",
        action="An opaque step separates the rectifier from the product.",
        apply=quantized.part_rectified,
        kinds=name_set("PRelu Relu"),
    ),
    _quantized(
        name="sums of 8-bit products",
        defect="Processors without VNNI add two products of 8 bits in 16 bits, which overflow for weights above 64.",
        action="Such a product is computed in floating point if a small product shows that the processor overflows.",
        processors="AVX2, and AVX-512 without VNNI",
        apply=quantized.keep_sums,
        kinds=quantized.PRODUCTS,
    ),
    Workaround(
        name="overlap thresholds",
        defect="NonMaxSuppression suppresses a box that overlaps another one by exactly the threshold.",
        action="The threshold becomes the next larger float.",
        apply=arithmetic.exclude_threshold,
        kinds=name_set("NonMaxSuppression"),
        ops=name_set("NonMaxSuppression"),
    ),
    Workaround(
        name="large terms",
        defect="Constants are added up: (x + a) + b becomes x + (a + b), (x + a) * b becomes x * b + a * b. A large "
        "constant that x cancels, such as a mask, absorbs a small one; products become infinite.",
        action="An opaque step separates the constants if those of the first sum or product are large.",
        apply=arithmetic.keep_small_terms,
        ops=name_set("Add Sub Mul Div"),
    ),
    Workaround(
        name="gathered channels",
        defect="A Gather that permutes channels moves into the filters after it as its inverse.",
        action="Its axis counts from the end, which the engine does not match.",
        apply=layout.keep_gather,
        kinds=name_set("Gather"),
        ops=name_set("Gather Split"),
    ),
    Workaround(
        name="permuted parts",
        defect="A Split and a Concat of three parts move into the filters after them as single channels.",
        action="The sizes of the parts are stated, which the engine does not match.",
        apply=layout.keep_parts,
        kinds=name_set("Concat"),
        ops=name_set("Gather Split"),
    ),
    Workaround(
        name="NaN in comparisons",
        defect="NaN is greater than everything.",
        action="Less compares, with the inputs exchanged.",
        seen="2026.4",
        processors="other processors than those with AVX2 alone, where 2026.4.1 is right",
        apply=arithmetic.compare_the_other_way,
        kinds=name_set("Greater GreaterEqual"),
        ops=name_set("Greater GreaterOrEqual"),
    ),
    Workaround(
        name="conversions to boolean",
        defect="Convert takes the first part of a Split for every part, and makes NaN false.",
        action="A comparison with zero converts.",
        apply=arithmetic.compare_booleans,
        kinds=name_set("Convert"),
        ops=name_set("Cast"),
    ),
    Workaround(
        name="rounded quotients",
        defect="A division becomes a product with the reciprocal, off by the last bit in a tenth of all cases: Round "
        "takes halves to the other neighbor.",
        action="The engine's own mark keeps the division.",
        apply=arithmetic.divide_exactly,
        kinds=name_set("Divide"),
        ops=name_set("Round"),
    ),
    Workaround(
        name="attention that begins with one key",
        defect="Attention over a dynamic number of keys, which was 1 in the first run of a program, is wrong from 16 "
        "keys on, in every later run.",
        action="An opaque step is inserted before the Softmax if it has no mask.",
        apply=layout.part_scores,
        kinds=name_set("Exp Softmax"),
        ops=name_set("Exp Softmax"),
    ),
    _transposed(
        name="transposes that undo each other",
        defect="After a convolution with channels last, a Transpose that undoes another one around elementwise "
        "operators goes away with it, and the result keeps the order of the memory.",
        action="Both are removed from the model.",
        apply=layout.leave_out_opposite_order,
        changes_shapes=True,
    ),
    _transposed(
        name="transposed convolutions of pixels",
        defect="A convolution of single pixels by a dequantized filter, and a Transpose of it, become one product of "
        "matrices, which has one order of dimensions for all.",
        action="An opaque step separates the two.",
        apply=quantized.part_from_order,
    ),
    _transposed(
        name="transposes that keep the shape",
        defect="In attention with as many heads as tokens, a Transpose that keeps the static shape is dropped.",
        action="Opaque steps are inserted before and after it; one alone does not help.",
        apply=layout.separate_shape_preserving,
    ),
    Workaround(
        name="infinite extremes",
        defect="ReduceMax and ReduceMin begin with the largest finite number, and end with it if all elements are "
        "infinite.",
        action="Halves are reduced, and the engine's initial value becomes infinity.",
        apply=arithmetic.reach_infinities,
        kinds=name_set("ReduceMax ReduceMin"),
        ops=name_set("ReduceMax ReduceMin"),
    ),
    Workaround(
        name="reductions of three dimensions",
        defect="A reduction over the first or last of three dimensions takes the constants per channel of the "
        "elementwise operators after it from the first batch, and reads beyond their end.",
        action="A fourth dimension of size 1 is reduced as well.",
        apply=layout.reduce_in_four_dimensions,
        kinds=name_set("ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum"),
        ops=_REDUCTIONS | name_set("GlobalAveragePool GlobalLpPool GlobalMaxPool"),
    ),
    Workaround(
        name="casts to the same type",
        defect="The output of a Convert to the type of its input stays unwritten if the input has other readers.",
        action="The Convert is removed; one that is an output becomes an opaque step.",
        apply=fusion.replace_cast,
        kinds=name_set("Convert"),
    ),
    Workaround(
        name="constants that enlarge",
        defect="A constant that enlarges the other operand is read as a single number, or is dropped.",
        action="The operand is broadcast before.",
        apply=fusion.broadcast_before_constants,
    ),
    Workaround(
        name="reductions that drop dimensions",
        defect="A norm or Softmax of a reduction that drops its dimensions is fused as one along these dimensions.",
        action="An opaque step follows the reduction if elementwise operators read it.",
        apply=fusion.separate_reduction,
        kinds=_REDUCTIONS | name_set("ReduceLogicalAnd ReduceLogicalOr"),
    ),
    Workaround(
        name="gates of attention",
        defect="The process crashes if an operand goes into attention whose result has a further reader. Attention "
        "combined with an operand of more dimensions does not compile.",
        action="An opaque step follows the operand; or the result, if the operand has more dimensions.",
        apply=fusion.separate_gates,
        kinds=name_set("MatMul"),
    ),
    Workaround(
        name="weights of another rank",
        defect="Products of a Softmax of another rank are fused as attention, and do not compile.",
        action="An opaque step is inserted before the product.",
        apply=fusion.separate_weights,
        kinds=name_set("MatMul"),
    ),
    Workaround(
        name="products with one number",
        defect="A product with a constant matrix of one element goes into the product before it, and does not compile.",
        action="It becomes an elementwise product.",
        apply=fusion.multiply_by_number,
        kinds=name_set("MatMul"),
    ),
    Workaround(
        name="slopes of one dimension",
        defect="Relu and a product become a PRelu, which reads a vector with as many elements as channels as one "
        "number per channel.",
        action="An opaque step separates them.",
        apply=fusion.separate_slope,
        kinds=name_set("Multiply"),
    ),
    Workaround(
        name="rotary embeddings of another form",
        defect="Every Concat of a negated half and the other half becomes a rotary embedding that negates the second "
        "half and reads tables of full width.",
        action="An opaque step follows the Concat.",
        apply=fusion.separate_rotation,
        kinds=name_set("Concat"),
    ),
    Workaround(
        name="computed factors of Swish",
        defect="A Sigmoid of a product with a computed number becomes a Swish, which takes numbers without dimensions.",
        action="An opaque step is inserted before the Sigmoid.",
        apply=fusion.separate_factor,
        kinds=name_set("Sigmoid"),
    ),
    Workaround(
        name="scales",
        defect="In quantized models a scale before a norm is dropped, with epsilon as it was; a scale per channel "
        "moves after a Gather, where it is of another dimension.",
        action="Opaque steps are inserted before norms, and before a Gather whose indices have several dimensions.",
        apply=fusion.separate_scales,
    ),
    Workaround(
        name="long chains",
        defect="Elementwise operators in a row become one kernel, whose compile time is cubic in their number.",
        action="An opaque step follows every hundredth of them.",
        apply=fusion.divide_chains,
    ),
    Workaround(
        name="inputs as outputs",
        defect="An input that is an output shares a tensor with it: memory set for the output becomes that of "
        "the input.",
        action="A Transpose that changes nothing separates the two.",
        apply=layout.keep_input_apart,
        kinds=name_set("Result"),
    ),
    Workaround(
        name="axes as an attribute",
        defect="ReduceL1, ReduceLogSum and ReduceLogSumExp of opsets 13 to 17 reduce all dimensions: the reader looks "
        "for the axes among the inputs.",
        action="The axes become an input.",
        function="compiler.with_axes_as_input",
    ),
    Workaround(
        name="recurrent programs read again",
        defect="LSTM, GRU and RNN mix up the sequences of a batch after `export_model` and `import_model`.",
        action="Such a program is not serialized.",
        function="compiler.is_read_as_written",
    ),
    Workaround(
        name="rotary embeddings read again",
        defect="After `export_model` and `import_model` tables half as wide as the rotated tensor are read "
        "beyond their end.",
        action="Such a program is not serialized.",
        function="program.turns_by_narrow_tables",
    ),
    Workaround(
        name="runs after a failed one",
        defect="After a run with dynamic shapes has failed, results at other sizes are wrong, or the process crashes.",
        action="The program is exported and imported again.",
        function="program.RecoverableModel",
    ),
    Workaround(
        name="stopped runs",
        defect="Results after a cancelled run are wrong, or of another shape, with dynamic or data-dependent shapes.",
        action="Only a run of static shapes is cancelled.",
        function="program.OpenvinoExecution.compute_within",
    ),
)

NOTES = ("nnadapter", "notes")


def apply_workarounds(model: Any, ops: Collection[str]) -> None:
    """Apply the workarounds that a model with these ONNX ops requires, in place, and store their notes in the model."""
    for row in WORKAROUNDS:
        if not row.ops.isdisjoint(ops):
            row.run(_operators(model))
            if row.changes_shapes:
                model.validate_nodes_and_infer_types()
    operators = _operators(model)
    notes = list(filter(None, [row.run(operators) for row in WORKAROUNDS if not row.ops]))
    if notes:
        model.set_rt_info("\n".join(notes), list(NOTES))


def _operators(model: Any) -> Operators:
    return [(operator.get_type_name(), operator) for operator in model.get_ordered_ops()]
