"""THE table: what the device takes of the adapter IR, and how it lowers it.

Verdicts, the rows of `nnadapter ops fake_npu` and the lowering all read this table, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from nnadapter.drivers.fake_npu.limits import (
    ALL_FLOATS,
    ALL_NUMBERS,
    BOOLEANS,
    FLOATS,
    HELD,
    INDICES,
    LARGEST_RANK,
    NUMBERS,
    Types,
)
from nnadapter.drivers.fake_npu.lowerings import elementwise, images, linear_algebra, movement, normalization, quantized
from nnadapter.drivers.fake_npu.lowerings.elementwise import Lower, direct, unary, with_filter
from nnadapter.ir.operand import DataType
from nnadapter.ir.operations.quantization import EIGHT_BITS, MOVERS, REALS, TABULATED

_SIXTEEN_BITS: Types = frozenset({DataType.INT16, DataType.UINT16})
"""Held between QUANTIZE and DEQUANTIZE alone, and moved there; what is computed is computed with reals."""
_FOUR_BITS: Types = frozenset({DataType.INT4, DataType.UINT4})
"""Of weights, a byte each, until DEQUANTIZE makes them reals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRow:
    """What the device takes of one operation."""

    lower: Lower
    """Writes the instructions."""
    dtypes: Types
    """Data types of the inputs."""
    other_dtypes: Mapping[int, Types] = field(default_factory=dict)
    """Data types of inputs, by position, that take others than the rest."""
    quantized: Types = frozenset()
    """More data types of inputs, where they are quantized."""
    results: Types = HELD
    """Data types of the outputs."""
    ranks: tuple[int, int] = (0, LARGEST_RANK)
    """Smallest and largest rank of the first input."""
    limits: str = ""
    """What else a person should know, in words."""
    moves: bool = False
    """Moves elements and computes nothing, so that nothing needs rounding."""

    @property
    def limits_in_words(self) -> str:
        """All limits beside data types and ranks."""
        more = sorted(self.quantized & (EIGHT_BITS | _SIXTEEN_BITS) - self.dtypes)
        words = [f"also quantized {', '.join(more)}"] if more else []
        return "; ".join([*words, *([self.limits] if self.limits else [])])


def _floating(*functions: str) -> dict[str, OperationRow]:
    return {name.upper(): OperationRow(lower=unary(name), dtypes=ALL_FLOATS) for name in functions}


def _binary(kernels: Mapping[str, str], dtypes: Types) -> dict[str, OperationRow]:
    return {type_: OperationRow(lower=direct(kernel), dtypes=dtypes) for type_, kernel in kernels.items()}


_ELEMENTWISE = {
    **_floating("exp", "log", "sqrt", "reciprocal", "erf", "sin", "cos", "tanh", "sigmoid", "softplus", "softsign"),
    **_floating("mish"),
    **{name.upper(): OperationRow(lower=unary(name), dtypes=ALL_NUMBERS) for name in ("abs", "neg", "sign", "relu")},
    **{
        name.upper(): OperationRow(lower=elementwise.rounding(name), dtypes=ALL_NUMBERS)
        for name in ("floor", "ceil", "round")
    },
    **_binary({"ADD": "add", "SUB": "subtract", "MUL": "multiply", "DIV": "divide"}, ALL_NUMBERS),
    **_binary({"MAX": "maximum", "MIN": "minimum"}, ALL_NUMBERS),
    **_binary({"EQUAL": "equal"}, HELD),
    **_binary({"GREATER": "greater", "GREATER_EQUAL": "greater_equal"}, ALL_NUMBERS),
    **_binary({"LESS": "less", "LESS_EQUAL": "less_equal"}, ALL_NUMBERS),
    **_binary({"AND": "and", "OR": "or", "XOR": "xor"}, BOOLEANS),
    "SWISH": OperationRow(lower=unary("swish", "alpha"), dtypes=ALL_FLOATS),
    "GELU": OperationRow(lower=elementwise.lower_gelu, dtypes=ALL_FLOATS),
    "HARD_SIGMOID": OperationRow(lower=unary("hard_sigmoid", "alpha", "beta"), dtypes=ALL_FLOATS),
    "HARD_SWISH": OperationRow(lower=unary("hard_swish", "alpha", "beta"), dtypes=ALL_FLOATS),
    "LEAKY_RELU": OperationRow(lower=unary("leaky_relu", "alpha"), dtypes=ALL_FLOATS),
    "ELU": OperationRow(lower=unary("elu", "alpha"), dtypes=ALL_FLOATS),
    "SELU": OperationRow(lower=unary("selu", "alpha", "gamma"), dtypes=ALL_FLOATS),
    "CLIP": OperationRow(lower=elementwise.lower_clip, dtypes=ALL_NUMBERS),
    "NOT": OperationRow(lower=unary("not"), dtypes=BOOLEANS),
    "PRELU": OperationRow(lower=direct("prelu"), dtypes=ALL_FLOATS),
    "POW": OperationRow(lower=elementwise.lower_power, dtypes=ALL_NUMBERS, other_dtypes={1: ALL_NUMBERS}),
    "MOD": OperationRow(lower=elementwise.lower_modulo, dtypes=ALL_NUMBERS),
    "SUM": OperationRow(lower=elementwise.lower_sum, dtypes=ALL_FLOATS),
    "WHERE": OperationRow(lower=direct("where"), dtypes=HELD, other_dtypes={0: BOOLEANS}, moves=True),
    "CAST": OperationRow(lower=elementwise.lower_cast, dtypes=HELD),
    "ASSIGN": OperationRow(lower=elementwise.lower_assign, dtypes=HELD, moves=True),
}

