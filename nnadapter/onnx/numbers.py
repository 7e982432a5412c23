"""Inputs that are given as one number, which stands for all of their elements."""

from __future__ import annotations

import numpy as np

from nnadapter.errors import InvalidInputError
from nnadapter.ir.operand import Array
from partition.graph import Value

Number = bool | int | float


def filled(value: Value, number: Number, shape: tuple[int, ...] | None) -> Array:
    """Return an array of an input's data type whose elements are a number.

    Args:
        value: the input.
        number: what it holds; true and false are for `bool` alone.
        shape: of the array; None if it is not known.

    Raises:
        InvalidInputError: the input is no tensor of numbers, its sizes are not known, or it cannot hold the number.
    """
    if value.dtype is None or value.dtype == "string" or "(" in value.dtype:
        raise InvalidInputError(
            f"input {value.name!r} is {value.dtype or 'of no type'}, and takes no number", name=value.name
        )
    if shape is None:
        raise InvalidInputError(
            f"input {value.name!r} has open sizes, and takes no number; give an array", name=value.name
        )
    dtype = np.dtype(value.dtype)
    try:
        with np.errstate(all="ignore"):
            array = np.full(shape, number, dtype)
    except (OverflowError, ValueError, TypeError):
        fits = False
    else:
        is_truth = dtype.kind == "b"
        fits = isinstance(number, bool) == is_truth or (is_truth and number in (0, 1))
        fits = fits and (dtype.kind not in "iu" or not array.size or array.flat[0] == number)
    if not fits:
        raise InvalidInputError(f"input {value.name!r} takes {value.dtype}, got {number}", name=value.name)
    return array
