"""Attention, rotary embeddings, linear attention and causal convolution.

Sizes: batch B, query heads H = G * R, key and value heads G, queries S, keys T, depth D, value depth E.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnadapter.drivers.fake_npu.kernels.kernel import FUNCTIONS, named_kernels
from nnadapter.ir.operand import Array

_LOWEST = float(np.finfo(np.float32).min)

Sizes = tuple[int, int, int, int, int]
"""B, G, R, S and T."""


def _attention(out: Array, *shown: Array, query: Array, key: Array, value: Array, **parameters: Any) -> None:
    """Compute attention of query [B, H, S, D], key [B, G, T, D] and value [B, G, T, E].

    `shown`, an optional output, receives the scores at one stage; the parameter `scores` names the stage.
    """
    (batch, heads, queries, _), (groups, keys) = query.shape, key.shape[1:3]
    sizes = batch, groups, heads // groups, queries, keys
    mask, softcap = parameters.pop("mask", None), parameters["softcap"]
    mask = None if mask is None else np.broadcast_to(mask, (batch, heads, queries, keys)).reshape(sizes)
    hidden = _hidden_keys(sizes, mask, **parameters)
    rows = (batch, groups, sizes[2] * queries, -1)
    query, result = query.reshape(rows), out.reshape(rows)

    def show(stage: str) -> None:
        if shown and stage == parameters["scores"]:
            np.copyto(shown[0].reshape(sizes)[item], by_query)

    for item in range(batch):
        products = np.matmul(query[item], key[item].swapaxes(-1, -2))
        by_query = products.reshape(sizes[1:])
        products *= parameters["scale"]
        show("product")
        if softcap > 0:
            np.multiply(np.tanh(products / softcap), softcap, products)
        show("capped")
        if mask is not None and mask.dtype != bool:
            by_query += mask[item]
        for places in hidden:
            np.copyto(by_query, -np.inf, where=places[item])
        show("masked")
        _softmax(products, zeros_without_keys=parameters["without_keys"] != "nan")
        show("softmax")
        np.matmul(products, value[item], result[item])


def _hidden_keys(
    sizes: Sizes,
    mask: Array | None,
    *,
    lengths: Array | None = None,
    is_causal: bool,
    offset: int,
    left_window: int,
    right_window: int,
    **others: object,
) -> list[Array]:
    batch, _, _, queries, keys = sizes
    positions, places, hidden = np.arange(queries)[:, None] + offset, np.arange(keys), []
    if lengths is not None:
        # Keys after an item's length are padding; its queries are the last positions before.
        ends = lengths.reshape(batch, 1, 1, 1, 1)
        positions = np.arange(queries)[:, None] + ends - queries
        hidden.append(places >= ends)
    if is_causal and (lengths is not None or keys > offset + 1):
        hidden.append(places > positions)
    if left_window >= 0:
        hidden.append(places < positions - left_window)
    if right_window >= 0:
        hidden.append(places > positions + right_window)
    if mask is not None and mask.dtype == bool:
        hidden.append(~mask)
    return [np.broadcast_to(each, sizes) for each in hidden]


def _softmax(scores: Array, *, zeros_without_keys: bool) -> None:
    edge = np.maximum.reduce(scores, axis=-1, keepdims=True)
    if zeros_without_keys:
        np.maximum(edge, _LOWEST, out=edge)
    scores -= edge
    np.exp(scores, scores)
    total = np.add.reduce(scores, axis=-1, keepdims=True)
    if zeros_without_keys:
        # A row with keys has a total of at least exp(0).
        np.maximum(total, 1, out=total)
    scores /= total


def _rotary_embedding(out: Array, x: Array, cosine: Array, sine: Array, *, interleaved: bool) -> None:
    pairs, cosine, sine = cosine.shape[-1], cosine[:, None], sine[:, None]
    first = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    left, right = x[..., first], x[..., second]
    np.subtract(left * cosine, right * sine, out[..., first])
    np.add(left * sine, right * cosine, out[..., second])
    np.copyto(out[..., 2 * pairs :], x[..., 2 * pairs :])


def _linear_attention(
    out: Array, state: Array, *, query_heads: int, key_value_heads: int, scale: float, update_rule: str, **inputs: Array
) -> None:
    queries, results = (_by_head(array, query_heads) for array in (inputs["query"], out))
    keys, values = (_by_head(inputs[name], key_value_heads) for name in ("key", "value"))
    fading = np.exp(_by_head(inputs["decay"], key_value_heads))[..., None] if "decay" in inputs else None
    rates = inputs["rate"].swapaxes(0, 1)[..., None] if "rate" in inputs else None
    np.copyto(state, inputs.get("past_state", 0))
    for step, (row, change) in enumerate(zip(keys, values, strict=True)):
        if fading is not None:
            np.multiply(state, fading[step], state)
        if rates is not None:
            change = (change - np.matmul(row[:, :, None], state)[:, :, 0]) * rates[step]
        np.add(state, row[..., None] * change[:, :, None], state)
        heads = queries[step].reshape(len(out), key_value_heads, query_heads // key_value_heads, -1)
        results[step] = np.matmul(heads, state).reshape(results[step].shape) * scale


def _by_head(packed: Array, heads: int) -> Array:
    return packed.reshape(*packed.shape[:2], heads, -1).swapaxes(0, 1)


def _causal_convolution(out: Array, state: Array, *, weight: Array, activation: str, **inputs: Array) -> None:
    x, length = inputs["input"], out.shape[2]
    padded = np.concatenate([inputs.get("past_state", np.zeros(state.shape, x.dtype)), x], 2)
    np.copyto(out, inputs["bias"][:, None] if "bias" in inputs else 0)
    for tap in range(weight.shape[2]):
        out += padded[:, :, tap : tap + length] * weight[:, :, tap]
    if activation == "swish":
        np.copyto(out, FUNCTIONS["swish"](out))
    np.copyto(state, padded[:, :, length:])


KERNELS = named_kernels(_attention, _causal_convolution, _linear_attention, _rotary_embedding)
