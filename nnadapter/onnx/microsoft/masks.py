"""Masks of keys as com.microsoft has them, in the form in which they are added to scores."""

from __future__ import annotations

from collections.abc import Callable

from nnadapter.onnx.body import BodyBuilder
from nnadapter.onnx.microsoft.axes import length_of, parts_along, sliced
from nnadapter.onnx.microsoft.heads import filtered, lowest

_NUMBERS = "float32"
"""Of masks and of places: few devices compare integers of more than 16 bits."""


def score_mask(body: BodyBuilder, position: int, bias: int, places: Callable[[], str], rows: int | None) -> str:
    """Return what is added to scores, `[B or 1, N or 1, S or 1, T]`; empty if nothing is.

    1. A mask of rank 1 says how many keys each text has, and may say behind that with which key each begins, or where
       texts lie that are packed, which ONNX Runtime does not look at here; of rank 2 or 3 it is 0 where a key is
       forbidden. One of a single column says nothing.
    2. `mask_filter_value` is added for those: a query with no key that is allowed sees all of them as before.
    3. The bias is added besides.

    Args:
        body: what is written.
        position: of the mask among the inputs.
        bias: of what is added to scores.
        places: adds the numbers from 0 to that of all keys.
        rows: the number of texts, None where it is open.

    Raises:
        Refusal: a mask of another form.
    """
    mask = _key_mask(body, position, places, rows) if body.input(position) else ""
    added = body.input(bias)
    return body.add("Add", mask, added) if mask and added else mask or added


def _key_mask(body: BodyBuilder, position: int, places: Callable[[], str], rows: int | None) -> str:
    mask, rank, dtype = body.input(position), body.inputs.rank(position), body.inputs.dtype()
    if rank == 2 and body.inputs.width(position, 1) == 1:
        return ""
    if rank == 1:
        allowed = _between(body, position, places(), rows)
    elif rank in (2, 3):
        shown = body.add("Less", body.constant(0.0, _NUMBERS), body.cast(mask, _NUMBERS))
        allowed = body.unsqueeze(shown, 1, 2) if rank == 2 else body.unsqueeze(shown, 1)
    else:
        raise body.invalid(f"has a mask (input {position}) of rank {rank}; expected 1 to 3")
    filter_value = max(body.node.number("mask_filter_value", -10000.0), lowest(dtype))
    return filtered(body, allowed, filter_value, dtype)


def _between(body: BodyBuilder, position: int, places: str, rows: int | None) -> str:
    """Which keys lie before the ends that a mask of rank 1 has, and not before its starts if it has such."""
    numbers, count = body.cast(body.input(position), _NUMBERS), body.inputs.size(position, 0)
    places = body.cast(places, _NUMBERS)
    texts, stated = ((body.inputs.value(input_index).shape or (None,))[0] for input_index in (0, position))
    if stated is not None and stated == texts:
        return body.add("Less", places, body.reshape(numbers, -1, 1, 1, 1))
    if rows is None or count is None:
        ends, starts = _in_the_run(body, numbers)
    elif count == 2 * rows:
        ends, starts = parts_along(body, numbers, 0, (rows, rows))
    elif count == 3 * rows + 2:
        return body.add("Less", places, body.reshape(sliced(body, numbers, 0, 0, rows), -1, 1, 1, 1))
    else:
        raise body.invalid(
            f"has a mask (input {position}) of {count} numbers for {rows} texts; expected {rows}, {2 * rows} or "
            f"{3 * rows + 2}"
        )
    ends, starts = (body.reshape(bound, -1, 1, 1, 1) for bound in (ends, starts))
    return body.add("And", body.add("Less", places, ends), body.add("LessOrEqual", starts, places))


def _in_the_run(body: BodyBuilder, numbers: str) -> tuple[str, str]:
    """Ends and starts of so many texts as the run has: without starts each is 0."""
    texts, count = length_of(body, body.input(0), 0), length_of(body, numbers, 0)
    has_starts = body.cast(body.add("Equal", count, body.add("Add", texts, texts)), _NUMBERS)
    last = body.add("Slice", numbers, body.add("Sub", count, texts), count)
    return sliced(body, numbers, 0, 0, texts), body.add("Mul", last, has_starts)
