"""What is computed from constants, computed once: a model is lowered again for every new shape, its weights are not.

Results are kept by the identity of the arrays they were made from, as long as those arrays live. So what depends on a
model's input shapes does not belong here: it would pile up. Only arrays that cannot be written to are looked up, since
their contents stay what they were.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from nnadapter.ir.operand import Array

Result = TypeVar("Result")

_results: dict[Hashable, Any] = {}


def derived(function: Callable[..., Result], *arrays: Array | None, **parameters: Hashable) -> Result:
    """Return `function(*arrays, **parameters)`, computed now if it was not before.

    Args:
        function: pure; it must not keep or change its arguments.
        arrays: constants; None stands for itself.
        parameters: what else the result depends on.
    """
    given = [array for array in arrays if array is not None]
    if any(array.flags.writeable for array in given):
        return function(*arrays, **parameters)
    key = (
        function,
        tuple(id(array) if array is not None else 0 for array in arrays),
        tuple(sorted(parameters.items())),
    )
    if key not in _results:
        result = function(*arrays, **parameters)
        _seal(result)
        _results[key] = result
        for array in given:
            weakref.finalize(array, _results.pop, key, None)
        return result
    kept: Result = _results[key]
    return kept


def _seal(result: Any) -> None:
    """Arrays that are handed out more than once are read-only."""
    for array in result if isinstance(result, tuple) else (result,):
        if array is not None:
            array.flags.writeable = False
