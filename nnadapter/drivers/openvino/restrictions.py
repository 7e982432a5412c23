"""What of the ops in the table is refused for its attributes or inputs, and why.

Each row is one way in which the engine computes something else than ONNX says, or does not compile. They were found by
onnx's operator tests and by a sweep over the attributes of every op (`tests/drivers/openvino/sweep`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx

from nnadapter.drivers.openvino.forms import (
    DynamicSize,
    DynamicSizeError,
    Form,
    changes_channels,
    is_crossed,
    is_crosswise,
    is_filled,
    is_plain_einsum,
    is_read_plainly_too,
    is_spread_over_weights,
    lone_labels,
    makes_part_of_pixel,
    other_functions_backwards,
    overhanging,
    padded_pixels,
    padding_to_shape,
    pads_whole_windows,
    single_column,
    swaps_alike,
    wide_strides,
)
from nnadapter.drivers.openvino.quantization import has_scales_elsewhere, has_unsigned_filter, is_beside_quantized
from nnadapter.onnx.parts import Parts
from partition.verdict import SUPPORTED, Reason, Unsupported, Verdict


@dataclass(frozen=True, slots=True)
class Restriction:
    """One kind of form that is not taken."""

    ops: str
    """Op types, with spaces between."""
    holds: Callable[[Form], object]
    why: str
    """What goes on behind the op's name."""
    reason: Reason = Reason.UNSUPPORTED_ATTRIBUTE


def restriction(node: onnx.NodeProto, parts: Parts, sizes: Collection[str] = ()) -> Verdict:
    """Return why the attributes or inputs of a node are not taken, or a yes.

    Args:
        node: of a model.
        parts: of the model.
        sizes: values that follow from the shapes of its inputs, which are open.
    """
    form = Form.of(node, parts, sizes)
    return _first(form, _OPEN if form.is_open else _FIXED)


def data_restriction(node: onnx.NodeProto, parts: Parts) -> Verdict:
    """The same for what else is refused where data decide over sizes."""
    return _first(Form.of(node, parts), _OF_DATA)


def _first(form: Form, table: Mapping[str, Sequence[Restriction]]) -> Verdict:
    node = form.node
    try:
        matching_row = next((row for row in table.get(node.op_type, ()) if row.holds(form)), None)
    except DynamicSizeError:
        return Unsupported(Reason.DYNAMIC_SHAPE, f"{node.op_type} is taken or not by sizes that are left open")
    return SUPPORTED if matching_row is None else Unsupported(matching_row.reason, f"{node.op_type} {matching_row.why}")


