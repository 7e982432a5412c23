"""Bodies of normalizations."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.onnx.body import BodyBuilder, function_op, length_of, sliced
from nnadapter.onnx.microsoft.elementwise import silu

_LAYER_NORMALIZATION_SINCE, _AXES_ARE_INPUT_SINCE, _RMS_NORMALIZATION_SINCE = 17, 18, 23


def mean_of(body: BodyBuilder, x: str, axes: Sequence[int]) -> str:
    """Add a ReduceMean; `axes` are an attribute or an input, depending on the opset."""
    if body.opset >= _AXES_ARE_INPUT_SINCE:
        return body.ReduceMean(x, body.constant(tuple(axes)), keepdims=1)
    return body.ReduceMean(x, axes=list(axes), keepdims=1)


def layer_normalization(
    body: BodyBuilder, x: str, scale: str, bias: str, axes: Sequence[int], dtype: str, outputs: int = 1
) -> tuple[str, ...]:
    """Add LayerNormalization. Return the result, and with 3 `outputs` also mean and inverse standard deviation.

    `axes` are the last ones, negative; `bias` may be empty.
    """
    epsilon = body.node.number("epsilon")
    if body.opset >= _LAYER_NORMALIZATION_SINCE:
        return body.add_several("LayerNormalization", (x, scale, bias), outputs, axis=axes[0], epsilon=epsilon)
    wide, stash = _widened(body, x, dtype)
    mean = mean_of(body, wide, axes)
    centered = body.Sub(wide, mean)
    variance = mean_of(body, body.Mul(centered, centered), axes)
    deviation = body.Sqrt(body.Add(variance, body.constant(epsilon, stash)))
    scaled = body.Mul(_narrowed(body, body.Div(centered, deviation), dtype), scale)
    result = body.plus(scaled, bias)
    return (result,) if outputs == 1 else (result, mean, body.Reciprocal(deviation))


def rms_normalization(
    body: BodyBuilder, x: str, scale: str, axes: Sequence[int], dtype: str, outputs: int = 1
) -> tuple[str, ...]:
    """Add RMSNormalization. Return the result, and with 2 `outputs` also the inverse root mean square."""
    epsilon = body.node.number("epsilon")
    if body.opset >= _RMS_NORMALIZATION_SINCE and outputs == 1:
        return (body.RMSNormalization(x, scale, axis=axes[0], epsilon=epsilon),)
    wide, stash = _widened(body, x, dtype)
    mean = mean_of(body, body.Mul(wide, wide), axes)
    root = body.Sqrt(body.Add(mean, body.constant(epsilon, stash)))
    result = body.Mul(_narrowed(body, body.Div(wide, root), dtype), scale)
    return (result,) if outputs == 1 else (result, body.Reciprocal(root))


def _widened(body: BodyBuilder, x: str, dtype: str) -> tuple[str, str]:
    """Cast float16 to float32, since float16 lacks an epsilon of 1e-12, and squares above 255."""
    return (body.cast(x, "float32"), "float32") if dtype == "float16" else (x, dtype)


def _narrowed(body: BodyBuilder, x: str, dtype: str) -> str:
    return body.cast(x, dtype) if dtype == "float16" else x


_NORMALIZATION = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
_SKIP = {"epsilon": 1e-12}
_GROUPS = {"epsilon": 1e-5, "groups": int, "activation": int, "channels_last": 1}


@function_op("LayerNormalization", "X Scale B?", "Y Mean? InvStdDev?", _NORMALIZATION, domain="")
def layer_normalization_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand ONNX Runtime's LayerNormalization-1, for opsets below 17."""
    x, scale, bias = map(body.input, range(3))
    outputs = 3 if body.wants(1) or body.wants(2) else 1
    return layer_normalization(body, x, scale, bias, _axes(body), body.dtype(), outputs)


@function_op("SimplifiedLayerNormalization", "X scale", "Y inv_std_var?", _NORMALIZATION, domain="")
def simplified_layer_normalization_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand ONNX Runtime's SimplifiedLayerNormalization-1 (RMSNormalization)."""
    outputs = 2 if body.wants(1) else 1
    return rms_normalization(body, body.input(0), body.input(1), _axes(body), body.dtype(), outputs)


def _axes(body: BodyBuilder) -> list[int]:
    axis, rank = body.node.integer("axis"), body.rank(0)
    if not -rank <= axis < rank:
        raise body.invalid(f"has attribute 'axis' {axis}; expected {-rank} to {rank - 1}")
    return list(range(axis - rank if axis >= 0 else axis, 0))


@function_op(
    "SkipLayerNormalization",
    "input skip gamma beta? bias?",
    "output mean? inv_std_var? input_skip_bias_sum?",
    _SKIP,
)
def skip_layer_normalization_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft SkipLayerNormalization-1."""
    total = _total(body, body.input(4))
    outputs = 3 if body.wants(1) or body.wants(2) else 1
    results = layer_normalization(body, total, body.input(2), body.input(3), [-1], body.dtype(), outputs)
    return (*results, *[""] * (3 - outputs), total)


@function_op(
    "SkipSimplifiedLayerNormalization",
    "input skip gamma bias?",
    "output mean? inv_std_var? input_skip_bias_sum?",
    _SKIP,
)
def skip_simplified_layer_normalization_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft SkipSimplifiedLayerNormalization-1."""
    total = _total(body, body.input(3))
    results = rms_normalization(body, total, body.input(2), [-1], body.dtype(), 2 if body.wants(2) else 1)
    return (results[0], "", results[1] if body.wants(2) else "", total)


