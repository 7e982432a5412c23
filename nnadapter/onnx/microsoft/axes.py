"""Axes in bodies: channels moved to the last axis and back."""

from __future__ import annotations

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
