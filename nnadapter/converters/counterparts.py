"""Ops with one IR counterpart on the same inputs, as a table for both directions.

Each line has an op, converted schema versions, an arrow and operations:

    <->  converted and exported
    ->   converted only
    <-   exported only

Attributes follow a semicolon, as `name` or `onnx_name=ir_name`. A default follows a colon; without one, the operation's
default applies. `@` marks an axis, which may be negative. `[name]` is a constant int64 list among ONNX's inputs,
`#name` a constant int64 scalar. On export, `~1` casts input 1 to an ONNX index type, and `!1` to int64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from nnadapter.converters.context import ConversionContext, data_type_attribute, normalize_axis
from nnadapter.converters.registry import NodeWriter, OnnxNode, converter, exporter
from nnadapter.ir import SCHEMAS, Attribute, AttributeKind, AttributeValue, DataType

_TABLE = """\
Abs 6 13 <-> ABS
Acos 7 22 <-> ACOS
Acosh 9 22 <-> ACOSH
Add 7 13 14 <-> ADD
And 7 <-> AND
ArgMax 1 11 12 13 <-> ARG_MAX; @axis:0 keepdims select_last_index
ArgMin 1 11 12 13 <-> ARG_MIN; @axis:0 keepdims select_last_index
Asin 7 22 <-> ASIN
Asinh 9 22 <-> ASINH
Atan 7 22 <-> ATAN
Atanh 9 22 <-> ATANH
AveragePool <- AVERAGE_POOL_2D AVERAGE_POOL_3D; kernel_shape strides pads dilations ceil_mode count_include_pad
BatchNormalization <- BATCH_NORMALIZATION; epsilon
BitCast 26 <-> BIT_CAST; to
BitwiseAnd 18 <-> BITWISE_AND
BitwiseNot 18 <-> BITWISE_NOT
BitwiseOr 18 <-> BITWISE_OR
BitwiseXor 18 <-> BITWISE_XOR
Cast <- CAST; to
CausalConvWithState <- CAUSAL_CONV; activation
Ceil 6 13 -> CEIL
Celu 12 28 -> CELU; alpha
Col2Im <- COL_TO_IM; [image_shape] [kernel_shape] strides pads dilations
Concat <- CONCAT; axis
Conv <- CONV_2D CONV_3D; strides pads dilations group
ConvTranspose <- CONV_2D_TRANSPOSE CONV_3D_TRANSPOSE; strides pads dilations group output_padding
Cos 7 22 <-> COS
Cosh 9 22 <-> COSH
CumProd 26 <-> CUM_PROD; #@axis exclusive reverse
CumSum 11 14 <-> CUM_SUM; #@axis exclusive reverse
DFT <- DFT; #length #axis inverse onesided
DeformConv <- DEFORMABLE_CONV_2D; strides pads dilations group offset_group
DepthToSpace 1 11 13 28 <-> DEPTH_TO_SPACE; blocksize=block_size mode
Det 11 22 <-> DETERMINANT
Div 7 13 14 <-> DIV
Elu 6 22 <-> ELU; alpha
Equal 7 11 13 19 <-> EQUAL
Erf 9 13 <-> ERF
Exp 6 13 <-> EXP
Expand <- EXPAND FILL; [shape]
EyeLike <- EYE_LIKE; dtype=to k
Floor 6 13 -> FLOOR
Gather 1 11 13 <-> GATHER; @axis:0 ~1
GatherElements 11 13 <-> GATHER_ELEMENTS; @axis:0 ~1
GatherND 11 12 13 <-> GATHER_ND; batch_dims !1
Gelu 20 <-> GELU; approximate
Greater 7 9 13 <-> GREATER
GreaterOrEqual 12 16 <-> GREATER_EQUAL
GridSample <- GRID_SAMPLE; mode padding_mode align_corners
HardSigmoid 6 22 <-> HARD_SIGMOID; alpha beta
HardSwish 14 22 -> HARD_SWISH
Hardmax 13 <-> HARDMAX; @axis:-1
Identity 1 13 14 16 19 21 23 24 25 <-> ASSIGN
Identity <- STORAGE_CAST
InstanceNormalization 6 22 <-> INSTANCE_NORMALIZATION; epsilon
IsInf 10 20 <-> IS_INF; detect_negative detect_positive
IsNaN 9 13 20 <-> IS_NAN
LRN 1 13 <-> LOCAL_RESPONSE_NORMALIZATION; size alpha beta bias
LayerNormalization <- LAYER_NORMALIZATION; axis epsilon
LeakyRelu 6 16 <-> LEAKY_RELU; alpha
Less 7 9 13 <-> LESS
LessOrEqual 12 16 <-> LESS_EQUAL
LinearAttention <- LINEAR_ATTENTION; q_num_heads=query_heads kv_num_heads=key_value_heads scale update_rule
Log 6 13 <-> LOG
LogSoftmax 13 <-> LOG_SOFTMAX; @axis:-1
LpNormalization 1 22 <-> LP_NORMALIZATION; @axis:-1 p
LpPool <- LP_POOL_2D LP_POOL_3D; kernel_shape strides pads dilations ceil_mode p
MatMul 1 9 13 -> MAT_MUL
Max <- MAX
MaxPool <- MAX_POOL_2D MAX_POOL_3D; kernel_shape strides pads dilations ceil_mode
MaxRoiPool 1 22 <-> MAX_ROI_POOL; pooled_shape=output_shape spatial_scale
Min <- MIN
Mish 18 22 <-> MISH
Mul 7 13 14 <-> MUL
Neg 6 13 <-> NEG
NegativeLogLikelihoodLoss 12 13 22 <-> NEGATIVE_LOG_LIKELIHOOD_LOSS; reduction ignore_index ~1
Not 1 <-> NOT
Or 7 <-> OR
PRelu 7 9 16 <-> PRELU
Pow 7 12 13 15 <-> POW
RMSNormalization 23 -> RMS_NORMALIZATION; @axis:-1 epsilon
Reciprocal 6 13 <-> RECIPROCAL
Relu 6 13 14 <-> RELU
ReverseSequence 10 28 <-> REVERSE_SEQUENCE; @batch_axis:1 @time_axis:0 !1
Round 11 22 -> ROUND
Scatter 9 -> SCATTER_ELEMENTS; @axis:0 reduction
ScatterElements 11 13 16 18 <-> SCATTER_ELEMENTS; @axis:0 reduction ~1
ScatterND 11 13 16 18 <-> SCATTER_ND; reduction !1
Selu 6 22 <-> SELU; alpha gamma
Shrink 9 <-> SHRINK; bias lambd
Sigmoid 6 13 <-> SIGMOID
Sign 9 13 <-> SIGN
Sin 7 22 <-> SIN
Sinh 9 22 <-> SINH
Softmax 13 <-> SOFTMAX; @axis:-1
SoftmaxCrossEntropyLoss 12 13 <-> SOFTMAX_CROSS_ENTROPY_LOSS; reduction ignore_index ~1
Softplus 1 22 <-> SOFTPLUS
Softsign 1 22 <-> SOFTSIGN
SpaceToDepth <- SPACE_TO_DEPTH; blocksize=block_size
Sqrt 6 13 <-> SQRT
Sub 7 13 14 <-> SUB
SwiGLU 28 -> SWIGLU; alpha
Swish 24 -> SWISH; alpha
Tan 7 22 <-> TAN
Tanh 6 13 <-> TANH
TensorScatter 24 <-> TENSOR_SCATTER; @axis:-2 mode !2
ThresholdedRelu 10 22 <-> THRESHOLDED_RELU; alpha
Tile 6 13 <-> TILE; [repeats]
TopK 1 -> TOP_K; k @axis:-1
TopK 10 11 24 <-> TOP_K; [k] @axis:-1 largest sorted
Transpose <- TRANSPOSE; perm
Trilu <- TRILU; #k upper
Where 9 16 <-> WHERE
Xor 7 <-> XOR
"""
"""Versions on one line differ in data types, or in new attributes with defaults that keep the older meaning."""


class _Mapped(NamedTuple):
    """Entry after a semicolon: an operation's attribute with its form in ONNX, or an input that export casts."""

    mark: str
    """`[`, `#`, `~` or `!`, as in the table; empty for an attribute of the ONNX op."""
    name: str
    position: int
    """Position of the ONNX input; -1 for an ONNX attribute."""
    is_axis: bool
    attribute: Attribute | None
    """None for casts."""
    default: str