def _total(body: BodyBuilder, bias: str) -> str:
    return body.plus(body.Add(body.input(0), body.input(1)), bias)


@function_op("GatedRMSNorm", "X scale gate", "Y", {"activation": "silu", "epsilon": 1e-5})
def gated_rms_norm_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft GatedRMSNorm-1: RMSNormalization per feature group, times an activated gate."""
    size, width, rank = body.width(1, 0), body.width(0), body.rank(0)
    activation, dtype = body.node.text("activation"), body.dtype(0)
    if size is None or width is None or size < 1 or width % size:
        raise body.invalid(f"has {width} features for a scale of {size}; expected a multiple of {size}")
    if activation not in ("silu", "swish", "sigmoid"):
        raise body.invalid(f"has attribute 'activation' {activation!r}; expected silu, swish or sigmoid")
    x, scale, gate = (body.cast(body.input(position), "float32") for position in range(3))
    grouped = x if width == size else body.reshape(x, *[0] * (rank - 1), width // size, size)
    (normal,) = rms_normalization(body, grouped, scale, [-1], "float32")
    normal = normal if width == size else body.reshape(normal, *[0] * (rank - 1), width)
    opened = body.Sigmoid(gate) if activation == "sigmoid" else silu(body, gate)
    return (body.cast(body.Mul(normal, opened), dtype),)


@function_op(
    "EmbedLayerNormalization",
    "input_ids segment_ids? word_embedding position_embedding segment_embedding? gamma beta mask? position_ids?",
    "output mask_index? embedding_sum?",
    {"epsilon": 1e-12, "mask_index_type": int},
)
def embed_layer_normalization_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft EmbedLayerNormalization-1."""
    ids, segments, places = map(body.input, (0, 1, 8))
    words, table = body.Gather(body.input(2), ids), body.input(3)
    positions = body.Gather(table, places) if places else first_rows(body, table)
    total = body.Add(words, positions)
    if segments:
        total = body.Add(total, body.Gather(body.input(4), segments))
    (normalized,) = layer_normalization(body, total, body.input(5), body.input(6), [-1], body.dtype(2))
    return normalized, lengths(body, body.input(7), ids) if body.wants(1) else "", total


def first_rows(body: BodyBuilder, table: str) -> str:
    """Return the first S rows of the position table; S is axis 1 of the first input."""
    size = body.size(0, 1)
    return sliced(body, table, 0, 0, length_of(body, body.input(0), 1) if size is None else size)


def lengths(body: BodyBuilder, mask: str, ids: str) -> str:
    """Return the number of ones in the mask per sequence, or zeros without a mask."""
    counted = body.cast(body.Equal(mask or ids, body.constant(1, "int32")), "int32")
    if not mask:
        counted = body.Sub(counted, counted)
    return body.ReduceSum(counted, body.constant((1,)), keepdims=0)


@function_op("GroupNorm", "X gamma beta", "Y", _GROUPS, required=("groups", "activation"))
def group_norm_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft GroupNorm-1."""
    return (_group_norm(body, body.input(0)),)


@function_op("SkipGroupNorm", "X gamma beta skip bias?", "Y S?", _GROUPS, required=("groups", "activation"))
def skip_group_norm_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft SkipGroupNorm-1."""
    skip = body.input(3)
    if body.rank(3) == 2:
        skip = body.unsqueeze(skip, *((1, 2) if body.node.integer("channels_last") else (2, 3)))
    total = body.Add(body.input(0), skip)
    if body.input(4):
        channels = (-1,) if body.node.integer("channels_last") else (1, -1, 1, 1)
        total = body.Add(total, body.reshape(body.input(4), *channels))
    return _group_norm(body, total), total


def _group_norm(body: BodyBuilder, x: str) -> str:
    last, dtype = body.node.integer("channels_last"), body.dtype()
    picture = body.Transpose(x, perm=[0, 3, 1, 2]) if last else x
    flat = body.reshape(picture, 0, body.node.integer("groups"), -1)
    mean = mean_of(body, flat, [-1])
    centered = body.Sub(flat, mean)
    variance = mean_of(body, body.Mul(centered, centered), [-1])
    epsilon = body.constant(body.node.number("epsilon"), dtype)
    normal = body.Div(centered, body.Sqrt(body.Add(variance, epsilon)))
    shaped = body.Reshape(normal, body.Shape(picture))
    scale, bias = (body.cast(body.reshape(body.input(position), 1, -1, 1, 1), dtype) for position in (1, 2))
    result = body.Add(body.Mul(shaped, scale), bias)
    result = body.Transpose(result, perm=[0, 2, 3, 1]) if last else result
    return silu(body, result) if body.node.integer("activation") else result
