"""Verdicts on nodes from reviewed tables, before OpenVINO is queried."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import onnx

from nnadapter.drivers.openvino import forms, operators
from nnadapter.ir.operand import DataType
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.graphs import MEASURING, captured_names, has_open_inputs, size_names
from nnadapter.onnx.parts import Parts
from nnadapter.onnx.references import array_of
from nnadapter.records import dataclass
from partition.graph import SUPPORTED, Reason, Unsupported, Value, Verdict, all_of


@dataclass(frozen=True, slots=True)
class Restriction:
    """Refused form of some ops. `ops` is separated by spaces; the message is the op type, then `detail`."""

    ops: str
    applies: Callable[[forms.Form], object]
    detail: str
    reason: Reason = Reason.UNSUPPORTED_ATTRIBUTE


def restriction(node: onnx.NodeProto, parts: Parts, sizes: Collection[str] = ()) -> Verdict:
    """Return the verdict of `RESTRICTIONS` on a node; `sizes` has the names of values computed from dynamic shapes."""
    form = forms.Form.of(node, parts, sizes)
    return _first(form, _OPEN if form.has_dynamic_shapes else _FIXED)


def _first(form: forms.Form, table: Mapping[str, Sequence[Restriction]]) -> Verdict:
    op_type = form.node.op_type
    try:
        for row in table.get(op_type, ()):
            if row.applies(form):
                return Unsupported(row.reason, f"{op_type} {row.detail}")
    except forms.DynamicSizeError:
        detail = f"{op_type} is supported for some sizes only, and its sizes are not known before the run"
        return Unsupported(Reason.DYNAMIC_SHAPE, detail)
    return SUPPORTED


_UNREAD_COORDINATES = (b"half_pixel_symmetric", b"tf_crop_and_resize")
RESTRICTIONS = (
    Restriction(
        "Reshape Expand Tile Squeeze Unsqueeze Split Trilu",
        lambda form: not form.constant(1),
        "requires a constant second input and a result of known shape",
        Reason.NOT_CONSTANT,
    ),
    Restriction(
        "Slice Pad Resize Upsample",
        lambda form: not form.constant(1, 2, 3, 4),
        "requires constants for all inputs except the first",
        Reason.NOT_CONSTANT,
    ),
    Restriction(
        "Dropout",
        lambda form: form.has(2) or len(list(filter(None, form.node.output))) > 1 or not form.constant(1),
        "is supported for inference only: no training_mode, no mask, a constant ratio",
    ),
    Restriction(
        "Where",
        lambda form: len(set(form.node.input)) == 1,
        "is not compiled if both inputs are the same value",
    ),
    Restriction(
        "Resize",
        lambda form: form.attribute("antialias", 0) or form.attribute("exclude_outside", 0),
        "with antialias or exclude_outside weights pixels differently from ONNX",
    ),
    Restriction(
        "Resize",
        lambda form: (
            form.attribute("coordinate_transformation_mode", b"") == b"align_corners"
            and any(scale % 1 for scale in form.scales)
        ),
        "with aligned corners and fractional scales samples at other positions than ONNX",
    ),
    Restriction(
        "Resize",
        lambda form: form.attribute("coordinate_transformation_mode", b"") in _UNREAD_COORDINATES,
        "with the coordinates of half_pixel_symmetric or tf_crop_and_resize is not compiled",
    ),
    Restriction(
        "Resize",
        lambda form: form.attribute("keep_aspect_ratio_policy", b"stretch") != b"stretch",
        "that keeps the aspect ratio returns another shape than ONNX",
    ),
    Restriction(
        "Resize",
        lambda form: form.opset < 11 and form.attribute("mode", b"") == b"cubic",
        "with mode cubic below opset 11 samples at other positions than ONNX Runtime",
    ),
    Restriction(
        "Resize Upsample",
        forms.changes_channels,
        "of four dimensions or more is compiled only if batch and channels do not change",
    ),
    Restriction(
        "Resize",
        forms.makes_part_of_pixel,
        "with scales that give a fractional size samples at other positions than ONNX",
    ),
    Restriction(
        "Upsample",
        lambda form: any(scale % 1 for scale in form.scales),
        "with fractional scales samples at other positions than ONNX",
    ),
    Restriction(
        "NonMaxSuppression",
        lambda form: not form.constant(3),
        "requires a constant iou_threshold",
        Reason.NOT_CONSTANT,
    ),
    Restriction("LSTM", lambda form: form.has(7), "ignores peepholes"),
    Restriction("LSTM", lambda form: form.attribute("input_forget", 0), "ignores input_forget"),
    Restriction(
        "LSTM GRU RNN", lambda form: form.attribute("layout", 0), "with layout 1 returns another shape than ONNX"
    ),
    Restriction(
        "LSTM GRU RNN",
        forms.other_functions_backwards,
        "uses the functions of the forward direction for both directions",
    ),
    Restriction("SpaceToDepth", lambda form: form.attribute("mode", b"DCR") != b"DCR", "is computed in mode DCR only"),
    Restriction(
        "AveragePool MaxPool",
        forms.wide_strides,
        "with auto_pad and strides wider than its window, or with dilations, reads other positions than ONNX Runtime",
    ),
    Restriction(
        "AveragePool",
        forms.overhanging,
        "with ceil_mode and count_include_pad divides by another count if a window exceeds the padding",
    ),
    Restriction(
        "Conv",
        forms.single_column,
        "of one channel skips rows if only its last dimension strides and becomes one element",
    ),
    Restriction("ConvTranspose", forms.padding_to_shape, "with an output_shape that needs padding pads other sides"),
    Restriction(
        "LRN",
        lambda form: form.attribute("size", 1) % 2 == 0,
        "of an even size reads other channels than ONNX",
    ),
    Restriction(
        "LRN",
        lambda form: form.attribute("bias", 1.0) % 1 or form.attribute("alpha", 1.0) < 0,
        "truncates bias to an integer, and is wrong with a negative alpha",
    ),
    Restriction(
        "PRelu",
        lambda form: len(form.shape(0)) > 2 and form.shape(1) == form.shape(0)[1:2] != (1,),
        "reads a one-dimensional slope with as many elements as channels as one per channel",
    ),
    Restriction(
        "InstanceNormalization", lambda form: len(form.shape(0)) < 3, "of two dimensions does not normalize to zero"
    ),
    Restriction(
        "LpNormalization", lambda form: form.attribute("p", 2) == 2, "with p 2 adds 1.2e-7 to the sum of squares"
    ),
    Restriction(
        "Softmax",
        forms.is_crossed,
        "below opset 13 normalizes only one axis; ONNX also normalizes all later ones",
    ),
    Restriction(
        "Einsum",
        forms.is_plain_einsum,
        "that changes nothing returns uninitialized memory",
    ),
    Restriction(
        "Einsum",
        lambda form: len(form.node.input) > 1 and b"..." in form.attribute("equation", b""),
        "of several inputs with an ellipsis sometimes pairs the wrong dimensions",
    ),
    Restriction(
        "Einsum",
        lambda form: len(forms.lone_labels(form)) > 1,
        "that sums labels of one input, and others of another one, pairs the wrong dimensions in places",
    ),
    Restriction(
        "HardSigmoid",
        lambda form: 0 in (form.attribute("alpha", 0.2), form.attribute("beta", 0.5)),
        "reads alpha or beta 0 as missing",
    ),
    Restriction("LeakyRelu", lambda form: not form.shape(0), "of a scalar returns one dimension"),
    Restriction("Selu", lambda form: form.attribute("alpha", 1.0) == 0, "reads alpha 0 as missing"),
    Restriction(
        "ReduceL1 ReduceL2 ReduceLogSum",
        lambda form: form.attribute("noop_with_empty_axes", 0) and not (form.has(1) and form.shape(1) != (0,)),
        "with noop_with_empty_axes and no axes does not compute the norm or logarithm of single elements",
    ),
    Restriction(
        "Clip",
        lambda form: form.opset < 11 and len(form.node.attribute) < 2,
        "below opset 11 without a bound passes infinity",
    ),
    Restriction(
        "Clip",
        lambda form: form.opset >= 11 and form.dtype(0) == "float16" and not (form.has(1) and form.has(2)),
        "in float16 without a bound turns infinity into the largest finite number",
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
        "below opset 13 requires one scale; with several, the engine writes outside its memory",
    ),
    Restriction("QuantizeLinear", lambda form: not form.shape(0), "of a scalar wraps around in 16 bits"),
    Restriction(
        "DequantizeLinear",
        lambda form: form.dtype(1) == "float16" and form.dtype(0) not in ("int8", "uint8"),
        "of 16 bits and more to float16 overflows in an intermediate type",
    ),
    Restriction(
        "DequantizeLinear",
        forms.has_scales_elsewhere,
        "of a constant requires one scale, or one per index of the dimension that its consumers keep",
    ),
    Restriction(
        "DequantizeLinear", forms.has_unsigned_filter, "of a filter of uint8 with zero point 0 is not compiled"
    ),
    Restriction("GlobalMaxPool", forms.is_beside_quantized, "of quantized values is sometimes half of ONNX's result"),
    Restriction(
        "Conv", forms.padded_pixels, "of padded, strided single pixels returns another shape after other nodes"
    ),
    Restriction(
        "Transpose",
        forms.swaps_alike,
        "of integers that moves more than the last two dimensions and keeps the shape may be dropped",
    ),
    Restriction(
        "Gemm", forms.is_read_plainly_too, "that transposes weights with another consumer does not transpose them"
    ),
    Restriction("Pad", lambda form: form.attribute("mode", b"") == b"wrap", "that wraps around is not compiled"),
    Restriction("Pad", lambda form: form.dtype(0) == "int32" and form.has(2), "of int32 rounds its fill value"),
)
DYNAMIC_SHAPE_RESTRICTIONS = (
    Restriction(
        "QuantizeLinear",
        lambda form: (
            math.prod(form.shape(1)) > 1
            and any(isinstance(size, forms.DynamicSize) for size in form.shape(0)[form.attribute("axis", 1) :][:1])
        ),
        "with a scale per index of a dynamic dimension makes the engine write outside its memory",
    ),
    Restriction(
        "MatMul",
        lambda form: min(len(form.shape(0)), len(form.shape(1))) < 2,
        "of a vector is not compiled with dynamic shapes",
    ),
    Restriction(
        "MatMul",
        forms.is_spread_over_weights,
        "of one matrix by several constant ones fails at run time with dynamic shapes",
    ),
    Restriction(
        "LSTM GRU RNN",
        lambda form: form.has(4),
        "with sequence_lens continues after the ends of sequences with dynamic shapes",
    ),
    Restriction(
        "LSTM GRU RNN",
        lambda form: not form.parts.weights.issuperset(form.node.input[1:3]),
        "requires constant weights with dynamic shapes",
    ),
    Restriction(
        "ConvTranspose",
        lambda form: form.attribute("output_shape", []) or form.attribute("auto_pad", b"").startswith(b"SAME"),
        "with auto_pad or output_shape returns another shape or other numbers with dynamic shapes",
    ),
    Restriction(
        "ConvTranspose",
        lambda form: form.node.input[1] not in form.parts.weights,
        "requires a constant filter with dynamic shapes",
    ),
    Restriction(
        "Split",
        lambda form: (
            form.opset >= 18
            and not form.has(1)
            and isinstance(form.shape(0)[form.attribute("axis", 0)], forms.DynamicSize)
        ),
        "of a dynamic dimension requires the sizes of its parts: the engine fails if the last is smaller",
    ),
    Restriction(
        "Trilu",
        lambda form: form.dtype(0) == "int32",
        "of int32 passes through float32 with dynamic shapes",
        Reason.UNSUPPORTED_DTYPE,
    ),
)
DATA_RESTRICTIONS = (
    Restriction(
        "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mul Or PRelu Pow Sub Sum Where Xor",
        forms.is_crosswise,
        "of dynamic sizes on different axes returns another shape if one is 0",
        Reason.DATA_DEPENDENT_SHAPE,
    ),
    Restriction(
        "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mul Or PRelu Pow Sub Sum Xor",
        forms.is_filled,
        "of the result of ConstantOfShape or Expand has one element if that result is empty",
        Reason.DATA_DEPENDENT_SHAPE,
    ),
    Restriction(
        "Conv",
        forms.pads_whole_windows,
        "with windows of only padding returns numbers for an empty input",
        Reason.DATA_DEPENDENT_SHAPE,
    ),
)


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


_COUNTING = operators.name_set("ArgMax ArgMin NonMaxSuppression NonZero Shape Size")
MOVING = operators.name_set(
    "Expand Flatten Gather GatherElements GatherND Identity Reshape Slice Split Squeeze Tile Transpose Unsqueeze"
)


def counted_names(model: onnx.ModelProto) -> Collection[str]:
    """Return the names of values that are counts or positions. Values with moved elements are included."""
    names: set[str] = set()
    for node in model.graph.node:
        if plain_domain(node.domain):
            continue
        if node.op_type in _COUNTING or (node.op_type in MOVING and node.input[0] in names):
            names.update(filter(None, node.output))
    return names


def measured_names(model: onnx.ModelProto) -> Collection[str]:
    """Return the names of values computed only from shapes and constants."""
    constants = {tensor.name for tensor in model.graph.initializer}
    names: set[str] = set()
    for node in model.graph.node:
        read = {*filter(None, node.input), *captured_names(node)}
        is_measuring = node.op_type in MEASURING and not plain_domain(node.domain)
        if is_measuring or (not names.isdisjoint(read) and all(name in names or name in constants for name in read)):
            names.update(filter(None, node.output))
    return names


_SIZING = operators.name_set(
    "Shape Size Gather Slice Concat Squeeze Unsqueeze Reshape Cast Add Sub Mul Div Min Max Neg Floor Ceil Range Expand "
    "Equal Less LessOrEqual Greater GreaterOrEqual And Or Not Where ConstantOfShape Identity ReduceProd Tile Transpose "
    "Trilu Clip Mod Abs Sign Pow CumSum ReduceSum ReduceMax ReduceMin Split GatherND GatherElements ScatterND Flatten "
    "Xor"
)
_LEAST = {"Max": 0, "Min": 1, "Clip": 0}
_BOUNDS = {"Max": slice(None), "Min": slice(None), "Clip": slice(1, 2)}
_CAP = 2


def grouped_filters(model: onnx.ModelProto) -> frozenset[str]:
    """Return the names of filters of grouped convolutions, which the engine requires to be constants."""
    grouped = (
        node
        for node in model.graph.node
        if any(attribute.name == "group" and attribute.i > 1 for attribute in node.attribute)
    )
    return frozenset(name for node in grouped for name in node.input[1:2])


@dataclass(frozen=True, slots=True)
class ModelAnalysis:
    """Facts about a model for verdicts on its nodes."""

    parts: Parts
    sizes: Collection[str] = ()
    """Names of values that are computed only from shapes and constants."""
    measured: Collection[str] = ()
    counted: Collection[str] = ()
    has_dynamic_shapes: bool = False

    @staticmethod
    def of(model: onnx.ModelProto, constant_bytes: int) -> ModelAnalysis:
        parts = Parts(model, constant_bytes, grouped_filters(model))
        names = measured_names(model), counted_names(model)
        return ModelAnalysis(parts, size_names(model), *names, has_open_inputs(model))

    def is_size(self, name: str) -> bool:
        value = self.parts.value(name) if name in self.sizes else None
        return name in self.sizes and (value is None or value.dtype not in operators.FLOATS)

    def counts(self, node: onnx.NodeProto, name: str) -> bool:
        value = self.parts.value(name)
        is_moved = node.op_type in MOVING and node.input[0] in self.counted and name in (node.input[0], *node.output)
        return is_moved and value is not None and value.dtype == "int64"


def judge(node: onnx.NodeProto, analysis: ModelAnalysis, switched_off: Collection[str] = ()) -> Verdict:
    """Return the tables' verdict on a node.

    Values must be non-empty tensors of static shape and supported type; inputs of Concat may be empty.
    """
    if plain_domain(node.domain):
        return Unsupported(Reason.UNSUPPORTED_DOMAIN, f"domain {node.domain!r} is not ONNX's own")
    if node.op_type in switched_off:
        return Unsupported(Reason.SWITCHED_OFF, f"{node.op_type} is switched off (option switched_off)")
    of_sizes = _of_sizes(node, analysis) if any(name in analysis.measured for name in node.output) else None
    if of_sizes is not None:
        return of_sizes
    row = operators.OPERATORS.get(node.op_type)
    if row is None:
        detail = f"{node.op_type} is not among the ops verified on OpenVINO"
        return Unsupported(Reason.UNSUPPORTED_OPERATION, detail)
    decided = _of_data(node, analysis) if _is_dynamic(node, analysis.parts) else restriction(node, analysis.parts)
    return all_of((_types(node, row, analysis), decided))


def judge_dynamic(
    node: onnx.NodeProto, analysis: ModelAnalysis, float16_ops: Collection[str] = operators.DYNAMIC_FLOAT16_OPS
) -> Verdict:
    """Return the tables' verdict on a node of a model with dynamic shapes."""
    of_sizes = _of_sizes(node, analysis)
    if of_sizes is not None:
        return of_sizes
    is_open, is_known = (
        _is_dynamic(node, analysis.parts),
        node.op_type in operators.OPERATORS and not plain_domain(node.domain),
    )
    if not is_known or (is_open and node.op_type in operators.STATIC_SHAPE_OPS):
        return Unsupported(Reason.UNSUPPORTED_OPERATION, f"{node.op_type} is supported with static shapes only")
    if not is_open:
        return SUPPORTED
    values = (name for name in (*node.input, *node.output) if name and not analysis.is_size(name))
    open_types = all_of(_open_type(node, name, analysis.parts, float16_ops) for name in values)
    return restriction(node, analysis.parts, analysis.sizes) if open_types else open_types  # restrictions rely on types


