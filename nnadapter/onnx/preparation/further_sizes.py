"""Shapes beside the usual ones at which a model that leaves sizes open is likely to be run, for plans made beforehand.

1. Of a model that keeps a cache: nothing cached, one token, many, each with one new token and with several, for one row
   and for some; and as much of all as a model may take. Where the cache may have room for new tokens, as one of the
   largest length has that inputs and outputs share: nothing in it, and half of it.
2. Of others: every open dimension 1, or more than that, in all combinations where they are few; the same of half of
   them, since a usual size may be that at which something ends, as a table of positions.
3. Half of all open dimensions, a quarter and so on; and twice of them and so on, as long as inputs are not huge.

Of these, those with which the model infers without contradiction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

from nnadapter.onnx.inference import InitialFacts
from nnadapter.onnx.joining import takes_room
from nnadapter.onnx.preparation.caches import CACHED, NEW, Dimension, Roles, cache_roles, dimension_at, sizes_of
from nnadapter.onnx.preparation.prepare import Prepared, Shapes
from partition.graph import Value

Sizes = Mapping[Dimension, int]

_ROWS, _CACHES, _NEW = (1, 2), (0, 1, CACHED), (1, 7)
_IN_ROOM = ((CACHED // 2, 1), (CACHED // 3, 1), (0, 7), (0, 9), (CACHED // 2, 7), (CACHED // 3, 7))
"""Tokens in a cache with room, and new ones: two of each kind, so that a plan for the first is seen to serve others."""
_PROMPT = 64
"""New tokens of a usual prompt: bounds of a device are some times the largest sizes, and end far below `_LONG`."""
_MANY_ROWS, _LONG = 8, (256, 512, 1024)
"""Tokens that are cached and as many that are new, the fewest first: positions of a model end somewhere, and a plan
that is made behind their end serves nobody, while those before it may be widened."""
_MOST_COMBINED = 3
"""Dimensions that are combined with each other."""
_LARGEST, _MOST_ELEMENTS = 1024, 1 << 24
"""Of a dimension, and of all inputs together, where sizes are doubled."""


def further_shapes(prepared: Prepared, usual: Shapes) -> Iterator[Shapes]:
    """Yield shapes of all inputs, each once, but for the usual ones."""
    inputs = {name: prepared.graph.value(name) for name in usual}
    remaining_nodes = [index for index in range(len(prepared.graph.nodes)) if index not in prepared.evaluated]
    visited_shapes = [usual]
    for sizes in _further_sizes(prepared, list(inputs.values()), _sizes_at(inputs, usual)):
        shapes = {name: _shape(value, usual[name], sizes) for name, value in inputs.items()}
        if shapes not in visited_shapes:
            visited_shapes.append(shapes)
            if prepared.inference.agrees(InitialFacts(shapes, prepared.constants, remaining_nodes)):
                yield shapes


def _further_sizes(prepared: Prepared, inputs: Sequence[Value], usual: Sizes) -> Iterator[Sizes]:
    roles = cache_roles(prepared.graph, prepared.nodes, inputs)
    if roles.cached:
        yield from _of_cache(roles)
        if takes_room(prepared.nodes):
            yield from _of_cache_with_room(roles)
        return
    if not usual:
        return
    yield from _small_and_large(usual)
    yield from _small_and_large({dimension: max(1, size // 2) for dimension, size in usual.items()})
    halved = usual
    while max(halved.values()) > 1:
        halved = {dimension: max(1, size // 2) for dimension, size in halved.items()}
        yield halved
    doubled = usual
    while True:
        doubled = {dimension: 2 * size for dimension, size in doubled.items()}
        if max(doubled.values()) > _LARGEST or _elements(inputs, doubled) > _MOST_ELEMENTS:
            return
        yield doubled


def _of_cache(roles: Roles) -> Iterator[Sizes]:
    for rows, cached, appended in product(_ROWS, _CACHES, _NEW):
        yield sizes_of(roles, rows, cached, appended)
    yield from (sizes_of(roles, rows, 0, _PROMPT) for rows in _ROWS)
    if roles.encoded:
        yield from (sizes_of(roles, rows, CACHED, NEW, 1) for rows in _ROWS)
    for length in _LONG:
        yield sizes_of(roles, _MANY_ROWS, length - 1, length)


def _of_cache_with_room(roles: Roles) -> Iterator[Sizes]:
    for rows, (past, appended) in product(_ROWS, _IN_ROOM):
        yield {**sizes_of(roles, rows, CACHED + 1, appended), **dict.fromkeys(roles.whole, past + appended)}


def _small_and_large(usual: Sizes) -> Iterator[Sizes]:
    choices = {dimension: (max(size, 2), 1) for dimension, size in usual.items()}
    if len(usual) <= _MOST_COMBINED:
        yield from (dict(zip(usual, sizes, strict=True)) for sizes in product(*choices.values()))
        return
    larger = {dimension: size for dimension, (size, _) in choices.items()}
    yield larger
    yield from ({**larger, dimension: 1} for dimension in usual)


def _sizes_at(inputs: Mapping[str, Value], shapes: Shapes) -> dict[Dimension, int]:
    return {
        dimension_at(value, axis): shapes[name][axis]
        for name, value in inputs.items()
        for axis, size in enumerate(value.shape or ())
        if not isinstance(size, int)
    }


def _shape(value: Value, usual: Sequence[int], sizes: Sizes) -> tuple[int, ...]:
    return tuple(
        size if isinstance(dimension, int) else sizes.get(dimension_at(value, axis), size)
        for axis, (size, dimension) in enumerate(zip(usual, value.shape or (), strict=True))
    )


def _elements(inputs: Sequence[Value], sizes: Sizes) -> int:
    return sum(
        prod(size if isinstance(size, int) else sizes[dimension_at(value, axis)] for axis, size in enumerate(shape))
        for value in inputs
        if (shape := value.shape) is not None
    )
