"""Rotary embeddings: pairs of features are turned by angles that positions decide."""

from __future__ import annotations

import numpy as np

from nnadapter.onnx.body import BodyBuilder
from nnadapter.onnx.function_ops import function_op
from nnadapter.onnx.microsoft.axes import parts_along, sliced, steps_along
from nnadapter.onnx.microsoft.heads import joined, separated

_ROTARY_EMBEDDING_SINCE = 23
_ROTARY = {"interleaved": int, "is_packed_batching": int, "num_heads": int, "rotary_embedding_dim": int, "scale": float}


def turned(body: BodyBuilder, x: str, tables: tuple[str, str], pairs: int, head_size: int, *, interleaved: bool) -> str:
    """Turn `[B, N, S, H]` by cosines and sines, `[B or 1, S, pairs]`; features behind the pairs stay."""
    part = 2 * pairs
    if body.opset >= _ROTARY_EMBEDDING_SINCE:
        return body.add(
            "RotaryEmbedding",
            x,
            *tables,
            interleaved=int(interleaved),
            rotary_embedding_dim=0 if part == head_size else part,
        )
    return turned_plainly(body, x, tables, pairs, head_size, interleaved=interleaved)


def turned_plainly(
    body: BodyBuilder, x: str, tables: tuple[str, str], pairs: int, head_size: int, *, interleaved: bool
) -> str:
    """The same without ONNX's own RotaryEmbedding."""
    part, rest = 2 * pairs, ""
    if part != head_size:
        x, rest = parts_along(body, x, -1, (part, head_size - part))
    cosine, sine = (body.unsqueeze(table, 1) for table in tables)
    result = (_alternating if interleaved else _in_halves)(body, x, cosine, sine, pairs)
    return body.add("Concat", result, rest, axis=-1) if rest else result


def _alternating(body: BodyBuilder, x: str, cosine: str, sine: str, pairs: int) -> str:
    """Features lie by pairs."""
    apart = body.reshape(x, 0, 0, 0, pairs, 2)
    first, second = (body.add("Gather", apart, body.constant(index), axis=4) for index in (0, 1))
    real = body.add("Sub", body.add("Mul", first, cosine), body.add("Mul", second, sine))
    imaginary = body.add("Add", body.add("Mul", first, sine), body.add("Mul", second, cosine))
    both = body.add("Concat", body.unsqueeze(real, 4), body.unsqueeze(imaginary, 4), axis=4)
    return body.reshape(both, 0, 0, 0, 2 * pairs)


def _in_halves(body: BodyBuilder, x: str, cosine: str, sine: str, pairs: int) -> str:
    """First features lie before all second ones. So most models say it, by tables as wide as what is turned.

    Engines know that form. OpenVINO knows one with narrow tables too, which it does not write as it computes it.
    """
    first, second = sliced(body, x, 3, 0, pairs), sliced(body, x, 3, pairs, 2 * pairs)
    other = body.add("Concat", body.add("Neg", second), first, axis=-1)
    cosines, sines = (body.add("Concat", table, table, axis=-1) for table in (cosine, sine))
    return body.add("Add", body.add("Mul", x, cosines), body.add("Mul", other, sines))


@function_op(
    "RotaryEmbedding",
    "input position_ids cos_cache sin_cache",
    "output",
    _ROTARY,
)
def rotary_embedding_body(body: BodyBuilder) -> tuple[str, ...]:
    """Positions are stated one by one, or the first of them alone. Source: com.microsoft RotaryEmbedding-1.

    Refused: packed batches, a scale.
    """
    pairs, width = _rotated_widths(body)
    packed = body.inputs.rank(0) == 3
    positions = body.input(1)
    if body.inputs.rank(1) == 1:
        if body.inputs.width(1, 0) not in (1, None):
            raise body.invalid(f"has {body.inputs.width(1, 0)} positions in a vector; expected the first alone")
        axis = 1 if packed else 2
        steps = steps_along(body, body.input(0), axis, body.inputs.size(0, axis))
        positions = body.unsqueeze(body.add("Add", steps, positions), 0)
    tables = body.add("Gather", body.input(2), positions), body.add("Gather", body.input(3), positions)
    return (_turned_heads(body, tables, pairs, width),)


