"""Attention, and the layers that stand around it or in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nnadapter.drivers.tables.lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.closing import ALL_FLOATS, computes
from nnadapter.drivers.xla.lowerings.convolution import with_bias
from nnadapter.ir.named_operation import NamedOperation


def _seen(queries: int, keys: int, lengths: Any, attributes: Mapping[str, Any]) -> Any:
    """Which keys a query sees, to be spread over [batch, groups, heads, queries, keys]; None where it is all."""
    offset: Any = attributes["offset"]
    places, conditions = jnp.arange(keys), []
    if lengths is not None:
        ends = lengths.reshape(-1, 1, 1, 1, 1)
        offset = ends - queries
        conditions.append(places < jnp.where(ends < 0, ends + keys, ends))  # below 0 they count from the end
    distance = places - (jnp.arange(queries)[:, None] + offset)
    if attributes["is_causal"]:
        conditions.append(distance <= 0)
    if attributes["left_window"] >= 0:
        conditions.append(-distance <= attributes["left_window"])
    if attributes["right_window"] >= 0:
        conditions.append(distance <= attributes["right_window"])
    seen = None
    for condition in conditions:
        seen = condition if seen is None else seen & condition
    return seen


def _masked(scores: Any, mask: Any, seen: Any) -> Any:
    batch, groups, each, queries, keys = scores.shape
    if mask is not None:
        whole = jnp.broadcast_to(mask, (batch, groups * each, queries, keys)).reshape(scores.shape)
        scores = jnp.where(whole, scores, -jnp.inf) if whole.dtype == bool else scores + whole
    return scores if seen is None else jnp.where(seen, scores, -jnp.inf)


def _attention(query: Any, key: Any, value: Any, mask: Any = None, lengths: Any = None, **attributes: Any) -> Any:
    (batch, heads, queries, size), (_, groups, keys, _) = query.shape, key.shape
    grouped = query.reshape(batch, groups, heads // groups, queries, size)
    stages = {"product": attributes["scale"] * jnp.einsum("bgrqd,bgkd->bgrqk", grouped, key)}
    cap = attributes["softcap"]
    stages["capped"] = cap * jnp.tanh(stages["product"] / cap) if cap > 0 else stages["product"]
    stages["masked"] = _masked(stages["capped"], mask, _seen(queries, keys, lengths, attributes))
    most = stages["masked"].max(-1, keepdims=True, initial=jnp.finfo(query.dtype).min)
    raised = jnp.exp(stages["masked"] - most)
    total = raised.sum(-1, keepdims=True)
    empty = jnp.nan if attributes["without_keys"] == "nan" else 0.0
    stages["softmax"] = jnp.where(total > 0, raised / jnp.where(total > 0, total, 1), empty)
    result = jnp.einsum("bgrqk,bgkd->bgrqd", stages["softmax"], value).reshape(batch, heads, queries, value.shape[-1])
    if attributes["scores"] == "none":
        return result
    return [result, stages[attributes["scores"]].reshape(batch, heads, queries, keys)]


def _rotary(x: Any, cosine: Any, sine: Any, interleaved: bool) -> Any:
    pairs = cosine.shape[-1]
    c, s = cosine[:, None], sine[:, None]
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    left, right = (turned[..., ::2], turned[..., 1::2]) if interleaved else jnp.split(turned, 2, -1)
    both = c * left - s * right, s * left + c * right
    joined = jnp.stack(both, -1).reshape(turned.shape) if interleaved else jnp.concatenate(both, -1)
    return jnp.concatenate([joined, rest], -1)


def _linear_attention(
    query: Any, key: Any, value: Any, past: Any = None, decay: Any = None, rate: Any = None, **attributes: Any
) -> Any:
    (batch, steps, _), heads, groups = query.shape, attributes["query_heads"], attributes["key_value_heads"]
    query = query.reshape(batch, steps, groups, heads // groups, query.shape[2] // heads)
    key, value = (array.reshape(batch, steps, groups, array.shape[2] // groups) for array in (key, value))
    state = jnp.zeros((batch, groups, key.shape[3], value.shape[3]), query.dtype) if past is None else past
    decay = jnp.zeros_like(key) if decay is None else decay.reshape(batch, steps, groups, decay.shape[2] // groups)
    decay = jnp.broadcast_to(decay, key.shape)
    delta = rate is not None
    rates = jnp.broadcast_to(rate if delta else jnp.ones(1, query.dtype), (batch, steps, groups))

    def step(memory: Any, given: Any) -> Any:
        q, k, v, fading, weight = given
        memory = jnp.exp(fading)[..., None] * memory
        new = v - jnp.einsum("bgkv,bgk->bgv", memory, k) if delta else v
        memory = memory + weight[..., None, None] * k[..., None] * new[..., None, :]
        return memory, attributes["scale"] * jnp.einsum("bgrk,bgkv->bgrv", q, memory)

    by_step = tuple(jnp.moveaxis(array, 1, 0) for array in (query, key, value, decay, rates))
    state, output = jax.lax.scan(step, state, by_step)
    return [jnp.moveaxis(output, 0, 1).reshape(batch, steps, heads * value.shape[-1]), state]


def _causal_convolution(x: Any, weight: Any, bias: Any = None, past: Any = None, *, activation: str) -> Any:
    taps = weight.shape[2]
    past = jnp.zeros((*x.shape[:2], taps - 1), x.dtype) if past is None else past
    padded = jnp.concatenate([past, x], 2)
    result = jax.lax.conv_general_dilated(
        padded, weight, (1,), [(0, 0)], dimension_numbers=("NCW", "OIW", "NCW"), feature_group_count=x.shape[1]
    )
    result = with_bias(result, bias, last=False)
    return [result * jax.nn.sigmoid(result) if activation == "swish" else result, padded[:, :, x.shape[2] :]]


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "ATTENTION": _attention,
    "ROTARY_EMBEDDING": _rotary,
    "LINEAR_ATTENTION": _linear_attention,
    "CAUSAL_CONV": _causal_convolution,
}


@lowers("ATTENTION", types=(*ALL_FLOATS, "bool", "int32", "int64"))
@lowers("ROTARY_EMBEDDING", "LINEAR_ATTENTION", "CAUSAL_CONV", types=ALL_FLOATS)
def lower_attention(operation: NamedOperation) -> Computes:
    """What looks at other steps of a sequence."""
    return computes(operation, FUNCTIONS[operation.type])
