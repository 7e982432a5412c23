"""Attention: products, masks, softmax and mixture for a few heads at a time, so that scores stay in cache.

Sizes: batch B, query heads H = G * R, heads of keys and values G, queries S, keys T, depth D, depth of values E.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from nnadapter.drivers.fake_npu.graph import Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels.blocks import blocks
from nnadapter.drivers.fake_npu.kernels.kernel import KernelArguments, NumpyKernel, Outline, Run, in_sequence
from nnadapter.ir.operand import Array

_BLOCK_SCORES = 1 << 18
"""Scores that are worked on together: 1 MiB of float32."""
_LOWEST = float(np.finfo(np.float32).min)

Block = tuple[slice, slice]
"""Some batch items, and some heads of keys."""


def _sizes(dimensions: Sequence[Sequence[int]]) -> tuple[int, int, int, int, int]:
    """B, G, R, S and T, from the dimensions of query and key."""
    batch, heads, queries, _ = dimensions[0]
    _, groups, keys, _ = dimensions[1]
    return batch, groups, heads // groups, queries, keys


def _blocks(sizes: tuple[int, int, int, int, int]) -> Iterator[Block]:
    """Whole batch items where they are small, otherwise heads of one."""
    batch, groups, shared, queries, keys = sizes
    per_head = shared * queries * keys
    heads = max(1, min(groups, _BLOCK_SCORES // per_head))
    items = max(1, min(batch, _BLOCK_SCORES // (per_head * groups)))
    for item in blocks(batch, items):
        for head in blocks(groups, heads):
            yield item, head


def _scratch(outline: Outline) -> tuple[TensorType, ...]:
    """Scores of a block, one number for each of its rows, and a mask's or the lengths' forbidden places."""
    sizes = _sizes([type_.dimensions for type_ in outline.inputs])
    batch, _, shared, queries, keys = sizes
    rows = max((item.stop - item.start) * (head.stop - head.start) for item, head in _blocks(sizes)) * shared * queries
    types = dict(zip(outline.parameters["roles"], outline.inputs, strict=True))
    forbidden = []
    if "mask" in types and types["mask"].dtype == "bool":
        forbidden.append(TensorType("bool", types["mask"].dimensions))
    if "lengths" in types:
        forbidden += [TensorType("bool", (batch, 1, 1, queries, keys)), TensorType("int64", (batch, 1, 1, queries, 1))]
    return TensorType("float32", (rows, keys)), TensorType("float32", (rows, 1)), *forbidden


def _bind_attention(call: KernelArguments) -> Run:
    inputs = dict(zip(call.parameters["roles"], call.inputs, strict=True))
    query, key = inputs["query"], inputs["key"]
    sizes = _sizes((query.shape, key.shape))
    before, additions, forbidden = _masks(inputs, call, sizes)
    steps = [*before]
    for block in _blocks(sizes):
        steps.append(_bind_block(inputs, call, sizes, block, additions, forbidden))
    return in_sequence(steps)


def _masks(
    inputs: Mapping[str, Array], call: KernelArguments, sizes: tuple[int, int, int, int, int]
) -> tuple[list[Run], list[Array], list[Array]]:
    """What is done first in a run, what is added to scores, and where they are forbidden, as [B, G, R, S, T]."""
    before: list[Run] = []
    additions: list[Array] = []
    forbidden: list[Array] = []
    scratch = list(call.scratch[2:])
    mask = inputs.get("mask")
    if mask is not None and mask.dtype == bool:
        inverse = scratch.pop(0)
        before.append(partial(np.logical_not, mask, inverse))
        forbidden.append(_spread(inverse, sizes))
    elif mask is not None:
        additions.append(_spread(mask, sizes))
    if "lengths" in inputs:
        places, positions = scratch
        before.append(partial(_forbid_behind, inputs["lengths"], positions, places, call.parameters))
        forbidden.append(np.broadcast_to(places, sizes))
    else:
        positions = np.arange(sizes[3])[:, None] + call.parameters["offset"]
        places = _outside(positions, sizes[4], call.parameters)
        if places.any():
            forbidden.append(np.broadcast_to(places, sizes))
    return before, additions, forbidden


def _spread(mask: Array, sizes: tuple[int, int, int, int, int]) -> Array:
    """A mask of rank 4 or less as [B, G, R, S, T]."""
    batch, groups, shared, queries, keys = sizes
    full = np.broadcast_to(mask, (batch, groups * shared, queries, keys))
    # Splitting one axis of a broadcast array never copies.
    return full.reshape(sizes)


def _forbid_behind(lengths: Array, positions: Array, places: Array, parameters: Parameters) -> None:
    """Keys from a batch item's length on are padding; its queries are the last ones before."""
    batch, _, _, queries, keys = places.shape
    ends = lengths.reshape(batch, 1, 1, 1, 1)
    np.add(np.arange(queries)[:, None], ends - queries, positions)
    np.copyto(places, _outside(positions, keys, parameters))
    np.logical_or(places, np.arange(keys) >= ends, places)


