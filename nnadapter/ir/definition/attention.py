"""Reference implementations: attention and related layers."""

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
        first_index, second_index = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + pairs)
        c, s = cosine[:, None, :, pair], sine[:, None, :, pair]
        result[..., first_index] = c * x[..., first_index] - s * x[..., second_index]
        result[..., second_index] = s * x[..., first_index] + c * x[..., second_index]
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


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "ATTENTION": _attention,
    "ROTARY_EMBEDDING": _rotary,
    "LINEAR_ATTENTION": _linear_attention,
    "CAUSAL_CONV": _causal_conv,
}

DOCS = """\
# *
-> output: Data type and dimensions of `input`.
# ATTENTION: Scaled dot-product attention.
| g = floor(h / (H / G))
| product[b, h, i, j] = scale * sum over d of query[b, h, i, d] * key[b, g, j, d]
| capped = softcap * tanh(product / softcap) if softcap > 0, else product
| masked = capped + mask, and -inf if query i may not attend to key j:
|     mask is bool and false; j >= lengths[b]; is_causal and j > p; p - j > left_window >= 0; j - p > right_window >= 0
|     with p = i + lengths[b] - S if lengths is present, else i + offset
| softmax = SOFTMAX of masked along j
| output[b, h, i, e] = sum over j of softmax[b, h, i, j] * value[b, g, j, e]
query: [B, H, S, D]: batch, query heads, queries, depth.
key: [B, G, T, D]: G heads, a divisor of H, and T keys, including cached ones.
value: [B, G, T, E]; E may differ from D.
mask: Broadcasts to [B, H, S, T]. bool: true for keys that a query may attend to. Floating-point: added to the scores.
lengths: [B], 0 to T: number of valid keys of each item; the rest of T is free cache space. The last query is at the
  last valid key.
scale: Factor of the products; required. Usually 1 / sqrt(D).
softcap: Limit of scores, applied with tanh; 0: none.
is_causal: True: no query attends to a key after its own position.
offset: Position of query 0 among the keys, the number of past keys. Ignored if `lengths` is present.
left_window: Largest distance to keys before the query's position; -1: no limit.
right_window: Largest distance to keys after the query's position; -1: no limit.
scores: Contents of the second output: `product`, `capped`, `masked` or `softmax`, as in the formula. `none`: there is
  no second output.
without_keys: Result for a query that may not attend to any key: `zero` or `nan`.
-> output: [B, H, S, E]. The data type of `query`.
-> scores: [B, H, S, T]. The data type of `query`; only present if the attribute `scores` is not `none`.
- is_causal counts from the top left unless `offset` is set: for S queries at the end of T keys, offset is T - S.
- Consecutive query heads share a head of keys: with H = 4 and G = 2, heads 0 and 1 read head 0.
- A mask that is absent before `lengths` is ABSENT.
- If every key is masked, the weights are 0 by default, not NaN or 1 / T.
- A floating-point mask may contain -inf. Its data type may differ from the query's.
- ONNX's past_key, past_value and packed inputs of rank 3 have become CONCAT, RESHAPE and TRANSPOSE.
- The pass fuse_attention recognizes it in MAT_MUL, SOFTMAX, MAT_MUL, with without_keys `nan`.
FLOPs: B * H * S * T * (2D + 2E + 7)
example: [[[[1.0], [1.0]]]], [[[[0.0], [1.0], [5.0]]]], [[[[1.0], [2.0], [100.0]]]], scale=1.0, is_causal=True,
  scores='softmax'
# ROTARY_EMBEDDING: Pairs of features rotated by an angle that depends on the position.
| for pair p of P: (l, r) = (p, p + P), or (2p, 2p + 1) if interleaved
| output[b, h, s, l] = cosine[b, s, p] * input[b, h, s, l] - sine[b, s, p] * input[b, h, s, r]
| output[b, h, s, r] = sine[b, s, p] * input[b, h, s, l] + cosine[b, s, p] * input[b, h, s, r]
| features from 2P on do not change
input: [B, H, S, D].
cosine: [B, S, P], or 1 instead of B or S; P at most D / 2. Already gathered for each position.
sine: Dimensions of `cosine`.
interleaved: True: adjacent features form a pair. False: the first half of the features is paired with the second half.
- Halves are those of the 2P rotated features, not of D.
- There is no position input: the converter gathers rows of the caches.
example: counting(1, 1, 1, 5), [[[0.0, 1.0]]], [[[1.0, 0.0]]]
# LINEAR_ATTENTION: Attention with a state instead of a cache: every step updates and reads it.
| per step t and head g of keys, with state M [D, E], k = key[b, t, g], v = value[b, t, g]:
| M = exp(decay[b, t, g])[:, None] * M        gated, gated_delta; else M does not change
| M = M + rate[b, t, g] * outer(k, v - M^T k)  delta, gated_delta
| M = M + outer(k, v)                          linear, gated
| output[b, t, h] = scale * query[b, t, h] @ M    for the query heads h of g: floor(h / (heads / groups)) = g
query: [B, T, query_heads * D]: the heads are concatenated.
key: [B, T, key_value_heads * D].
value: [B, T, key_value_heads * E].
past_state: [B, key_value_heads, D, E]: the state before the first step; absent: zeros.
decay: [B, T, key_value_heads], or [B, T, key_value_heads * D] for one per row of the state. Logarithms, usually
  negative. Only for `gated` and `gated_delta`.
rate: [B, T, key_value_heads], or [B, T, 1] for all heads. Only for `delta` and `gated_delta`.
query_heads: Number of heads of query and output.
key_value_heads: Number of heads of key and value; a divisor of query_heads.
scale: Factor of the output; required.
update_rule: Update of the state by a step; see the formula.
-> output: [B, T, query_heads * E]. The data type of `query`.
-> present_state: [B, key_value_heads, D, E]: the state after the last step. The data type of `past_state`, or else of
  `query`.
- decay is a logarithm: the operation applies exp.
- A step decays the state, corrects it, and then reads it.
- decay and rate must be present exactly if the rule uses them.
FLOPs: B * T * D * E * (5 * key_value_heads + 2 * query_heads)
example: [[[1.0], [1.0]]], [[[1.0], [1.0]]], [[[2.0], [4.0]]], None, None, [[[0.5], [0.5]]], query_heads=1,
  key_value_heads=1, scale=1.0, update_rule='delta'
# CAUSAL_CONV: A depthwise convolution along steps that uses no future step.
| padded = past_state, then input
| sum[b, c, t] = bias[c] + sum over k of weight[c, 0, k] * padded[b, c, t + k]
| output = sum, or sum / (1 + exp(-sum)) with activation swish
| present_state = the last taps - 1 steps of padded
input: [B, C, T].
weight: [C, 1, taps]; the last tap is for the current step.
bias: [C]; absent: zeros.
past_state: [B, C, taps - 1]: the previous steps; absent: zeros.
activation: `none`, or `swish`: the sum times its sigmoid.
-> present_state: [B, C, taps - 1]: past_state for the next call.
- present_state contains inputs, without bias and activation.
- With fewer than taps - 1 steps, it starts with elements of past_state.
FLOPs: (2 * taps + 1) per output element, plus 4 with swish
example: [[[1.0, 2.0, 3.0]]], [[[10.0, 1.0]]], None, [[[100.0]]]
"""
