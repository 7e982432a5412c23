"""What calls of a function were given and gave, seen by the interpreter: nothing is put in the function's place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def watched(function: Any, noted: Callable[[dict[str, Any], Any], Any]) -> Iterator[list[Any]]:
    """Note every call in this thread when it ends: by its variables, and its result, None where it raised."""
    found: list[Any] = []

    def look(frame: Any, event: str, result: Any) -> None:
        if event == "return" and frame.f_code is function.__code__:
            found.append(noted(frame.f_locals, result))
        if before is not None:
            before(frame, event, result)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(before)
