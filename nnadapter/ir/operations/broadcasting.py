"""Numpy's broadcasting, over shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from nnadapter.errors import InvalidModelError

Dimensions = tuple[int, ...]
"""Sizes of an operand's axes."""


def broadcast(shapes: Sequence[Dimensions]) -> Dimensions:
    """Return the shape that numpy's broadcasting gives.

    Raises:
        InvalidModelError: two of them do not fit together.
    """
    result = shapes[0]
    for shape in shapes[1:]:
        if len(shape) != len(result) or shape != result:  # sizes of different axes are not compared
            result = _broadcast_two(result, shape)
    return result


def _broadcast_two(first: Dimensions, second: Dimensions) -> Dimensions:
    reversed_result = []
    for left, right in zip_longest(reversed(first), reversed(second), fillvalue=1):
        if left != right and left != 1 and right != 1:
            raise InvalidModelError(
                f"dimensions {list(first)} and {list(second)} do not broadcast: {left} against {right}, "
                "expected equal sizes or a 1"
            )
        reversed_result.append(right if left == 1 else left)
    return tuple(reversed(reversed_result))


def check_broadcasts_to(name: str, dimensions: Dimensions, target: Dimensions) -> None:
    """Raise InvalidModelError unless `dimensions` broadcast to exactly `target`."""
    if broadcast((target, dimensions)) != target:
        raise InvalidModelError(
            f"{name} has dimensions {list(dimensions)}, expected ones that spread to {list(target)}"
        )
