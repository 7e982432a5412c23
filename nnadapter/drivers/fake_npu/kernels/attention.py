"""Attention, rotary embeddings, and layers that carry a state along a sequence: linear attention, causal convolution.

Sizes: batch B, query heads H = G * R, heads of keys and values G, queries S, keys T, depth D, depth of values E.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from nnadapter.drivers.fake_npu.kernels.functions import FUNCTIONS
from nnadapter.drivers.fake_npu.kernels.kernel import NumpyKernel, blocks
from nnadapter.ir.operand import Array

_BLOCK_SCORES = 1 << 18
"""Scores that are computed together: 1 MiB of float32."""
_LOWEST = float(np.finfo(np.float32).min)

Sizes = tuple[int, int, int, int, int]
"""B, G, R, S and T."""


def attention(
    out: Array,
    shown: Array | None = None,
    *,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    lengths: Array | None = None,
    scale: float,
    softcap: float,
    is_causal: bool,
    offset: int,
    left_window: int,
    right_window: int,
    scores: str,
    without_keys: str,
) -> None:
    """Mix values by the softmax of the products of queries and keys, some heads at a time.

    Args:
        out: [B, H, S, E].
        shown: scores after the stage that `scores` names, [B, H, S, T].
        query: [B, H, S, D].
        key: [B, G, T, D].
        value: [B, G, T, E].
        mask: [.., S, T], added to scores, or false for forbidden keys.
        lengths: numbers of valid keys, [B].
        scale: factor of the products.
        softcap: limit of scores; 0 for none.
        is_causal: forbids keys after a query.
        offset: position of the first query.
        left_window: keys allowed before a query; negative for all.
        right_window: keys allowed after a query; negative for all.
        scores: `none`, `product`, `capped`, `masked` or `softmax`.
        without_keys: `nan` or `zero`, the result of a query without allowed keys.
    """
    (batch, heads, queries, _), (groups, keys) = query.shape, key.shape[1:3]
    sizes = batch, groups, heads // groups, queries, keys
    windows = is_causal, left_window, right_window
    hidden = _hidden_keys(sizes, offset, windows, lengths)
    addition = None
    if mask is not None:
        full = np.broadcast_to(mask, (batch, heads, queries, keys)).reshape(sizes)
        if mask.dtype == bool:
            hidden = [*hidden, ~full]
        else:
            addition = full

    def show(stage: str) -> None:
        if shown is not None and stage == scores:
            np.copyto(shown.reshape(sizes)[block], by_query)

    rows = (batch, groups, sizes[2] * queries, -1)
    query, result = query.reshape(rows), out.reshape(rows)
    for block in _blocks(sizes):
        products = np.matmul(query[block], key[block].swapaxes(-1, -2))
        by_query = products.reshape(*products.shape[:2], *sizes[2:])
        products *= scale
        show("product")
        if softcap > 0:
            np.multiply(np.tanh(products / softcap), softcap, products)
        show("capped")
        if addition is not None:
            by_query += addition[block]
        for places in hidden:
            np.copyto(by_query, -np.inf, where=places[block])
        show("masked")
        _softmax(products, zeros_without_keys=without_keys != "nan")
        show("softmax")
        np.matmul(products, value[block], result[block])


def _hidden_keys(sizes: Sizes, offset: int, windows: tuple[bool, int, int], lengths: Array | None) -> list[Array]:
    """Return where keys are hidden by causality, windows and lengths, each [B, G, R, S, T]."""
    (is_causal, left, right), (batch, _, _, queries, keys) = windows, sizes
    positions, places = np.arange(queries)[:, None] + offset, np.arange(keys)
    hidden = []
    if lengths is not None:
        # Keys after a batch item's length are padding; its queries are the last ones before.
        ends = lengths.reshape(batch, 1, 1, 1, 1)
        positions = np.arange(queries)[:, None] + ends - queries
        hidden.append(places >= ends)
    if is_causal and (lengths is not None or keys > offset + 1):
        hidden.append(places > positions)
    if left >= 0:
        hidden.append(places < positions - left)
    if right >= 0:
        hidden.append(places > positions + right)
    return [np.broadcast_to(each, sizes) for each in hidden]


def _blocks(sizes: Sizes) -> Iterator[tuple[slice, slice]]:
    """Yield batch items and heads of keys: several batch items if they are small, otherwise heads of one."""
    batch, groups, shared, queries, keys = sizes
    per_head = shared * queries * keys
    for items in blocks(batch, max(1, _BLOCK_SCORES // (per_head * groups))):
        for heads in blocks(groups, max(1, min(groups, _BLOCK_SCORES // per_head))):
            yield items, heads


def _softmax(scores: Array, *, zeros_without_keys: bool) -> None:
    """Compute the softmax along the last axis, in place."""
    edge = np.maximum.reduce(scores, axis=-1, keepdims=True)
    if zeros_without_keys:
        np.maximum(edge, _LOWEST, out=edge)
    scores -= edge
    np.exp(scores, scores)
    total = np.add.reduce(scores, axis=-1, keepdims=True)
    if zeros_without_keys:
        # The largest score of a row with keys contributes exp(0).
        np.maximum(total, 1, out=total)
    scores /= total


def rotary_embedding(out: Array, x: Array, cosine: Array, sine: Array, *, interleaved: bool) -> None:
    """Rotate pairs of features, halves of the front part or neighbors, and copy the rest."""
    pairs = cosine.shape[-1]
    cosine, sine = cosine[:, None], sine[:, None]
    first = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    left, right = x[..., first], x[..., second]
    np.subtract(left * cosine, right * sine, out[..., first])
    np.add(left * sine, right * cosine, out[..., second])
    np.copyto(out[..., 2 * pairs :], x[..., 2 * pairs :])


def linear_attention(
    out: Array,
    state: Array,
    *,
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    rate: Array | None = None,
    query_heads: int,
    key_value_heads: int,
    scale: float,
    update_rule: str,
) -> None:
    """Fade, correct and extend one matrix [D, E] per head at every step, and read it."""
    queries, results = (_by_head(array, query_heads) for array in (query, out))
    keys, values = (_by_head(array, key_value_heads) for array in (key, value))
    fading = None if decay is None else np.exp(_by_head(decay, key_value_heads))[..., None]
    rates = None if rate is None else rate.swapaxes(0, 1)[..., None]
    np.copyto(state, 0 if past_state is None else past_state)
    for step, (row, change) in enumerate(zip(keys, values, strict=True)):
        if fading is not None:
            np.multiply(state, fading[step], state)
        if rates is not None:
            change = (change - np.matmul(row[:, :, None], state)[:, :, 0]) * rates[step]
        np.add(state, row[..., None] * change[:, :, None], state)
        heads = queries[step].reshape(len(out), key_value_heads, query_heads // key_value_heads, -1)
        results[step] = np.matmul(heads, state).reshape(results[step].shape) * scale


def _by_head(packed: Array, heads: int) -> Array:
    """View [B, T, heads * depth] as [T, B, heads, depth]."""
    return packed.reshape(*packed.shape[:2], heads, -1).swapaxes(0, 1)


def causal_convolution(
    out: Array,
    state: Array,
    *,
    input: Array,  # noqa: A002  the role's name
    weight: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
    activation: str,
) -> None:
    """Convolve each channel over the elements so far; the state is the elements that the next call needs."""
    length = input.shape[2]
    past = np.zeros(state.shape, input.dtype) if past_state is None else past_state
    padded = np.concatenate([past, input], 2)
    np.copyto(out, 0 if bias is None else bias[:, None])
    for tap in range(weight.shape[2]):
        out += padded[:, :, tap : tap + length] * weight[:, :, tap]
    if activation == "swish":
        np.copyto(out, FUNCTIONS["swish"](out))
    np.copyto(state, padded[:, :, length:])


KERNELS: Mapping[str, NumpyKernel] = {
    "attention": NumpyKernel(attention),
    "causal_convolution": NumpyKernel(causal_convolution),
    "linear_attention": NumpyKernel(linear_attention),
    "rotary_embedding": NumpyKernel(rotary_embedding),
}
"""Rows of the kernel table."""
