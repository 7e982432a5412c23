"""Attention, and the layers that stand around it or in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.ir.definition.elementwise import sigmoid
from nnadapter.ir.operand import Array


def _attention(query, key, value, mask=None, lengths=None, **attributes):  # type: ignore[no-untyped-def]
    (batch, heads, queries, _), (_, groups, keys, _) = query.shape, key.shape
    key, value = (np.repeat(array, heads // groups, 1) for array in (key, value))
    stages = {"product": attributes["scale"] * (query @ key.swapaxes(-1, -2))}
    cap = attributes["softcap"]
    stages["capped"] = cap * np.tanh(stages["product"] / cap) if cap > 0 else stages["product"]
    addition = np.zeros((batch, heads, queries, keys))
    if mask is not None:
        addition = addition + (np.where(mask, 0, -np.inf) if mask.dtype == bool else mask)
    for item in range(batch):
        offset = attributes["offset"] if lengths is None else lengths[item] - queries
        distance = np.arange(keys) - (np.arange(queries)[:, None] + offset)
        if lengths is not None:
            addition[item, :, :, np.arange(keys) >= lengths[item]] = -np.inf
        if attributes["is_causal"]:
            addition[item, :, distance > 0] = -np.inf
        for window, beyond in (("left_window", -distance), ("right_window", distance)):
            if attributes[window] >= 0:
                addition[item, :, beyond > attributes[window]] = -np.inf
    stages["masked"] = stages["capped"] + addition
    raised = np.exp(stages["masked"] - np.maximum(stages["masked"].max(-1, keepdims=True), -1e300))
    total = raised.sum(-1, keepdims=True)
    empty = np.nan if attributes["without_keys"] == "nan" else 0.0
    stages["softmax"] = np.divide(raised, total, out=np.full_like(raised, empty), where=total > 0)
    result = stages["softmax"] @ value
    return result if attributes["scores"] == "none" else [result, stages[attributes["scores"]]]


def _rotary(x: Array, cosine: Array, sine: Array, interleaved: bool) -> Array:
    pairs, result = cosine.shape[-1], x.copy()
    for pair in range(pairs):
        left, right = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + pairs)
        c, s = cosine[:, None, :, pair], sine[:, None, :, pair]
        result[..., left] = c * x[..., left] - s * x[..., right]
        result[..., right] = s * x[..., left] + c * x[..., right]
    return result


def _linear_attention(query, key, value, past=None, decay=None, rate=None, **attributes):  # type: ignore[no-untyped-def]
    (batch, steps, _), heads, groups = query.shape, attributes["query_heads"], attributes["key_value_heads"]
    query = query.reshape(batch, steps, heads, -1)
    key, value = (array.reshape(batch, steps, groups, -1) for array in (key, value))
    decay = np.zeros((batch, steps, groups)) if decay is None else decay
    decay = np.broadcast_to(decay.reshape(batch, steps, groups, -1), key.shape)
    delta = rate is not None
    rate = np.broadcast_to(rate if delta else np.ones(1), (batch, steps, groups))
    state = np.zeros((batch, groups, key.shape[3], value.shape[3])) if past is None else past.astype(np.float64)
    output = np.zeros((batch, steps, heads, value.shape[3]))
    for item, group in np.ndindex(batch, groups):
        memory = state[item, group]
        for t in range(steps):
            k, v = key[item, t, group], value[item, t, group]
            memory = np.exp(decay[item, t, group])[:, None] * memory
            memory = memory + rate[item, t, group] * np.outer(k, v - memory.T @ k if delta else v)
            for head in range(group * (heads // groups), (group + 1) * (heads // groups)):
                output[item, t, head] = attributes["scale"] * (query[item, t, head] @ memory)
        state[item, group] = memory
    return [output.reshape(batch, steps, -1), state]


def _causal_conv(x, weight, bias=None, past=None, *, activation):  # type: ignore[no-untyped-def]
    taps = weight.shape[2]
    past = np.zeros((*x.shape[:2], taps - 1)) if past is None else past
    padded = np.concatenate([past, x], 2)
    result = np.zeros(x.shape) if bias is None else np.broadcast_to(bias[:, None], x.shape).copy()
    for t in range(x.shape[2]):
        result[:, :, t] += (padded[:, :, t : t + taps] * weight[:, 0]).sum(-1)
    return [result * sigmoid(result) if activation == "swish" else result, padded[:, :, x.shape[2] :]]


ATTENTION: Mapping[str, Callable[..., Any]] = {
    "ATTENTION": _attention,
    "ROTARY_EMBEDDING": _rotary,
    "LINEAR_ATTENTION": _linear_attention,
    "CAUSAL_CONV": _causal_conv,
}
"""By operation."""