_IMAGES = {
    "CONV_2D": OperationRow(lower=images.lower_convolution, dtypes=FLOATS, ranks=(4, 4)),
    "CONV_2D_TRANSPOSE": OperationRow(lower=images.lower_transposed_convolution, dtypes=FLOATS, ranks=(4, 4)),
    "MAX_POOL_2D": OperationRow(lower=images.pooling("max_pool"), dtypes=NUMBERS, ranks=(4, 4)),
    "AVERAGE_POOL_2D": OperationRow(
        lower=images.pooling("average_pool", "count_include_pad"), dtypes=FLOATS, ranks=(4, 4)
    ),
    "DEPTH_TO_SPACE": OperationRow(lower=images.lower_depth_to_space, dtypes=HELD, ranks=(4, 4), moves=True),
    "SPACE_TO_DEPTH": OperationRow(lower=images.lower_space_to_depth, dtypes=HELD, ranks=(4, 4), moves=True),
}

_MATRIX_AND_NORMALIZATION = {
    "FULLY_CONNECTED": OperationRow(lower=direct("fully_connected"), dtypes=ALL_FLOATS, ranks=(1, LARGEST_RANK)),
    "MAT_MUL": OperationRow(
        lower=direct("matmul", "transpose_x", "transpose_y"), dtypes=ALL_FLOATS | INDICES, ranks=(1, LARGEST_RANK)
    ),
    "MAT_MUL_N_BITS": OperationRow(
        lower=linear_algebra.lower_mat_mul_n_bits,
        dtypes=FLOATS,
        other_dtypes={1: frozenset({DataType.UINT8}), 3: FLOATS | {DataType.UINT8}},
        ranks=(1, LARGEST_RANK),
        limits="a constant weight is unpacked when the model is compiled",
    ),
    "BATCH_NORMALIZATION": OperationRow(
        lower=normalization.lower_batch_normalization, dtypes=FLOATS, ranks=(2, LARGEST_RANK)
    ),
    "LAYER_NORMALIZATION": OperationRow(
        lower=direct("layer_normalization", "axis", "epsilon"), dtypes=ALL_FLOATS, ranks=(1, LARGEST_RANK)
    ),
    "INSTANCE_NORMALIZATION": OperationRow(
        lower=normalization.lower_instance_normalization, dtypes=FLOATS, ranks=(3, LARGEST_RANK)
    ),
    "LOCAL_RESPONSE_NORMALIZATION": OperationRow(
        lower=normalization.lower_local_response_normalization, dtypes=FLOATS, ranks=(2, LARGEST_RANK)
    ),
    "SOFTMAX": OperationRow(lower=direct("softmax", "axis"), dtypes=FLOATS, ranks=(1, LARGEST_RANK)),
    "LOG_SOFTMAX": OperationRow(lower=direct("log_softmax", "axis"), dtypes=FLOATS, ranks=(1, LARGEST_RANK)),
}