def _mapped(type_: str, texts: Sequence[str]) -> Iterator[_Mapped]:
    further_inputs = count(len(SCHEMAS[type_].inputs))
    for text in texts:
        mark = text[0] if text[0] in _WRITTEN else ""
        names, _, default = text.removeprefix(mark).removeprefix("@").removesuffix("]").partition(":")
        name, _, own_name = names.partition("=")
        position = int(name) if name.isdigit() else next(further_inputs) if mark else -1
        yield _Mapped(mark, name, position, "@" in text, SCHEMAS[type_].attribute(own_name or name), default)


def _read(context: ConversionContext, node: OnnxNode, mapped: _Mapped, attribute: Attribute) -> AttributeValue:
    name, kind = mapped.name, attribute.kind
    default: Any = int(mapped.default) if mapped.default else attribute.default
    if attribute.name == "to":
        return data_type_attribute(node, name)
    if kind is AttributeKind.FLOAT:
        return node.number(name, default)
    if kind is AttributeKind.STRING:
        return node.text(name, str(default))
    if kind is AttributeKind.INTS:
        return context.required_integers(node, mapped.position) if mapped.mark else node.integers(name) or ()
    if kind is AttributeKind.BOOL:
        return bool(node.integer(name, int(bool(default))))
    integer = context.single_integer(node, mapped.position) if mapped.mark else node.integer(name, default)
    return normalize_axis(node, integer, context.rank(node)) if mapped.is_axis else integer


