"""Attention over heads in the ops that an opset has, for bodies of several ops.

Names of sizes: batch B, heads N, queries S, keys T of which P are past, features of a head H.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from nnadapter.onnx.body import BodyBuilder
from nnadapter.onnx.microsoft.axes import length_of, sliced, steps_along

ATTENTION_SINCE = 23
"""The first opset with Attention."""
_EXCHANGED = [0, 2, 1, 3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """How scores of queries and keys come about."""

    scale: float | None
    """None: the inverse of the root of H."""
    head_size: int | None
    """H, None where it is open."""
    causal: bool = False
    softcap: float = 0.0
    mask: str = ""
    """What is added to scores, empty if nothing is; it broadcasts to `[B, N, S, T]`."""
    sink: str = ""
    """What takes part in the softmax beside the keys, `[1, N, 1, 1]` or a scalar; empty if nothing does."""
    last_sees_all: bool = False
    """The last query sees all keys, though it is causal; for opsets without Attention."""
    sizes: tuple[int | None, int | None, int | None] = (None, None, None)
    """S, T and P as far as they are known, for opsets without Attention."""


def separated(body: BodyBuilder, x: str, heads: int, bias: str = "", head_size: int = -1) -> str:
    """Take `[B, S, N * H]` apart into `[B, N, S, H]`, after the addition of a bias; H stays known if it is stated."""
    x = body.add("Add", x, bias) if bias else x
    return body.add("Transpose", body.reshape(x, 0, 0, heads, head_size), perm=_EXCHANGED)


def joined(body: BodyBuilder, x: str, width: int = -1) -> str:
    """Put `[B, N, S, H]` together as `[B, S, N * H]`, whose width stays known if it is stated."""
    return body.reshape(body.add("Transpose", x, perm=_EXCHANGED), 0, 0, width)


def attention(
    body: BodyBuilder,
    query: str,
    key: str,
    value: str,
    scores: Scores,
    past: tuple[str, str] | None = None,
    groups: tuple[int, int] = (1, 1),
) -> tuple[str, str, str]:
    """Add attention; returns what comes out, `[B, S, N * H]`, and all keys and values, `[B, N, T, H]`.

    Args:
        body: what is written.
        query: `[B, N, S, H]`.
        key: the new ones, alike; its heads may be fewer.
        value: alike.
        scores: how they come about.
        past: keys and values before the new ones.
        groups: heads of queries, and of keys and values.
    """
    if body.opset >= ATTENTION_SINCE and not scores.sink:
        inputs = (query, key, value, scores.mask, *(past or ()))
        made = body.add_several(
            "Attention",
            inputs,
            1 if past is None else 3,
            is_causal=int(scores.causal),
            scale=scores.scale,
            softcap=scores.softcap,
        )
        return joined(body, made[0]), *(made[1:] or (key, value))  # type: ignore[return-value]
    if past is not None:
        key, value = (body.add("Concat", old, new, axis=2) for old, new in zip(past, (key, value), strict=True))
    if scores.causal:
        own = _causal_mask(body, query, key, scores, "" if past is None else past[0])
        scores = replace(scores, mask=body.add("Add", scores.mask, own) if scores.mask else own)
    return _composed(body, query, key, value, scores, groups), key, value


def _composed(body: BodyBuilder, query: str, key: str, value: str, scores: Scores, groups: tuple[int, int]) -> str:
    dtype = body.inputs.dtype()
    wide_key, wide_value = (_repeated(body, tensor, *groups, scores.head_size or -1) for tensor in (key, value))
    turned = body.add("Transpose", wide_key, perm=[0, 1, 3, 2])
    logits = body.add("Mul", body.add("MatMul", query, turned), _score_scale(body, query, scores, dtype))
    if scores.softcap:
        cap = body.constant(scores.softcap, dtype)
        logits = body.add("Mul", body.add("Tanh", body.add("Div", logits, cap)), cap)
    if scores.mask:
        logits = body.add("Add", logits, scores.mask)
    weights = _with_sink(body, logits, query, scores.sink) if scores.sink else body.add("Softmax", logits, axis=-1)
    return joined(body, body.add("MatMul", weights, wide_value))


def _score_scale(body: BodyBuilder, query: str, scores: Scores, dtype: str) -> str:
    if scores.scale is not None or scores.head_size is not None:
        return body.constant(1 / sqrt(scores.head_size or 1) if scores.scale is None else scores.scale, dtype)
    return body.add("Reciprocal", body.add("Sqrt", body.cast(length_of(body, query, 3), dtype)))


def _repeated(body: BodyBuilder, x: str, heads: int, groups: int, head_size: int) -> str:
    """Every head of keys as often as queries share it."""
    if heads == groups:
        return x
    tiled = body.add("Tile", body.unsqueeze(x, 2), body.constant((1, 1, heads // groups, 1, 1)))
    return body.reshape(tiled, 0, heads, -1, head_size)


def _causal_mask(body: BodyBuilder, query: str, key: str, scores: Scores, past: str) -> str:
    """`[S, T]`: what forbids every query the keys behind its own."""
    count, total, before = scores.sizes
    queries, keys = (
        body.unsqueeze(steps_along(body, query, 2, count), 1),
        body.unsqueeze(steps_along(body, key, 2, total), 0),
    )
    places = queries
    if past:
        first = length_of(body, past, 2) if before is None else body.constant((before,))
        places = body.add("Add", queries, first)
    allowed = body.add("LessOrEqual", keys, places)
    if scores.last_sees_all:
        last = body.add("Sub", length_of(body, query, 2), body.constant((1,)))
        allowed = body.add("Or", allowed, body.add("Equal", queries, last))
    return filtered(body, allowed, lowest(body.inputs.dtype()), body.inputs.dtype())


def filtered(body: BodyBuilder, allowed: str, value: float, dtype: str) -> str:
    """What is added to scores: nothing where it is allowed, else a value."""
    return body.add("Where", allowed, body.constant(0.0, dtype), body.constant(value, dtype))


def lowest(dtype: str) -> float:
    """A number that no score outweighs."""
    return float(np.finfo(np.float16).min) if dtype == "float16" else float(np.finfo(np.float32).min)


def _with_sink(body: BodyBuilder, logits: str, query: str, sink: str) -> str:
    """Softmax with one more score behind the others, which takes its share and nothing else."""
    zeros = body.add("Mul", sliced(body, query, 3, 0, 1), body.constant(0.0, body.inputs.dtype()))  # `[B, N, S, 1]`
    scores = body.add("Concat", logits, body.add("Add", zeros, sink), axis=-1)
    return sliced(body, body.add("Softmax", scores, axis=-1), 3, 0, -1)
