"""Which ONNX ops become an operation, as conversions have shown; the table is written by docs/make_operators.py."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TABLE = """\
ABS: Abs ReduceL1; NEG: Neg; SIGN: Sign; FLOOR: Floor; CEIL: Ceil; ROUND: DynamicQuantizeLinear QLinearMatMul
QuantizeLinear Round com.microsoft::DynamicQuantizeMatMul; EXP: Exp ReduceLogSumExp; LOG: Log ReduceLogSum
ReduceLogSumExp; SQRT: ReduceL2 Sqrt; RECIPROCAL: Reciprocal; ERF: Erf; SIN: Sin; COS: Cos; TANH: Tanh; SIGMOID:
Sigmoid com.microsoft::QLinearSigmoid com.microsoft::QuickGelu; SOFTPLUS: Softplus; SOFTSIGN: Softsign; MISH: Mish;
RELU: Relu com.microsoft::FusedConv com.microsoft::FusedGemm; SWISH: Swish; HARD_SIGMOID: HardSigmoid; HARD_SWISH:
HardSwish; LEAKY_RELU: LeakyRelu com.microsoft::QLinearLeakyRelu; ELU: Elu; SELU: Selu; NOT: Mod Not; CLIP: Clip
DynamicQuantizeLinear QLinearMatMul QuantizeLinear ReduceLogSumExp com.microsoft::DynamicQuantizeMatMul; ACOS: Acos;
ACOSH: Acosh; ASIN: Asin; ASINH: Asinh; ATAN: Atan; ATANH: Atanh; COSH: Cosh; SINH: Sinh; TAN: Tan; SHRINK: Shrink;
THRESHOLDED_RELU: ThresholdedRelu; BITWISE_NOT: BitwiseNot; MAX: Clip DynamicQuantizeLinear Max
com.microsoft::DynamicQuantizeMatMul; MIN: Clip DynamicQuantizeLinear Min com.microsoft::DynamicQuantizeMatMul; AND:
And Mod; OR: Or; XOR: Mod Xor; EQUAL: DynamicQuantizeLinear Equal Mod com.microsoft::DynamicQuantizeMatMul
com.microsoft::EmbedLayerNormalization; GREATER: Greater Trilu; GREATER_EQUAL: GreaterOrEqual; LESS: Less Mod Trilu;
LESS_EQUAL: LessOrEqual; BITWISE_AND: BitwiseAnd; BITWISE_OR: BitwiseOr; BITWISE_XOR: BitwiseXor; ADD: Add
DynamicQuantizeLinear Gemm GroupNormalization Mod QLinearMatMul QuantizeLinear ReduceLogSumExp
com.microsoft::Attention com.microsoft::BiasGelu com.microsoft::DynamicQuantizeMatMul
com.microsoft::EmbedLayerNormalization com.microsoft::FusedGemm com.microsoft::QAttention com.microsoft::QLinearAdd
com.microsoft::SkipLayerNormalization com.microsoft::SkipSimplifiedLayerNormalization; SUB: ConvInteger
DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearMatMul ReduceLogSumExp Sub
com.microsoft::DynamicQuantizeMatMul com.microsoft::EmbedLayerNormalization; MUL: ConvInteger DequantizeLinear Gemm
GroupNormalization Mul QLinearMatMul ReduceL2 ReduceSumSquare com.microsoft::DynamicQuantizeMatMul
com.microsoft::MatMulIntegerToFloat com.microsoft::QAttention com.microsoft::QLinearMul com.microsoft::QuickGelu; DIV:
Div DynamicQuantizeLinear Mean QLinearMatMul QuantizeLinear com.microsoft::DynamicQuantizeMatMul; GELU: Gelu
com.microsoft::BiasGelu com.microsoft::FastGelu com.microsoft::Gelu; ASSIGN: Dropout Identity Max Mean Min ReduceSum
Sum; CAST: Cast CastLike ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearMatMul QuantizeLinear
com.microsoft::DynamicQuantizeMatMul com.microsoft::EmbedLayerNormalization com.microsoft::MatMulIntegerToFloat
com.microsoft::QAttention; BIT_CAST: BitCast; BIT_SHIFT: BitShift; PRELU: PRelu; POW: Pow; MOD: Mod; SUM: Mean Sum;
WHERE: DynamicQuantizeLinear Mod Trilu Where com.microsoft::DynamicQuantizeMatMul com.microsoft::QLinearWhere; CELU:
Celu; IS_NAN: IsNaN; IS_INF: IsInf; SWIGLU: SwiGLU; CONV_2D: Conv ConvInteger QLinearConv com.microsoft::FusedConv
com.microsoft::NhwcConv; CONV_2D_TRANSPOSE: ConvTranspose; CONV_3D: Conv; CONV_3D_TRANSPOSE: ConvTranspose;
DEFORMABLE_CONV_2D: DeformConv; MAX_POOL_2D: MaxPool com.microsoft::NhwcMaxPool; AVERAGE_POOL_2D: AveragePool
com.microsoft::QLinearAveragePool; MAX_POOL_3D: MaxPool; AVERAGE_POOL_3D: AveragePool; LP_POOL_2D: LpPool; LP_POOL_3D:
LpPool; MAX_POOL_2D_WITH_INDICES: MaxPool; MAX_POOL_3D_WITH_INDICES: MaxPool; MAX_UNPOOL_2D: MaxUnpool; COL_TO_IM:
Col2Im; FULLY_CONNECTED: Gemm com.microsoft::QGemm; MAT_MUL: Gemm MatMul MatMulInteger QLinearMatMul
com.microsoft::Attention com.microsoft::DynamicQuantizeMatMul com.microsoft::FusedGemm com.microsoft::FusedMatMul
com.microsoft::MatMulIntegerToFloat com.microsoft::QAttention; MAT_MUL_N_BITS: com.microsoft::MatMulNBits; TRILU:
Trilu; DETERMINANT: Det; EINSUM: Einsum; DFT: DFT; STFT: STFT; BATCH_NORMALIZATION: BatchNormalization;
LAYER_NORMALIZATION: LayerNormalization com.microsoft::EmbedLayerNormalization com.microsoft::SkipLayerNormalization;
INSTANCE_NORMALIZATION: GroupNormalization InstanceNormalization; LOCAL_RESPONSE_NORMALIZATION: LRN; SOFTMAX: Softmax
com.microsoft::QLinearSoftmax; LOG_SOFTMAX: LogSoftmax; RMS_NORMALIZATION: RMSNormalization
SimplifiedLayerNormalization com.microsoft::SkipSimplifiedLayerNormalization; LP_NORMALIZATION: LpNormalization;
MEAN_VARIANCE_NORMALIZATION: MeanVarianceNormalization; NEGATIVE_LOG_LIKELIHOOD_LOSS: NegativeLogLikelihoodLoss;
SOFTMAX_CROSS_ENTROPY_LOSS: SoftmaxCrossEntropyLoss; ATTENTION: Attention com.microsoft::Attention
com.microsoft::GroupQueryAttention com.microsoft::MultiHeadAttention com.microsoft::QAttention; ROTARY_EMBEDDING:
RotaryEmbedding com.microsoft::RotaryEmbedding; LINEAR_ATTENTION: LinearAttention; CAUSAL_CONV: CausalConvWithState;
LSTM: LSTM com.microsoft::DynamicQuantizeLSTM; GRU: GRU; RNN: RNN; REDUCE_MEAN: GlobalAveragePool ReduceMean
com.microsoft::QLinearGlobalAveragePool; REDUCE_SUM: ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSum
ReduceSumSquare com.microsoft::EmbedLayerNormalization; REDUCE_MAX: DynamicQuantizeLinear GlobalMaxPool
ReduceLogSumExp ReduceMax com.microsoft::DynamicQuantizeMatMul; REDUCE_MIN: DynamicQuantizeLinear ReduceMin
com.microsoft::DynamicQuantizeMatMul; REDUCE_PROD: ReduceProd; ARG_MAX: ArgMax; ARG_MIN: ArgMin; CUM_SUM: CumSum;
CUM_PROD: CumProd; TOP_K: TopK; HARDMAX: Hardmax; RESHAPE: Attention AveragePool ConvTranspose DequantizeLinear
Flatten GroupNormalization LpPool MatMulInteger MaxPool QLinearMatMul QuantizeLinear ReduceLogSumExp Reshape
RotaryEmbedding SpaceToDepth Squeeze Unsqueeze com.microsoft::Attention com.microsoft::GroupQueryAttention
com.microsoft::MultiHeadAttention com.microsoft::QAttention; TRANSPOSE: Attention GRU LSTM RNN RotaryEmbedding
SpaceToDepth Transpose com.microsoft::Attention com.microsoft::GroupQueryAttention com.microsoft::MultiHeadAttention
com.microsoft::NhwcConv com.microsoft::NhwcMaxPool com.microsoft::QAttention; EXPAND: ConvInteger DequantizeLinear
Expand QuantizeLinear; TILE: Tile; CONCAT: Attention Concat com.microsoft::QLinearConcat; SPLIT: Split
com.microsoft::Attention com.microsoft::QAttention; DEPTH_TO_SPACE: DepthToSpace; SPACE_TO_DEPTH: SpaceToDepth; FILL:
ConstantOfShape; RANGE: Range; EYE_LIKE: EyeLike; SLICE: Slice com.microsoft::EmbedLayerNormalization; GATHER: Gather
RotaryEmbedding com.microsoft::EmbedLayerNormalization com.microsoft::RotaryEmbedding; GATHER_ELEMENTS:
GatherElements; PAD: Attention CenterCropPad Pad; GATHER_ND: GatherND; SCATTER_ELEMENTS: Scatter ScatterElements;
SCATTER_ND: ScatterND; TENSOR_SCATTER: TensorScatter; ONE_HOT: OneHot; REVERSE_SEQUENCE: ReverseSequence;
RESIZE_NEAREST: Resize Upsample; RESIZE_LINEAR: Resize; GRID_SAMPLE: GridSample; AFFINE_GRID: AffineGrid; ROI_ALIGN:
RoiAlign; MAX_ROI_POOL: MaxRoiPool; QUANTIZE: QuantizeLinear com.microsoft::QLinearWhere; DEQUANTIZE: DequantizeLinear
com.microsoft::QLinearWhere; STORAGE_CAST: ConvInteger DequantizeLinear MatMulInteger QLinearConv QLinearMatMul
com.microsoft::MatMulIntegerToFloat com.microsoft::QAttention com.microsoft::QGemm com.microsoft::QLinearAdd
com.microsoft::QLinearAveragePool com.microsoft::QLinearConcat com.microsoft::QLinearGlobalAveragePool
com.microsoft::QLinearLeakyRelu com.microsoft::QLinearMul com.microsoft::QLinearSigmoid com.microsoft::QLinearSoftmax
com.microsoft::QLinearWhere
"""

_ROWS = (row.partition(": ") for row in _TABLE.replace("\n", " ").strip().split("; "))
ONNX_OPS: Mapping[str, tuple[str, ...]] = MappingProxyType({type_: tuple(ops.split()) for type_, _, ops in _ROWS})
"""By operation. Further ops, forms of them and other domains' ops may become it as well."""