_REDUCTIONS = {
    "REDUCE_MEAN": OperationRow(lower=direct("reduce_mean", "axes"), dtypes=ALL_FLOATS),
    **{
        name.upper(): OperationRow(lower=direct(name, "axes"), dtypes=ALL_NUMBERS)
        for name in ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")
    },
    **{
        name.upper(): OperationRow(lower=direct(name, "axis", "select_last_index"), dtypes=ALL_NUMBERS)
        for name in ("arg_max", "arg_min")
    },
    "CUM_SUM": OperationRow(lower=direct("running_sum", "axis", "exclusive", "reverse"), dtypes=ALL_NUMBERS),
    "TOP_K": OperationRow(lower=direct("top_k", "axis", "largest"), dtypes=ALL_NUMBERS),
}


def _moving(lower: Lower, other_dtypes: Mapping[int, Types] | None = None) -> OperationRow:
    return OperationRow(lower=lower, dtypes=HELD, other_dtypes=other_dtypes or {}, moves=True)


_MOVEMENTS = {
    "RESHAPE": _moving(movement.lower_reshape),
    "TRANSPOSE": _moving(movement.lower_transpose),
    "EXPAND": _moving(movement.lower_expand),
    "TILE": _moving(direct("tile", "repeats")),
    "CONCAT": _moving(movement.lower_concat),
    "SPLIT": _moving(direct("split", "axis")),
    "SLICE": _moving(direct("slice", "starts", "ends", "axes", "steps")),
    "GATHER": _moving(direct("gather", "axis"), {1: INDICES}),
    "GATHER_ELEMENTS": _moving(direct("gather_elements", "axis"), {1: INDICES}),
    "PAD": _moving(direct("pad", "mode", "pads", "value")),
    "RESIZE_NEAREST": _moving(direct("resize_nearest", "scales", "coordinate_transformation_mode", "nearest_mode")),
    "RESIZE_LINEAR": OperationRow(
        lower=direct("resize_linear", "scales", "coordinate_transformation_mode"), dtypes=FLOATS
    ),
}

_INTEGERS = ALL_NUMBERS - ALL_FLOATS

_FURTHER_FUNCTIONS = {
    **_floating("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan", "is_nan", "rsqrt"),
    "SQUARE": OperationRow(lower=unary("square"), dtypes=ALL_NUMBERS),
    **_binary({"NOT_EQUAL": "not_equal"}, HELD),
    **_binary({"FLOOR_DIV": "floor_divide"}, ALL_NUMBERS),
    "IS_INF": OperationRow(lower=unary("is_inf", "detect_negative", "detect_positive"), dtypes=ALL_FLOATS),
    "CELU": OperationRow(lower=unary("celu", "alpha"), dtypes=ALL_FLOATS),
    "SHRINK": OperationRow(lower=unary("shrink", "bias", "lambd"), dtypes=ALL_NUMBERS),
    "THRESHOLDED_RELU": OperationRow(lower=unary("thresholded_relu", "alpha"), dtypes=ALL_FLOATS),
    "SWIGLU": OperationRow(lower=direct("swiglu", "alpha"), dtypes=ALL_FLOATS),
    **{
        name.upper(): OperationRow(lower=direct(name), dtypes=_INTEGERS)
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
    },
    "BITWISE_NOT": OperationRow(lower=unary("bitwise_not"), dtypes=_INTEGERS),
    "BIT_SHIFT": OperationRow(lower=movement.lower_bit_shift, dtypes=_INTEGERS),
    "BIT_CAST": OperationRow(
        lower=movement.lower_bit_cast, dtypes=HELD, limits="bytes that become bool are true unless 0", moves=True
    ),
    "CUM_PROD": OperationRow(lower=direct("running_product", "axis", "exclusive", "reverse"), dtypes=ALL_NUMBERS),
    "HARDMAX": OperationRow(lower=direct("hardmax", "axis"), dtypes=ALL_FLOATS),
    "TRILU": OperationRow(lower=direct("triangle", "upper", "k"), dtypes=HELD, moves=True),
    "DETERMINANT": OperationRow(lower=direct("determinant"), dtypes=ALL_FLOATS),
    "EINSUM": OperationRow(lower=linear_algebra.lower_einsum, dtypes=ALL_NUMBERS),
    "FILL": _moving(movement.lower_expand),
    "RANGE": OperationRow(lower=direct("range"), dtypes=ALL_NUMBERS),
    "EYE_LIKE": _moving(movement.lower_eye),
}

