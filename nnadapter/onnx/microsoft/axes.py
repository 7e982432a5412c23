"""Axes in bodies: channels moved to the last axis and back, parts along one, and how long it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.onnx.body import BodyBuilder


def channels_first(body: BodyBuilder, x: str, rank: int) -> str:
    """[N, ..., C] as [N, C, ...].

    Raises:
        Refusal: there is no axis beside these two.
    """
    if rank < 3:
        raise body.invalid(f"has an input of rank {rank}; expected [N, ..., C] of rank 3 or more")
    return body.add("Transpose", x, perm=(0, rank - 1, *range(1, rank - 1)))


def channels_last(body: BodyBuilder, x: str, rank: int) -> str:
    """[N, C, ...] as [N, ..., C]."""
    return body.add("Transpose", x, perm=(0, *range(2, rank), 1))


def sliced(body: BodyBuilder, x: str, axis: int, begin: int, end: int | str) -> str:
    """A part of a value along one axis; the end may be the name of a vector of one element."""
    stop = end if isinstance(end, str) else body.constant((end,))
    return body.add("Slice", x, body.constant((begin,)), stop, body.constant((axis,)))


def parts_along(body: BodyBuilder, x: str, axis: int, sizes: Sequence[int]) -> tuple[str, ...]:
    """A value cut into parts of these sizes."""
    return body.add_several("Split", (x, body.constant(tuple(sizes))), len(sizes), axis=axis)


def length_of(body: BodyBuilder, x: str, axis: int) -> str:
    """One dimension of a value, as a vector of one element."""
    return body.add("Gather", body.add("Shape", x), body.constant((axis,)))


def steps_along(body: BodyBuilder, x: str, axis: int, size: int | None) -> str:
    """The numbers from 0 to a dimension of a value: a constant where that is a plain number."""
    if type(size) is int:
        return body.constant(np.arange(size))
    scalar = body.add("Squeeze", length_of(body, x, axis)) if size is None else body.constant(size)
    return body.add("Range", body.constant(0), scalar, body.constant(1))
