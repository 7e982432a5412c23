"""Table of supported adapter IR operations, for verdicts, lowering and `nnadapter ops fake_npu`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from nnadapter.drivers import SUPPORTED, OperationSupport, Reason, Unsupported, Verdict
from nnadapter.drivers.fake_npu.limits import (
    ALL_FLOATS,
    ALL_NUMBERS,
    BOOLEANS,
    FLOATS,
    HELD,
    INDICES,
    LARGEST_RANK,
    NOT_EMPTY,
    NUMBERS,
    SMALL_RANK,
    Types,
)
from nnadapter.drivers.fake_npu.lowerings import composite, images, quantized
from nnadapter.drivers.fake_npu.lowerings import direct as d
from nnadapter.drivers.fake_npu.lowerings.direct import Lower, direct, unary
from nnadapter.ir import ABSENT, DataType, Model, Operation
from nnadapter.ir.operations import MOVERS, REALS, TABULATED
from nnadapter.ir.operations.quantization import EIGHT_BITS, SIXTEEN_BITS
from nnadapter.records import dataclass, field, replace

_FOUR_BITS: Types = frozenset({DataType.INT4, DataType.UINT4})
_STORED: Types = EIGHT_BITS | {DataType.INT32}
_INTEGERS = ALL_NUMBERS - ALL_FLOATS


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRow:
    """Limits and lowering of one operation."""

    type: str
    lower: Lower
    dtypes: Types
    other_dtypes: Mapping[int, Types] = field(default_factory=dict)
    """Position of an input -> its data types, if they differ from `dtypes`."""
    quantized: Types = frozenset()
    results: Types = HELD
    ranks: tuple[int, int] = (0, LARGEST_RANK)
    limits: str = ""
    moves: bool = False

    @property
    def limits_in_words(self) -> str:
        more = sorted(self.quantized & (EIGHT_BITS | SIXTEEN_BITS) - self.dtypes)
        words = [f"also quantized {', '.join(more)}"] if more else []
        return "; ".join([*words, *([self.limits] if self.limits else [])])

    @property
    def support(self) -> OperationSupport:
        dtypes = self.other_dtypes.get(0, self.dtypes)
        return OperationSupport(type=self.type, dtypes=dtypes, ranks=self.ranks, limits=self.limits_in_words)


def _row(type_: str, lower: Lower, dtypes: Types, **limits: Any) -> OperationRow:
    return OperationRow(type=type_, lower=lower, dtypes=dtypes, **limits)


def _rows(
    types: str, dtypes: Types, attributes: str = "", how: Callable[..., Lower] = direct, **limits: Any
) -> Iterator[OperationRow]:
    for type_ in types.split():
        yield _row(type_, how(type_.lower(), *attributes.split()), dtypes, **limits)


def _binary(kernels: str, dtypes: Types) -> Iterator[OperationRow]:
    for type_, kernel in (pair.split(":") for pair in kernels.split()):
        yield _row(type_, direct(kernel), dtypes)


def _elementwise() -> Iterator[OperationRow]:
    yield from _rows("ACOS ACOSH ASIN ASINH ATAN ATANH COS COSH SIN SINH TAN TANH", ALL_FLOATS, how=unary)
    yield from _rows("EXP LOG SQRT RSQRT RECIPROCAL ERF SIGMOID SOFTPLUS SOFTSIGN MISH IS_NAN", ALL_FLOATS, how=unary)
    yield from _rows("ABS NEG SIGN RELU SQUARE", ALL_NUMBERS, how=unary)
    yield from _rows("FLOOR CEIL ROUND", ALL_NUMBERS, how=lambda name: d.unless(d.has_integers, unary(name)))
    yield from _rows("SWISH LEAKY_RELU ELU CELU THRESHOLDED_RELU", ALL_FLOATS, "alpha", unary)
    yield from _rows("HARD_SIGMOID HARD_SWISH", ALL_FLOATS, "alpha beta", unary)
    yield from _rows("SELU", ALL_FLOATS, "alpha gamma", unary)
    yield from _rows("SHRINK", ALL_NUMBERS, "bias lambd", unary)
    yield from _rows("IS_INF", ALL_FLOATS, "detect_negative detect_positive", unary)
    yield _row("GELU", d.chosen_by("approximate", {"none": unary("gelu"), "tanh": unary("gelu_tanh")}), ALL_FLOATS)
    yield from _rows("CLIP", ALL_NUMBERS, "min max", unary)
    yield from _rows("NOT", BOOLEANS, how=unary)
    yield from _rows("BITWISE_NOT", _INTEGERS, how=unary)
    yield from _binary("ADD:add SUB:subtract MUL:multiply DIV:divide FLOOR_DIV:floor_divide", ALL_NUMBERS)
    yield from _binary("MAX:maximum MIN:minimum", ALL_NUMBERS)
    yield from _rows("GREATER GREATER_EQUAL LESS LESS_EQUAL", ALL_NUMBERS)
    yield from _rows("EQUAL NOT_EQUAL", HELD)
    yield from _rows("AND OR XOR", BOOLEANS)
    yield from _rows("BITWISE_AND BITWISE_OR BITWISE_XOR", _INTEGERS)
    yield _row(
        "BIT_SHIFT", d.chosen_by("direction", {"left": direct("shift_left"), "right": direct("shift_right")}), _INTEGERS
    )
    yield from _rows("PRELU", ALL_FLOATS)
    yield _row("POW", direct("power"), ALL_NUMBERS, other_dtypes={1: ALL_NUMBERS})
    yield _row("MOD", d.chosen_by("fmod", {True: direct("float_modulo"), False: direct("modulo")}), ALL_NUMBERS)
    yield _row("SUM", d.lower_sum, ALL_FLOATS)
    yield from _rows("SWIGLU", ALL_FLOATS, "alpha")
    yield from _rows("WHERE", HELD, other_dtypes={0: BOOLEANS}, moves=True)
    yield _row("CAST", d.lower_cast, HELD)
    yield _row("ASSIGN", d.lower_assign, HELD, moves=True)


Limits = Mapping[str, Any]
_IMAGE: Limits = {"ranks": (4, 4)}
_VOLUME: Limits = {"ranks": (5, 5)}
_MATRIX: Limits = {"ranks": (1, LARGEST_RANK)}
_WINDOW = ("kernel_shape", "strides", "dilations", "pads")
_FILTER = ("strides", "dilations", "pads", "group")


def _images() -> Iterator[OperationRow]:
    yield _row("CONV_2D", images.lower_convolution, FLOATS, **_IMAGE)
    yield _row("CONV_2D_TRANSPOSE", images.lower_transposed_convolution, FLOATS, **_IMAGE)
    yield _row("MAX_POOL_2D", images.pooling("max_pool"), NUMBERS, **_IMAGE)
    yield _row("AVERAGE_POOL_2D", images.pooling("average_pool", "count_include_pad"), FLOATS, **_IMAGE)
    yield _row("DEPTH_TO_SPACE", images.lower_depth_to_space, HELD, **_IMAGE, moves=True)
    yield _row("SPACE_TO_DEPTH", images.lower_space_to_depth, HELD, **_IMAGE, moves=True)
    yield _row("LP_POOL_2D", direct("p_norm_pool", *_WINDOW, "p"), FLOATS, **_IMAGE)
    indices = direct("max_pool_with_indices", *_WINDOW, "storage_order")
    yield _row("MAX_POOL_2D_WITH_INDICES", indices, NUMBERS, **_IMAGE)
    yield _row("MAX_UNPOOL_2D", direct("max_unpool"), NUMBERS, other_dtypes={1: INDICES}, **_IMAGE)
    yield _row("CONV_3D", d.by_role("volume_convolution", *_FILTER), FLOATS, **_VOLUME)
    yield _row("CONV_3D_TRANSPOSE", d.by_role("transposed_volume_convolution", *_FILTER), FLOATS, **_VOLUME)
    yield _row("MAX_POOL_3D", direct("max_pool_axes", *_WINDOW), NUMBERS, **_VOLUME)
    average = direct("average_pool_axes", *_WINDOW, "count_include_pad")
    yield _row("AVERAGE_POOL_3D", average, FLOATS, **_VOLUME)
    yield _row("LP_POOL_3D", direct("p_norm_pool", *_WINDOW, "p"), FLOATS, **_VOLUME)
    yield _row("MAX_POOL_3D_WITH_INDICES", indices, NUMBERS, **_VOLUME)
    yield _row("COL_TO_IM", direct("columns_to_image", *_WINDOW), FLOATS, ranks=(3, 3))
    yield from _rows("GRID_SAMPLE", FLOATS, "mode padding_mode align_corners", ranks=(4, 5))
    yield from _rows("AFFINE_GRID", FLOATS, "align_corners", ranks=(3, 3))
    roi = "spatial_scale sampling_ratio mode half_pixel"
    yield from _rows("ROI_ALIGN", FLOATS, roi, other_dtypes={2: INDICES}, **_IMAGE)
    yield from _rows("MAX_ROI_POOL", FLOATS, "spatial_scale", **_IMAGE)
    yield _row("DEFORMABLE_CONV_2D", d.by_role("deformable_convolution", "offset_group", *_FILTER), FLOATS, **_IMAGE)
    linear = "scales coordinate_transformation_mode"
    yield from _rows("RESIZE_NEAREST", HELD, f"{linear} nearest_mode", moves=True)
    yield from _rows("RESIZE_LINEAR", FLOATS, linear)
    yield from _rows("FULLY_CONNECTED", ALL_FLOATS, **_MATRIX)
    yield _row("MAT_MUL", direct("matmul", "transpose_x", "transpose_y"), ALL_FLOATS | INDICES, **_MATRIX)
    yield _row(
        "MAT_MUL_N_BITS",
        composite.lower_mat_mul_n_bits,
        FLOATS,
        other_dtypes={1: frozenset({DataType.UINT8}), 3: FLOATS | {DataType.UINT8}},
        limits="a constant weight is unpacked when the model is compiled",
        **_MATRIX,
    )
    yield _row("TRILU", direct("triangle", "upper", "k"), HELD, moves=True)
    yield from _rows("DETERMINANT", ALL_FLOATS)
    yield _row("EINSUM", composite.lower_einsum, ALL_NUMBERS)


def _normalizations() -> Iterator[OperationRow]:
    channels: Limits = {"ranks": (2, LARGEST_RANK)}
    yield _row("BATCH_NORMALIZATION", composite.lower_batch_normalization, FLOATS, **channels)
    yield from _rows("LAYER_NORMALIZATION", ALL_FLOATS, "axis epsilon", **_MATRIX)
    instance = composite.lower_instance_normalization
    yield _row("INSTANCE_NORMALIZATION", instance, FLOATS, ranks=(3, LARGEST_RANK))
    local = composite.lower_local_response_normalization
    yield _row("LOCAL_RESPONSE_NORMALIZATION", local, FLOATS, **channels)
    yield from _rows("SOFTMAX LOG_SOFTMAX", FLOATS, "axis", **_MATRIX)
    yield from _rows("RMS_NORMALIZATION", FLOATS, "axis epsilon")
    yield from _rows("LP_NORMALIZATION", FLOATS, "axis p")
    yield from _rows("MEAN_VARIANCE_NORMALIZATION", FLOATS, "axes epsilon")
    losses: Limits = {"other_dtypes": {1: INDICES}, **channels}
    yield _row("NEGATIVE_LOG_LIKELIHOOD_LOSS", composite.lower_likelihood_loss, FLOATS, **losses)
    yield _row("SOFTMAX_CROSS_ENTROPY_LOSS", composite.lower_cross_entropy_loss, FLOATS, **losses)
    yield from _rows("REDUCE_MEAN", ALL_FLOATS, "axes")
    yield from _rows("REDUCE_SUM REDUCE_MAX REDUCE_MIN REDUCE_PROD", ALL_NUMBERS, "axes")
    yield from _rows("ARG_MAX ARG_MIN", ALL_NUMBERS, "axis select_last_index")
    yield _row("CUM_SUM", direct("running_sum", "axis", "exclusive", "reverse"), ALL_NUMBERS)
    yield _row("CUM_PROD", direct("running_product", "axis", "exclusive", "reverse"), ALL_NUMBERS)
    yield from _rows("TOP_K", ALL_NUMBERS, "axis largest")
    yield from _rows("HARDMAX", ALL_FLOATS, "axis")
    yield _row("DFT", direct("fourier_transform", "axis", "length", "inverse", "onesided"), FLOATS)
    stft = direct("short_time_fourier_transform", "frame_step", "frame_length", "onesided")
    yield _row("STFT", stft, FLOATS)


def _movements() -> Iterator[OperationRow]:
    indexed: Limits = {"other_dtypes": {1: INDICES}}
    yield _row("RESHAPE", d.lower_reshape, HELD, moves=True)
    yield _row("TRANSPOSE", d.lower_transpose, HELD, moves=True)
    yield _row("EXPAND", d.lower_expand, HELD, moves=True)
    yield _row("FILL", d.lower_expand, HELD, moves=True)
    yield from _rows("TILE", HELD, "repeats", moves=True)
    yield _row("CONCAT", d.unless(d.has_one_input, direct("concat", "axis")), HELD, moves=True)
    yield from _rows("SPLIT", HELD, "axis", moves=True)
    yield from _rows("SLICE", HELD, "starts ends axes steps", moves=True)
    yield from _rows("PAD", HELD, "mode pads value", moves=True)
    yield _row("EYE_LIKE", d.lower_eye, HELD, moves=True)
    yield from _rows("RANGE", ALL_NUMBERS)
    bytes_of_bool = "bytes that become bool are true unless 0"
    yield _row("BIT_CAST", d.unless(d.keeps_type, direct("bit_cast")), HELD, limits=bytes_of_bool, moves=True)
    yield from _rows("GATHER GATHER_ELEMENTS", HELD, "axis", **indexed, moves=True)
    yield from _rows("GATHER_ND", HELD, "batch_dims", **indexed, moves=True)
    yield from _rows("SCATTER_ELEMENTS", HELD, "axis reduction", **indexed)
    yield from _rows("SCATTER_ND", HELD, "reduction", **indexed)
    yield from _rows("TENSOR_SCATTER", HELD, "axis mode", other_dtypes={2: INDICES}, moves=True)
    yield from _rows("ONE_HOT", HELD, "axis", other_dtypes={0: ALL_NUMBERS}, moves=True)
    yield from _rows("REVERSE_SEQUENCE", HELD, "batch_axis time_axis", **indexed, moves=True)
    recurrent: Limits = {"other_dtypes": {4: INDICES}, "ranks": (3, 3)}
    yield from _rows("LSTM", FLOATS, "input_forget", d.recurrent, **recurrent)
    yield from _rows("GRU", FLOATS, "linear_before_reset", d.recurrent, **recurrent)
    yield from _rows("RNN", FLOATS, how=d.recurrent, **recurrent)
    masks = "is_causal offset left_window right_window scores without_keys"
    attention: Limits = {"other_dtypes": {3: FLOATS | BOOLEANS, 4: INDICES}, **_IMAGE}
    yield from _rows("ATTENTION", FLOATS, f"scale softcap {masks}", d.by_role, **attention)
    yield from _rows("ROTARY_EMBEDDING", FLOATS, "interleaved", **_IMAGE)
    linear = "query_heads key_value_heads scale update_rule"
    yield from _rows("LINEAR_ATTENTION", FLOATS, linear, d.by_role, ranks=(3, 3))
    yield _row("CAUSAL_CONV", d.by_role("causal_convolution", "activation"), FLOATS, ranks=(3, 3))
    yield _row("QUANTIZE", quantized.lower_quantize, FLOATS, results=EIGHT_BITS | SIXTEEN_BITS)
    stored = _STORED | SIXTEEN_BITS
    yield _row("DEQUANTIZE", quantized.lower_dequantize, stored | _FOUR_BITS, results=FLOATS)
    yield _row("STORAGE_CAST", d.lower_assign, stored, results=stored, moves=True)


_QUANTIZED_PRODUCTS = {
    "CONV_2D": quantized.lower_convolution,
    "CONV_2D_TRANSPOSE": quantized.lower_transposed_convolution,
    "FULLY_CONNECTED": quantized.lower_fully_connected,
    "MAT_MUL": quantized.lower_matmul,
}


def _with_quantized(row: OperationRow) -> OperationRow:
    if row.type in _QUANTIZED_PRODUCTS:
        lower = quantized.on_integers(row.lower, _QUANTIZED_PRODUCTS[row.type])
        return replace(row, lower=lower, quantized=_STORED | SIXTEEN_BITS, results=row.results | SIXTEEN_BITS)
    if row.type in TABULATED:
        return replace(row, lower=quantized.by_table(row.lower), quantized=EIGHT_BITS)
    if row.type in MOVERS and row.moves:
        return replace(row, quantized=EIGHT_BITS | SIXTEEN_BITS, results=row.results | SIXTEEN_BITS)
    return replace(row, quantized=EIGHT_BITS) if row.type in REALS else row


_FAMILIES = (_elementwise, _images, _normalizations, _movements)
OPERATIONS: Mapping[str, OperationRow] = MappingProxyType(
    {row.type: _with_quantized(row) for family in _FAMILIES for row in family()}
)

_PARTS: Mapping[tuple[str, object], tuple[str, ...]] = {
    ("GELU", "none"): ("ERF",),
    ("GELU", "tanh"): ("TANH",),
    ("HARD_SWISH", None): ("HARD_SIGMOID",),
    ("SWISH", None): ("SIGMOID",),
    ("LAYER_NORMALIZATION", None): ("REDUCE_MEAN", "SQRT"),
    ("ATTENTION", None): ("MAT_MUL", "SOFTMAX"),
}
"""Type and `approximate` of a fused operation -> simpler operations. Switching one of these off refuses the fused
operation.
"""


class OperationTable:
    """Operation table that refuses switched-off operations."""

    def __init__(self, switched_off: Collection[str]) -> None:
        self._switched_off = switched_off
        self.rows: Mapping[str, OperationRow] = dict(sorted(OPERATIONS.items()))

    def lower(self, model: Model, operation: Operation) -> Lower | Unsupported:
        verdict = judge(model, operation, self._switched_off)
        return verdict if isinstance(verdict, Unsupported) else OPERATIONS[operation.type].lower


def types_needed(operation: Operation) -> tuple[str, ...]:
    """Return the types that must not be switched off for an operation: its own type and the types of its parts."""
    return operation.type, *_PARTS.get((operation.type, operation.attributes.get("approximate")), ())


def judge(model: Model, operation: Operation, switched_off: Collection[str]) -> Verdict:
    """Return the verdict on one operation of `model`."""
    row = OPERATIONS.get(operation.type)
    if row is None:
        return Unsupported(Reason.UNSUPPORTED_OPERATION, f"fake_npu has no kernel for {operation.type}")
    for needed in types_needed(operation):
        if needed in switched_off:
            dependency = "" if needed == operation.type else f", which {operation.type} needs,"
            detail = f"{needed}{dependency} is switched off on this device by its option switched_off"
            return Unsupported(Reason.SWITCHED_OFF, detail)
    return next(_refusals(model, operation, row), SUPPORTED)


def _refusals(model: Model, operation: Operation, row: OperationRow) -> Iterator[Unsupported]:
    operands = model.operands
    inputs = [(place, operands[operand]) for place, operand in enumerate(operation.inputs) if operand != ABSENT]
    outputs = [operands[operand] for operand in operation.outputs]
    # A result that is not quantized is computed from the integers.
    on_integers = operation.type in REALS and outputs[0].type.quantization is None
    accepted = []
    for position, operand in inputs:
        dtypes = row.other_dtypes.get(position, row.dtypes)
        is_real = operand.type.quantization is not None and not on_integers
        accepted.append((operand, dtypes | row.quantized if is_real else dtypes))
    accepted += [(operand, row.results) for operand in outputs]
    for operand, dtypes in accepted:
        if operand.type.dtype not in dtypes:
            names = ", ".join(sorted(dtypes))
            detail = f"{operation.type} got {operand.type.dtype.value} for {operand.name!r}, accepted: {names}"
            yield Unsupported(Reason.UNSUPPORTED_DTYPE, detail)
    first, (smallest, largest) = operands[operation.inputs[0]], row.ranks
    if not smallest <= len(first.type.dimensions) <= largest:
        detail = f"{operation.type} got {first.type} for {first.name!r}, accepted: rank {smallest} to {largest}"
        yield Unsupported(Reason.UNSUPPORTED_RANK, detail)
    for operand, _ in accepted:
        is_deep = len(operand.type.dimensions) > LARGEST_RANK
        if is_deep or operand.type.size == 0:  # only then, because text of a symbolic size fixes it
            reason = Reason.UNSUPPORTED_RANK if is_deep else Reason.UNSUPPORTED_TYPE
            limit = SMALL_RANK if is_deep else NOT_EMPTY
            detail = f"{operation.type} has {operand.type} in {operand.name!r}, accepted: {limit}"
            yield Unsupported(reason, detail)