_POSITIONS = {
    "GATHER_ND": _moving(direct("gather_nd", "batch_dims"), {1: INDICES}),
    "SCATTER_ELEMENTS": OperationRow(
        lower=direct("scatter_elements", "axis", "reduction"), dtypes=HELD, other_dtypes={1: INDICES}
    ),
    "SCATTER_ND": OperationRow(lower=direct("scatter_nd", "reduction"), dtypes=HELD, other_dtypes={1: INDICES}),
    "TENSOR_SCATTER": _moving(direct("tensor_scatter", "axis", "mode"), {2: INDICES}),
    "ONE_HOT": OperationRow(lower=direct("one_hot", "axis"), dtypes=HELD, other_dtypes={0: ALL_NUMBERS}, moves=True),
    "REVERSE_SEQUENCE": _moving(direct("reverse_sequence", "batch_axis", "time_axis"), {1: INDICES}),
}

_VOLUME = (5, 5)


def _over_windows(kernel: str, *more: str) -> Lower:
    """Windows over [N, C, …] in ONNX's order; `more` names attributes beside the window's."""
    return direct(kernel, "kernel_shape", "strides", "dilations", "pads", *more)


_WINDOWS = {
    "CONV_3D": OperationRow(lower=with_filter("volume_convolution"), dtypes=FLOATS, ranks=_VOLUME),
    "CONV_3D_TRANSPOSE": OperationRow(lower=with_filter("transposed_volume_convolution"), dtypes=FLOATS, ranks=_VOLUME),
    "MAX_POOL_3D": OperationRow(lower=_over_windows("max_pool_axes"), dtypes=NUMBERS, ranks=_VOLUME),
    "AVERAGE_POOL_3D": OperationRow(
        lower=_over_windows("average_pool_axes", "count_include_pad"), dtypes=FLOATS, ranks=_VOLUME
    ),
    "LP_POOL_2D": OperationRow(lower=_over_windows("p_norm_pool", "p"), dtypes=FLOATS, ranks=(4, 4)),
    "LP_POOL_3D": OperationRow(lower=_over_windows("p_norm_pool", "p"), dtypes=FLOATS, ranks=_VOLUME),
    **{
        f"MAX_POOL_{rank}D_WITH_INDICES": OperationRow(
            lower=_over_windows("max_pool_with_indices", "storage_order"), dtypes=NUMBERS, ranks=(rank + 2, rank + 2)
        )
        for rank in (2, 3)
    },
    "MAX_UNPOOL_2D": OperationRow(lower=direct("max_unpool"), dtypes=NUMBERS, other_dtypes={1: INDICES}, ranks=(4, 4)),
    "COL_TO_IM": OperationRow(lower=_over_windows("columns_to_image"), dtypes=FLOATS, ranks=(3, 3)),
}

_SAMPLING = {
    "GRID_SAMPLE": OperationRow(
        lower=direct("grid_sample", "mode", "padding_mode", "align_corners"), dtypes=FLOATS, ranks=(4, 5)
    ),
    "AFFINE_GRID": OperationRow(lower=direct("affine_grid", "align_corners"), dtypes=FLOATS, ranks=(3, 3)),
    "ROI_ALIGN": OperationRow(
        lower=direct("roi_align", "spatial_scale", "sampling_ratio", "mode", "half_pixel"),
        dtypes=FLOATS,
        other_dtypes={2: INDICES},
        ranks=(4, 4),
    ),
    "MAX_ROI_POOL": OperationRow(lower=direct("max_roi_pool", "spatial_scale"), dtypes=FLOATS, ranks=(4, 4)),
    "DEFORMABLE_CONV_2D": OperationRow(
        lower=with_filter("deformable_convolution", "offset_group"), dtypes=FLOATS, ranks=(4, 4)
    ),
}

