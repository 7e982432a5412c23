"""Reviewed table of ops and data types that OpenVINO computes correctly.

Entries were compared with ONNX Runtime and onnx's reference evaluator (`tests/drivers/openvino/sweep`). Missing entries
are wrong or unchecked:

- float64 is computed in float32, int64 and uint64 in int32; int64 is accepted for counts and positions only.
- int32 and uint32 go through float32 in arithmetic, comparisons, reductions and Clip.
- int8 and uint8 saturate in arithmetic; ONNX wraps around.
- TopK and NonMaxSuppression order equal scores differently; Softplus is off by half a percent below -8.
- Quantization rounds halves differently. DynamicQuantizeLinear is expanded; QuantizeLinear is accepted, although it may
  be off by one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from nnadapter.ir.operand import DataType


def name_set(text: str) -> frozenset[str]:
    """Return the names in a text, separated by spaces."""
    return frozenset(text.split())


FLOATS = frozenset((DataType.FLOAT32, DataType.FLOAT16))
_BYTES = frozenset((DataType.INT8, DataType.UINT8))
_SHORTS = frozenset((DataType.INT16, DataType.UINT16))
_BOOL = frozenset((DataType.BOOL,))
_FLOAT32 = frozenset((DataType.FLOAT32,))
_INT32 = frozenset((DataType.INT32,))
_INT64 = frozenset((DataType.INT64,))
_MOVED = FLOATS | _BYTES | _SHORTS | _INT32 | _BOOL


class OperatorRow(NamedTuple):
    """Supported data types and limits of one op."""

    dtypes: frozenset[DataType]
    inputs: Mapping[int, frozenset[DataType]] = MappingProxyType({})
    outputs: Mapping[int, frozenset[DataType]] = MappingProxyType({})
    limits: str = ""


_INDEX = _INT64 | _INT32
_COUNTED = {0: _INT64}
_ROWS: tuple[tuple[str, OperatorRow], ...] = (
    (
        "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Elu Erf Exp Floor HardSigmoid HardSwish LeakyRelu Log Mish "
        "Neg Reciprocal Relu Round Selu Sigmoid Sin Sinh Softmax LogSoftmax Softsign Sqrt Tan Tanh Gelu Celu "
        "PRelu Pow Mean Conv ConvTranspose Gemm MatMul AveragePool GlobalAveragePool GlobalMaxPool BatchNormalization "
        "InstanceNormalization LayerNormalization GroupNormalization LRN LpNormalization MeanVarianceNormalization "
        "Einsum Div Upsample",
        OperatorRow(FLOATS),
    ),
    ("Add Sub Mul Sum", OperatorRow(FLOATS | _SHORTS | _INT32)),
    ("Max Min", OperatorRow(FLOATS | _BYTES | _SHORTS | _INT32)),
    ("Clip", OperatorRow(FLOATS | _BYTES | _SHORTS)),
    ("MaxPool", OperatorRow(FLOATS | _BYTES, outputs={1: frozenset()})),
    ("Sign GridSample", OperatorRow(_FLOAT32)),
    (
        "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
        "ReduceSumSquare",
        OperatorRow(FLOATS, inputs={1: _INT64}),
    ),
    ("And Or Xor Not", OperatorRow(_BOOL)),
    ("IsNaN IsInf", OperatorRow(FLOATS, outputs={0: _BOOL})),
    (
        "Equal Less LessOrEqual Greater GreaterOrEqual",
        OperatorRow(FLOATS | _BYTES | _SHORTS, outputs={0: _BOOL}),
    ),
    ("Identity Flatten Transpose Concat DepthToSpace SpaceToDepth Cast", OperatorRow(_MOVED)),
    ("Reshape Squeeze Unsqueeze Split Expand Tile Trilu ScatterND", OperatorRow(_MOVED, inputs={1: _INT64})),
    ("Slice", OperatorRow(_MOVED, inputs={1: _INDEX, 2: _INDEX, 3: _INDEX, 4: _INDEX})),
    ("Pad", OperatorRow(_MOVED, inputs={1: _INT64, 3: _INDEX})),
    ("Gather GatherElements GatherND ScatterElements", OperatorRow(_MOVED, inputs={1: _INDEX})),
    ("Where", OperatorRow(_MOVED, inputs={0: _BOOL})),
    ("Shape Size", OperatorRow(_MOVED, outputs=_COUNTED)),
    ("ArgMax ArgMin", OperatorRow(FLOATS | _BYTES, outputs=_COUNTED)),
    ("Resize", OperatorRow(FLOATS, inputs={1: FLOATS, 2: FLOATS, 3: _INT64})),
    ("LSTM GRU RNN", OperatorRow(_FLOAT32, inputs={4: _INT32})),
    ("Dropout", OperatorRow(FLOATS, inputs={1: FLOATS, 2: _BOOL}, outputs={1: _BOOL})),
    ("QuantizeLinear", OperatorRow(FLOATS, inputs={2: _BYTES | _SHORTS}, outputs={0: _BYTES | _SHORTS})),
    ("DequantizeLinear", OperatorRow(_BYTES | _SHORTS | _INT32, inputs={1: FLOATS}, outputs={0: FLOATS})),
    ("CumSum", OperatorRow(FLOATS, inputs={1: _INDEX})),
    ("NonZero", OperatorRow(_FLOAT32 | _BOOL | _INT32, outputs=_COUNTED)),
    ("NonMaxSuppression", OperatorRow(_FLOAT32, inputs={2: _INT64}, outputs=_COUNTED)),
)

OPERATORS: Mapping[str, OperatorRow] = MappingProxyType({name: row for ops, row in _ROWS for name in name_set(ops)})

STATIC_SHAPE_OPS = name_set("LRN")
QUANTIZING = name_set("QuantizeLinear DequantizeLinear")
"""Ops that make the engine compute neighboring nodes in integers."""

DYNAMIC_FLOAT16_OPS = name_set(
    "Abs Add Cast Clip Concat Cos Div Equal Erf Exp Expand Flatten Floor Gather Gelu Gemm Identity LayerNormalization "
    "Less LessOrEqual Log MatMul Max Min Mul Neg Pad Pow Reciprocal ReduceMean ReduceSum Relu Reshape Sigmoid Sin "
    "Slice Softmax Split Sqrt Squeeze Sub Tanh Tile Transpose Unsqueeze Where"
)
"""Ops supported for float16 with dynamic shapes; other ops may end the process."""

EMPTY_SIZES = name_set(
    "Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Cast Ceil Celu Clip Conv Cos Cosh CumSum Div Dropout "
    "Elu Equal Erf Exp Floor Gather GatherND Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN "
    "LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Max Mean Min Mish Mul Neg NonMaxSuppression NonZero "
    "Not Or Pow Reciprocal ReduceL2 ReduceLogSumExp ReduceMean ReduceProd ReduceSum ReduceSumSquare Relu Reshape Round "
    "ScatterND Selu Shape Sigmoid Sign Sin Sinh Size Slice Softmax Softsign Split Sqrt Squeeze Sub Sum Tan Tanh Tile "
    "Transpose Unsqueeze Where Xor"
)
"""Ops with correct results for empty tensors. Only these ops may have data-dependent shapes.

Other ops return a wrong shape (Concat, Flatten, Expand) or end the process (AveragePool, MaxPool, ConvTranspose, Pad,
Einsum).
"""
