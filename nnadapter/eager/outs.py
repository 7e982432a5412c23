"""Numpy's arrays that results are written to: `out` of ufuncs, and `array += tensor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]


def written(output: Any, outs: Sequence[Any], casting: Casting) -> Any:
    """Write results into the arrays given for them, and return those.

    Args:
        output: one result, or a tuple of them.
        outs: an array for each, or None where the result itself is wanted.
        casting: numpy's rule.

    Raises:
        TypeError: an array's data type cannot hold its result under that rule.
        ValueError: its dimensions cannot.
    """
    results = output if isinstance(output, tuple) else (output,)
    written_results = tuple(_copied(result, out, casting) for result, out in zip(results, outs, strict=True))
    return written_results if isinstance(output, tuple) else written_results[0]


def _copied(result: Any, out: Any, casting: Casting) -> Any:
    if out is None:
        return result
    np.copyto(out, np.asarray(result), casting=casting)
    return out


def is_among(result: object, arguments: Sequence[object]) -> bool:
    """Whether a result is one of a function's own arguments, or in a tuple of them."""
    return any(
        result is argument or (isinstance(argument, tuple) and any(result is element for element in argument))
        for argument in arguments
    )