def _outside(positions: Array, keys: int, parameters: Parameters) -> Array:
    """Whether keys are hidden from queries at `positions` [..., S, 1] by causality and windows."""
    hidden = np.zeros((*positions.shape[:-1], keys), bool)
    if parameters["is_causal"]:
        hidden |= np.arange(keys) > positions
    if parameters["left_window"] >= 0:
        hidden |= np.arange(keys) < positions - parameters["left_window"]
    if parameters["right_window"] >= 0:
        hidden |= np.arange(keys) > positions + parameters["right_window"]
    return hidden


def _bind_block(
    inputs: Mapping[str, Array],
    call: KernelArguments,
    sizes: tuple[int, int, int, int, int],
    block: Block,
    additions: Sequence[Array],
    forbidden: Sequence[Array],
) -> Run:
    batch, groups, shared, queries, keys = sizes
    rows = (batch, groups, shared * queries)
    query, out = (array.reshape(*rows, -1)[block] for array in (inputs["query"], call.outputs[0]))
    key, value = inputs["key"][block].swapaxes(-1, -2), inputs["value"][block]
    edge = call.scratch[1][: query.shape[0] * query.shape[1] * query.shape[2]].reshape(*query.shape[:3], 1)
    scores = call.scratch[0][: edge.size].reshape(*query.shape[:3], keys)
    apart = scores.reshape(*query.shape[:2], shared, queries, keys)
    scale, softcap, wanted = (call.parameters[name] for name in ("scale", "softcap", "scores"))
    softmax = _softmax if call.parameters["without_keys"] == "nan" else _softmax_or_zeros
    shown = call.outputs[1].reshape(sizes)[block] if wanted != "none" else None

    def show(stage: str) -> None:
        if shown is not None and stage == wanted:
            np.copyto(shown, apart)

    def run() -> None:
        np.matmul(query, key, scores)
        np.multiply(scores, scale, scores)
        show("product")
        if softcap > 0:
            np.divide(scores, softcap, scores)
            np.tanh(scores, scores)
            np.multiply(scores, softcap, scores)
        show("capped")
        for addition in additions:
            np.add(apart, addition[block], apart)
        for places in forbidden:
            np.copyto(apart, -np.inf, where=places[block])
        show("masked")
        softmax(scores, edge)
        show("softmax")
        np.matmul(scores, value, out)

    return run


def _softmax(scores: Array, edge: Array) -> None:
    """Along the last axis, in place."""
    np.maximum.reduce(scores, axis=-1, keepdims=True, out=edge)
    np.subtract(scores, edge, scores)
    np.exp(scores, scores)
    np.add.reduce(scores, axis=-1, keepdims=True, out=edge)
    np.divide(scores, edge, scores)


def _softmax_or_zeros(scores: Array, edge: Array) -> None:
    """Along the last axis, in place; a row in which all is forbidden becomes zeros."""
    np.maximum.reduce(scores, axis=-1, keepdims=True, out=edge)
    np.maximum(edge, _LOWEST, out=edge)
    np.subtract(scores, edge, scores)
    np.exp(scores, scores)
    np.add.reduce(scores, axis=-1, keepdims=True, out=edge)
    # The largest score of a row that has one contributes exp(0).
    np.maximum(edge, 1, out=edge)
    np.divide(scores, edge, scores)


def _bind_rotary(call: KernelArguments) -> Run:
    """Turns pairs of features: halves of the front part, or neighbors; the rest stays as it is."""
    (x, cosine, sine), (out,), (left, right) = call.inputs, call.outputs, call.scratch
    pairs = cosine.shape[-1]
    cosine, sine = cosine[:, None], sine[:, None]
    interleaved = call.parameters["interleaved"]
    first = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)

    def run() -> None:
        np.multiply(x[..., first], cosine, left)
        np.multiply(x[..., second], sine, right)
        np.subtract(left, right, out[..., first])
        np.multiply(x[..., first], sine, left)
        np.multiply(x[..., second], cosine, right)
        np.add(left, right, out[..., second])
        np.copyto(out[..., 2 * pairs :], x[..., 2 * pairs :])

    return run


def _rotary_scratch(outline: Outline) -> tuple[TensorType, ...]:
    half = TensorType(outline.inputs[0].dtype, (*outline.inputs[0].dimensions[:3], outline.inputs[1].dimensions[2]))
    return half, half


KERNELS: Mapping[str, NumpyKernel] = {
    "attention": NumpyKernel(bind=_bind_attention, scratch=_scratch),
    "rotary_embedding": NumpyKernel(bind=_bind_rotary, scratch=_rotary_scratch),
}
"""Rows of the kernel table."""