def _converter(type_: str, attributes: Sequence[_Mapped]) -> Callable[[ConversionContext, OnnxNode], None]:
    required = sum(not role.optional for role in SCHEMAS[type_].inputs)
    optional = len(SCHEMAS[type_].inputs) - required

    def convert_counterpart(context: ConversionContext, node: OnnxNode) -> None:
        pairs = [(mapped, mapped.attribute) for mapped in attributes if mapped.attribute is not None]
        values = {attribute.name: _read(context, node, mapped, attribute) for mapped, attribute in pairs}
        context.add_for(node, type_, values, required, optional)

    return convert_counterpart


_WRITTEN: Mapping[str, Callable[[NodeWriter, Any], str]] = {
    "[": lambda write, value: write.integers(*(value if isinstance(value, tuple) else (value,))),
    "#": lambda write, value: write.number(value, DataType.INT64),
    "~": lambda write, name: write.index(name),
    "!": lambda write, name: write.cast(name, DataType.INT64),
}


def _exporter(op_type: str, type_: str, attributes: Sequence[_Mapped]) -> Callable[[NodeWriter], Sequence[str]]:
    outputs = len(SCHEMAS[type_].outputs)

    def export_counterpart(write: NodeWriter) -> Sequence[str]:
        inputs, values = list(write.inputs), {}
        for mark, name, position, _, attribute, _ in attributes:
            if attribute is None:
                inputs[position] = inputs[position] and _WRITTEN[mark](write, inputs[position])
                continue
            value = write.operation.attributes[attribute.name]
            if attribute.name == "to":
                value = DataType(str(value))
            if mark:
                inputs.append(_WRITTEN[mark](write, value))
            else:
                values[name] = value
        return write.nodes(op_type, inputs, outputs, **values)  # type: ignore[arg-type]

    return export_counterpart


for _line in _TABLE.splitlines():
    _words, _, _names = _line.partition("; ")
    _op, *_remaining_words = _words.split()
    _at = next(position for position, word in enumerate(_remaining_words) if not word.isdigit())
    for _type in _remaining_words[_at + 1 :]:
        _attributes = [*_mapped(_type, _names.split())]
        if _remaining_words[_at] != "<-":
            converter(_op, *map(int, _remaining_words[:_at]))(_converter(_type, _attributes))
        if _remaining_words[_at] != "->":
            exporter(_type)(_exporter(_op, _type, _attributes))
