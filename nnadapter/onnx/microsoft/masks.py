"""Masks of keys as com.microsoft has them, in the form in which they are added to scores."""

from __future__ import annotations

from collections.abc import Callable

from nnadapter.onnx.body import BodyBuilder
from nnadapter.onnx.microsoft.heads import filtered, lowest


def score_mask(body: BodyBuilder, position: int, bias: int, places: Callable[[], str], rows: int | None) -> str:
    """Return what is added to scores, `[B or 1, N or 1, S or 1, T]`; empty if nothing is.

    1. A mask of rank 1 says how many keys each text has; of rank 2 or 3 it is 0 where a key is forbidden. One of a
       single column says nothing.
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
    mask, rank, dtype = body.input(position), body.rank(position), body.dtype()
    if rank == 2 and body.width(position, 1) == 1:
        return ""
    if rank == 1:
        count = body.size(position, 0)
        if count is not None and rows is not None and count != rows:
            raise body.invalid(f"has a mask (input {position}) of {count} numbers for {rows} texts; expected as many")
        lengths = body.reshape(body.cast(mask, "int64"), -1, 1, 1, 1)
        allowed = body.add("Less", places(), lengths)
    elif rank in (2, 3):
        shown = body.add("Greater", mask, body.constant(0, body.dtype(position)))
        allowed = body.unsqueeze(shown, 1, 2) if rank == 2 else body.unsqueeze(shown, 1)
    else:
        raise body.invalid(f"has a mask (input {position}) of rank {rank}; expected 1 to 3")
    filter_value = max(body.node.number("mask_filter_value", -10000.0), lowest(dtype))
    return filtered(body, allowed, filter_value, dtype)