@function_op(
    "MRotaryEmbedding",
    "input position_ids cos_cache sin_cache",
    "output",
    {**_ROTARY, "mrope_layout": int, "mrope_section": list[int]},
    required=("mrope_section",),
)
def multimodal_rotary_embedding_body(body: BodyBuilder) -> tuple[str, ...]:
    """Every pair of features goes by one of three positions: in time, in height or in width.

    Source: com.microsoft MRotaryEmbedding-1. Refused: packed batches, a scale.
    """
    pairs, width = _rotated_widths(body)
    streams = np.array(_streams(body, pairs))
    tables = []
    for position in (2, 3):
        three = body.add("Gather", body.input(position), body.input(1))  # `[3, B, S, pairs]`
        table, *others = (body.add("Gather", three, body.constant(stream), axis=0) for stream in range(3))
        for stream, other in enumerate(others, 1):
            table = body.add("Where", body.constant(streams == stream, "bool"), other, table)
        tables.append(table)
    return (_turned_heads(body, (tables[0], tables[1]), pairs, width),)


def _streams(body: BodyBuilder, pairs: int) -> list[int]:
    """Which of the three positions every pair of features goes by: one after the other, or in turns."""
    sections, layout = body.node.integers("mrope_section") or (), body.node.integer("mrope_layout", 0)
    if len(sections) != 3 or sum(sections) != pairs or min(sections) < 0 or layout not in (0, 1):
        problem = f"{list(sections)}, and 'mrope_layout' {layout}"
        raise body.invalid(f"has attribute 'mrope_section' {problem}; expected three of {pairs} pairs, and 0 or 1")
    if not layout:
        return [stream for stream, size in enumerate(sections) for _ in range(size)]
    return [pair % 3 if pair < 3 * sections[pair % 3] else 0 for pair in range(pairs)]


def _rotated_widths(body: BodyBuilder) -> tuple[int, int]:
    """Pairs of features that tables turn, and the width of what is turned."""
    if body.node.integer("is_packed_batching", 0):
        raise body.unsupported("is_packed_batching", "is 1; expected 0")
    if body.node.number("scale", 1.0) != 1:
        raise body.unsupported("scale", f"is {body.node.number('scale')}; expected 1")
    pairs, width = body.inputs.width(2), body.inputs.width(0)
    if pairs is None or width is None:
        raise body.invalid("has heads or tables of unknown width")
    return pairs, width


def _turned_heads(body: BodyBuilder, tables: tuple[str, str], pairs: int, width: int) -> str:
    """Turn the first input by what was looked up for every token."""
    packed, (heads, head_size) = body.inputs.rank(0) == 3, _heads(body, width, pairs)
    x = separated(body, body.input(0), heads, head_size=head_size) if packed else body.input(0)
    made = turned(body, x, tables, pairs, head_size, interleaved=body.node.integer("interleaved", 0) != 0)
    return joined(body, made, width) if packed else made


def _heads(body: BodyBuilder, width: int, pairs: int) -> tuple[int, int]:
    """The number of heads, and the features of each, of which tables of so many pairs turn all or a stated part."""
    packed, part = body.inputs.rank(0) == 3, body.node.integer("rotary_embedding_dim", 0)
    heads = body.node.integer("num_heads", 0)
    if part and heads < 1:
        raise body.unsupported("num_heads", f"is {heads} beside 'rotary_embedding_dim' {part}; expected 1 or more")
    heads = heads or (width // max(2 * pairs, 1) if packed else 1)
    if packed and (heads < 1 or width % heads):
        raise body.invalid(f"has {width} features for {heads} heads")
    size = width // heads if packed else width
    if pairs < 1 or 2 * pairs != (part or size) or part > size:
        stated = f", and 'rotary_embedding_dim' {part}" if part else ""
        raise body.invalid(f"has tables of {pairs} columns for heads of {size} features{stated}")
    return heads, size