def involves_dynamic_shapes(node: onnx.NodeProto, analysis: ModelAnalysis) -> bool:
    """Check whether a node has values of dynamic shape, or computes sizes."""
    return _is_dynamic(node, analysis.parts) or any(name in analysis.sizes for name in node.output)


def _of_data(node: onnx.NodeProto, analysis: ModelAnalysis) -> Verdict:
    if node.op_type not in operators.EMPTY_SIZES:
        detail = f"{node.op_type} is not among the ops verified with data-dependent sizes"
        return Unsupported(Reason.DATA_DEPENDENT_SHAPE, detail)
    verdict = judge_dynamic(node, analysis, ())
    return _first(forms.Form.of(node, analysis.parts), _OF_DATA) if verdict else verdict


def _of_sizes(node: onnx.NodeProto, analysis: ModelAnalysis) -> Verdict | None:
    # Dequantized constants are no sizes.
    if node.op_type in operators.QUANTIZING or not all(name in analysis.sizes for name in node.output if name):
        return None
    is_known = node.op_type in _SIZING and not plain_domain(node.domain)
    if not is_known and not any(analysis.is_size(name) for name in node.output if name):
        return None
    if not is_known:
        detail = f"{node.op_type} is not among the ops verified on sizes"
        return Unsupported(Reason.UNSUPPORTED_OPERATION, detail)
    typed = (_is_typed(node, name, analysis.parts) for name in node.input if name)
    return all_of((*typed, _bounded(node, analysis.parts)))