_UNREAD_COORDINATES = (b"half_pixel_symmetric", b"tf_crop_and_resize")
"""Of Resize."""
RESTRICTIONS = (
    Restriction(
        "Reshape Expand Tile Squeeze Unsqueeze Split Trilu",
        lambda form: not form.constant(1),
        "is taken with a constant second input, whose result has a known shape",
        Reason.NOT_CONSTANT,
    ),
    Restriction(
        "Slice Pad Resize Upsample",
        lambda form: not form.constant(1, 2, 3, 4),
        "is taken where all inputs but the first are constants",
        Reason.NOT_CONSTANT,
    ),
    Restriction(
        "Dropout",
        lambda form: form.has(2) or len(list(filter(None, form.node.output))) > 1 or not form.constant(1),
        "is taken as it is at inference: no training_mode, no mask, a constant ratio",
    ),
    Restriction(
        "Where",
        lambda form: len(set(form.node.input)) == 1,
        "whose inputs are one value is not compiled",
    ),
    Restriction(
        "Resize",
        lambda form: form.attribute("antialias", 0) or form.attribute("exclude_outside", 0),
        "with antialias or exclude_outside weighs pixels in another way than ONNX says",
    ),
    Restriction(
        "Resize",
        lambda form: (
            form.attribute("coordinate_transformation_mode", b"") == b"align_corners"
            and any(scale % 1 for scale in form.scales)
        ),
        "with aligned corners and scales that are no whole numbers samples at other places than ONNX says",
    ),
    Restriction(
        "Resize",
        lambda form: form.attribute("coordinate_transformation_mode", b"") in _UNREAD_COORDINATES,
        "with the coordinates of half_pixel_symmetric or tf_crop_and_resize is not compiled",
    ),
    Restriction(
        "Resize",
        lambda form: form.attribute("keep_aspect_ratio_policy", b"stretch") != b"stretch",
        "that keeps the aspect ratio makes another shape than ONNX says",
    ),
    Restriction(
        "Resize",
        lambda form: form.opset < 11 and form.attribute("mode", b"") == b"cubic",
        "with mode cubic below opset 11 samples at other places than ONNX Runtime",
    ),
    Restriction(
        "Resize Upsample",
        changes_channels,
        "of four dimensions or more is compiled where batch and channels stay as they are",
    ),
    Restriction(
        "Resize",
        makes_part_of_pixel,
        "with scales that make no whole size samples at other places than ONNX says",
    ),
    Restriction(
        "Upsample",
        lambda form: any(scale % 1 for scale in form.scales),
        "with scales that are no whole numbers samples at other places than ONNX says",
    ),
    Restriction(
        "NonMaxSuppression",
        lambda form: not form.constant(3),
        "is taken with a constant iou_threshold",
        Reason.NOT_CONSTANT,
    ),
    Restriction("LSTM", lambda form: form.has(7), "leaves peepholes out"),
    Restriction("LSTM", lambda form: form.attribute("input_forget", 0), "leaves input_forget out"),
    Restriction(
        "LSTM GRU RNN", lambda form: form.attribute("layout", 0), "with layout 1 makes another shape than ONNX says"
    ),
    Restriction(
        "LSTM GRU RNN",
        other_functions_backwards,
        "takes the functions of the forward direction for both directions",
    ),
    Restriction("SpaceToDepth", lambda form: form.attribute("mode", b"DCR") != b"DCR", "is computed in mode DCR only"),
    Restriction(
        "AveragePool MaxPool",
        wide_strides,
        "that pads by itself, with strides wider than its window or with dilations, looks at other places than "
        "ONNX Runtime",
    ),
    Restriction(
        "AveragePool",
        overhanging,
        "with ceil_mode and count_include_pad divides by another number where a window hangs over the padding",
    ),
    Restriction(
        "Conv",
        single_column,
        "of one channel that strides in its last dimension alone, and makes one element of it, skips rows",
    ),
    Restriction(
        "ConvTranspose", padding_to_shape, "with an output_shape that has to be padded to puts the padding elsewhere"
    ),
    Restriction(
        "LRN",
        lambda form: form.attribute("size", 1) % 2 == 0,
        "of an even size takes the window from other channels than ONNX says",
    ),
    Restriction(
        "LRN",
        lambda form: form.attribute("bias", 1.0) % 1 or form.attribute("alpha", 1.0) < 0,
        "cuts bias to a whole number, and is wrong with a negative alpha",
    ),
    Restriction(
        "PRelu",
        lambda form: len(form.shape(0)) > 2 and form.shape(1) == form.shape(0)[1:2] != (1,),
        "takes a slope of one dimension, as long as there are channels, for one per channel",
    ),
    Restriction(
        "InstanceNormalization", lambda form: len(form.shape(0)) < 3, "of two dimensions does not normalize to zero"
    ),
    Restriction(
        "LpNormalization", lambda form: form.attribute("p", 2) == 2, "with p 2 adds 1.2e-7 to the sum of squares"
    ),
    Restriction(
        "Softmax",
        is_crossed,
        "below opset 13 normalizes one axis where ONNX normalizes it and all behind it",
    ),
    Restriction(
        "Einsum",
        is_plain_einsum,
        "that changes nothing gives back what lies in its memory",
    ),
    Restriction(
        "Einsum",
        lambda form: len(form.node.input) > 1 and b"..." in form.attribute("equation", b""),
        "of several inputs with an ellipsis pairs the wrong dimensions in places",
    ),
    Restriction(
        "Einsum",
        lambda form: len(lone_labels(form)) > 1,
        "that sums labels of one input, and others of another one, pairs the wrong dimensions in places",
    ),
    Restriction(
        "HardSigmoid",
        lambda form: 0 in (form.attribute("alpha", 0.2), form.attribute("beta", 0.5)),
        "takes alpha or beta 0 for one that is not given",
    ),
    Restriction("LeakyRelu", lambda form: not form.shape(0), "of a tensor without dimensions makes one dimension"),
    Restriction("Selu", lambda form: form.attribute("alpha", 1.0) == 0, "takes alpha 0 for one that is not given"),
    Restriction(
        "ReduceL1 ReduceL2 ReduceLogSum",
        lambda form: form.attribute("noop_with_empty_axes", 0) and not (form.has(1) and form.shape(1) != (0,)),
        "with noop_with_empty_axes and no axes computes no norm or logarithm of the single elements",
    ),
    Restriction(
        "Clip",
        lambda form: form.opset < 11 and len(form.node.attribute) < 2,
        "below opset 11 without a bound lets infinity through",
    ),
    Restriction(
        "Clip",
        lambda form: form.opset >= 11 and form.dtype(0) == "float16" and not (form.has(1) and form.has(2)),
        "in float16 without a bound makes infinity the largest finite number",
    ),
    Restriction(
        "Clip",
        lambda form: form.is_constant(0) and math.prod(form.shape(0)) == 1,
        "of a constant of one element loses its dimensions",
    ),
    Restriction(
        "Max Min Sum Mean",
        lambda form: (
            form.opset < 8 and math.prod(form.shape(0)) == 1 and any(map(form.is_constant, range(len(form.node.input))))
        ),
        "below opset 8 of single elements, constants among them, is not compiled",
    ),
    Restriction(
        "QuantizeLinear DequantizeLinear",
        lambda form: form.opset < 13 and math.prod(form.shape(1)) > 1,
        "below opset 13 has one scale, and with several the engine writes where it should not",
    ),
    Restriction(
        "QuantizeLinear", lambda form: not form.shape(0), "of a number without dimensions wraps around in 16 bits"
    ),
    Restriction(
        "DequantizeLinear",
        lambda form: form.dtype(1) == "float16" and form.dtype(0) not in ("int8", "uint8"),
        "of 16 bits and more to float16 overflows on the way",
    ),
    Restriction(
        "DequantizeLinear",
        has_scales_elsewhere,
        "of a constant has one scale, or one for each index of the dimension that its readers keep",
    ),
    Restriction("DequantizeLinear", has_unsigned_filter, "of a filter of uint8 with zero point 0 is not compiled"),
    Restriction("GlobalMaxPool", is_beside_quantized, "of quantized values is half of what ONNX says in places"),
    Restriction("Conv", padded_pixels, "of single pixels that pads and strides makes another shape behind other nodes"),
    Restriction(
        "Transpose",
        swaps_alike,
        "of integers that moves more than the last two dimensions and keeps the shape may be left out",
    ),
    Restriction("Gemm", is_read_plainly_too, "that transposes weights which another node reads takes them as they are"),
    Restriction("Pad", lambda form: form.attribute("mode", b"") == b"wrap", "that wraps around is not compiled"),
    Restriction(
        "Pad", lambda form: form.dtype(0) == "int32" and form.has(2), "of int32 rounds the value that it fills in"
    ),
)
"""In the order in which they are looked at."""
DYNAMIC_SHAPE_RESTRICTIONS = (
    Restriction(
        "QuantizeLinear",
        lambda form: (
            math.prod(form.shape(1)) > 1
            and any(isinstance(size, DynamicSize) for size in form.shape(0)[form.attribute("axis", 1) :][:1])
        ),
        "with a scale for each index of an open dimension makes the engine write where it should not",
    ),
    Restriction(
        "MatMul",
        lambda form: min(len(form.shape(0)), len(form.shape(1))) < 2,
        "of a vector is not compiled with open sizes",
    ),
    Restriction(
        "MatMul",
        is_spread_over_weights,
        "of one matrix by each of several that are constants fails in the run with open sizes",
    ),
    Restriction(
        "LSTM GRU RNN",
        lambda form: form.has(4),
        "with sequence_lens goes on behind the ends of sequences with open sizes",
    ),
    Restriction(
        "LSTM GRU RNN",
        lambda form: not form.parts.weights.issuperset(form.node.input[1:3]),
        "with weights that are no constants is not compiled with open sizes",
    ),
    Restriction(
        "ConvTranspose",
        lambda form: form.attribute("output_shape", []) or form.attribute("auto_pad", b"").startswith(b"SAME"),
        "that pads by itself or to an output_shape makes another shape with open sizes, or other numbers",
    ),
    Restriction(
        "ConvTranspose",
        lambda form: form.node.input[1] not in form.parts.weights,
        "with a filter that is no constant is not compiled with open sizes",
    ),
    Restriction(
        "Split",
        lambda form: (
            form.opset >= 18 and not form.has(1) and isinstance(form.shape(0)[form.attribute("axis", 0)], DynamicSize)
        ),
        "of an open dimension is taken where the sizes of its parts are said: the engine fails if the last is smaller",
    ),
    Restriction(
        "Trilu",
        lambda form: form.dtype(0) == "int32",
        "of int32 passes through float32 with open sizes",
        Reason.UNSUPPORTED_DTYPE,
    ),
)
"""The same where sizes of inputs are open."""
DATA_RESTRICTIONS = (
    Restriction(
        "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mul Or PRelu Pow Sub Sum Where Xor",
        is_crosswise,
        "of each with each makes another shape where there is none",
        Reason.DATA_DEPENDENT_SHAPE,
    ),
    Restriction(
        "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mul Or PRelu Pow Sub Sum Xor",
        is_filled,
        "of what ConstantOfShape or Expand makes is of one element where there is none",
        Reason.DATA_DEPENDENT_SHAPE,
    ),
    Restriction(
        "Conv",
        pads_whole_windows,
        "with windows of padding alone makes numbers of nothing where there is none",
        Reason.DATA_DEPENDENT_SHAPE,
    ),
)
"""The same where data decide over sizes."""


def _by_op(*tables: Sequence[Restriction]) -> Mapping[str, Sequence[Restriction]]:
    rows_by_op: dict[str, list[Restriction]] = {}
    for row in (row for table in tables for row in table):
        for op_type in row.ops.split():
            rows_by_op.setdefault(op_type, []).append(row)
    return rows_by_op


_FIXED, _OPEN, _OF_DATA = (
    _by_op(RESTRICTIONS),
    _by_op(RESTRICTIONS, DYNAMIC_SHAPE_RESTRICTIONS),
    _by_op(DATA_RESTRICTIONS),
)