_SEQUENCES = {
    "LSTM": OperationRow(
        lower=elementwise.recurrent("lstm", "input_forget"), dtypes=FLOATS, other_dtypes={4: INDICES}, ranks=(3, 3)
    ),
    "GRU": OperationRow(
        lower=elementwise.recurrent("gru", "linear_before_reset"),
        dtypes=FLOATS,
        other_dtypes={4: INDICES},
        ranks=(3, 3),
    ),
    "ATTENTION": OperationRow(
        lower=elementwise.by_role(
            "attention",
            "scale",
            "softcap",
            "is_causal",
            "offset",
            "left_window",
            "right_window",
            "scores",
            "without_keys",
        ),
        dtypes=FLOATS,
        other_dtypes={3: FLOATS | BOOLEANS, 4: INDICES},
        ranks=(4, 4),
    ),
    "ROTARY_EMBEDDING": OperationRow(lower=direct("rotary_embedding", "interleaved"), dtypes=FLOATS, ranks=(4, 4)),
    "LINEAR_ATTENTION": OperationRow(
        lower=elementwise.by_role("linear_attention", "query_heads", "key_value_heads", "scale", "update_rule"),
        dtypes=FLOATS,
        ranks=(3, 3),
    ),
    "CAUSAL_CONV": OperationRow(
        lower=elementwise.by_role("causal_convolution", "activation"), dtypes=FLOATS, ranks=(3, 3)
    ),
    "RNN": OperationRow(lower=elementwise.recurrent("rnn"), dtypes=FLOATS, other_dtypes={4: INDICES}, ranks=(3, 3)),
}

_NORMS_LOSSES_AND_SPECTRA = {
    "RMS_NORMALIZATION": OperationRow(lower=direct("rms_normalization", "axis", "epsilon"), dtypes=FLOATS),
    "LP_NORMALIZATION": OperationRow(lower=direct("lp_normalization", "axis", "p"), dtypes=FLOATS),
    "MEAN_VARIANCE_NORMALIZATION": OperationRow(
        lower=direct("mean_variance_normalization", "axes", "epsilon"), dtypes=FLOATS
    ),
    "NEGATIVE_LOG_LIKELIHOOD_LOSS": OperationRow(
        lower=normalization.lower_likelihood_loss, dtypes=FLOATS, other_dtypes={1: INDICES}, ranks=(2, LARGEST_RANK)
    ),
    "SOFTMAX_CROSS_ENTROPY_LOSS": OperationRow(
        lower=normalization.lower_cross_entropy_loss, dtypes=FLOATS, other_dtypes={1: INDICES}, ranks=(2, LARGEST_RANK)
    ),
    "DFT": OperationRow(lower=direct("fourier_transform", "axis", "length", "inverse", "onesided"), dtypes=FLOATS),
    "STFT": OperationRow(
        lower=direct("short_time_fourier_transform", "frame_step", "frame_length", "onesided"), dtypes=FLOATS
    ),
}

_STORED: Types = EIGHT_BITS | {DataType.INT32}
_QUANTIZATION = {
    "QUANTIZE": OperationRow(lower=quantized.lower_quantize, dtypes=FLOATS, results=EIGHT_BITS | _SIXTEEN_BITS),
    "DEQUANTIZE": OperationRow(
        lower=quantized.lower_dequantize, dtypes=_STORED | _SIXTEEN_BITS | _FOUR_BITS, results=FLOATS
    ),
    "STORAGE_CAST": OperationRow(lower=elementwise.lower_assign, dtypes=_STORED, moves=True),
}
_QUANTIZED_PRODUCTS = {
    "CONV_2D": quantized.lower_convolution,
    "FULLY_CONNECTED": quantized.lower_fully_connected,
    "MAT_MUL": quantized.lower_matmul,
}


def _with_quantized(type_: str, row: OperationRow) -> OperationRow:
    """The row with what it does with quantized operands."""
    if type_ in _QUANTIZED_PRODUCTS:
        return replace(row, lower=quantized.on_integers(row.lower, _QUANTIZED_PRODUCTS[type_]), quantized=_STORED)
    if type_ in TABULATED:
        return replace(row, lower=quantized.by_table(row.lower), quantized=EIGHT_BITS)
    if type_ in MOVERS and row.moves:
        return replace(row, quantized=EIGHT_BITS | _SIXTEEN_BITS, results=row.results | _SIXTEEN_BITS)
    return replace(row, quantized=EIGHT_BITS) if type_ in REALS else row


_FAMILIES = (
    _ELEMENTWISE,
    _IMAGES,
    _MATRIX_AND_NORMALIZATION,
    _REDUCTIONS,
    _MOVEMENTS,
    _FURTHER_FUNCTIONS,
    _POSITIONS,
    _WINDOWS,
    _SAMPLING,
    _SEQUENCES,
    _NORMS_LOSSES_AND_SPECTRA,
    _QUANTIZATION,
)

OPERATIONS: Mapping[str, OperationRow] = MappingProxyType(
    {type_: _with_quantized(type_, row) for family in _FAMILIES for type_, row in family.items()}
)
"""Every operation that the device takes, by its type in the adapter IR."""