def _bounded(node: onnx.NodeProto, parts: Parts) -> Verdict:
    value = parts.value(node.output[0])
    if node.op_type not in _LEAST or value is None or value.static_shape is None:  # positions are not dimensions
        return SUPPORTED
    caps = node.op_type == "Clip" and len(node.input) > _CAP and not node.input[1]
    names, least = (
        (node.input[_CAP:], _LEAST["Min"]) if caps else (node.input[_BOUNDS[node.op_type]], _LEAST[node.op_type])
    )
    bounds = [bound for name in names if name and (bound := _least(parts.constants.get(name))) is not None]
    if min(bounds) >= least if bounds else node.op_type != "Clip":
        return SUPPORTED
    detail = f"{node.op_type} on sizes is supported if its bounds are not negative"
    return Unsupported(Reason.UNSUPPORTED_OPERATION, detail)


def _least(tensor: onnx.TensorProto | None) -> float | None:
    numbers = None if tensor is None else array_of(tensor)
    return None if numbers is None or not numbers.size else float(numbers.min())


def _is_typed(node: onnx.NodeProto, name: str, parts: Parts) -> Verdict:
    value = parts.value(name)
    if name in parts.constants:
        return SUPPORTED
    if value is None:
        return Unsupported(Reason.DYNAMIC_SHAPE, f"value {name!r} of {node.op_type} has no type; add it to value_info")
    return _ranked(node, name, value) if node.op_type in MEASURING else SUPPORTED


def _is_dynamic(node: onnx.NodeProto, parts: Parts) -> bool:
    values = (parts.value(name) for name in (*node.input, *node.output) if name)
    return any(value is None or value.static_shape is None for value in values)


def _open_type(node: onnx.NodeProto, name: str, parts: Parts, float16_ops: Collection[str]) -> Verdict:
    value = parts.value(name)
    ranked = _ranked(node, name, value)
    if not ranked or value is None:
        return ranked
    if value.dtype == "float16" and node.op_type not in float16_ops:
        detail = f"{node.op_type} got float16 for {name!r}, which may crash the engine with dynamic shapes"
        return Unsupported(Reason.UNSUPPORTED_DTYPE, detail)
    return SUPPORTED


def _ranked(node: onnx.NodeProto, name: str, value: Value | None) -> Verdict:
    if value is None or value.dtype is None or value.shape is None:
        return Unsupported(Reason.DYNAMIC_SHAPE, f"value {name!r} of {node.op_type} has no rank; add it to value_info")
    return SUPPORTED


def _types(node: onnx.NodeProto, row: operators.OperatorRow, analysis: ModelAnalysis) -> Verdict:
    values = (
        *((name, row.inputs.get(position, row.dtypes)) for position, name in enumerate(node.input)),
        *((name, row.outputs.get(position, row.dtypes)) for position, name in enumerate(node.output)),
    )
    return all_of(_type(node, name, accepted, analysis) for name, accepted in values if name)


def _type(node: onnx.NodeProto, name: str, accepted: Collection[DataType], analysis: ModelAnalysis) -> Verdict:
    value, parts = analysis.parts.value(name), analysis.parts
    if value is None or value.dtype is None:
        return Unsupported(Reason.DYNAMIC_SHAPE, f"value {name!r} of {node.op_type} has no type; add it to value_info")
    if value.dtype not in accepted and not analysis.counts(node, name):
        expected = ", ".join(sorted(dtype.value for dtype in accepted)) or "no value at this position"
        detail = f"{node.op_type} got {value.dtype} for {name!r}, accepted: {expected}"
        is_tensor = "(" not in value.dtype and value.dtype != "string"
        return Unsupported(Reason.UNSUPPORTED_DTYPE if is_tensor else Reason.UNSUPPORTED_TYPE, detail)
    if value.static_shape is None and analysis.has_dynamic_shapes:
        return Unsupported(
            Reason.DYNAMIC_SHAPE,
            f"value {name!r} of {node.op_type} has a dynamic or unknown shape; fix the input shapes",
        )
    if value.static_shape is None:  # shape depends on data
        return SUPPORTED
    # Resize has an empty constant for an absent input; a cache starts empty.
    may_be_empty = name in parts.constants or (node.op_type == "Concat" and name in node.input)
    if 0 in value.static_shape and not may_be_empty:
        detail = f"{name!r} of {node.op_type} has shape {list(value.static_shape)}, accepted: nonempty tensors"
        return Unsupported(Reason.UNSUPPORTED_TYPE, detail)
    return SUPPORTED
