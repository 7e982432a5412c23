"""Building large things without the garbage collector looking at them again and again.

What a model of many nodes is made into are millions of small objects that all stay. Python's collector visits them
each time their number has grown by a quarter, which takes up to a third of the time.

The first time in a process, modules and what they define are made as well, and the collector would look at all of it as
soon as it goes on: it is told that this is old, as it is once a collector has seen it. That is done once, as garbage in
it is found only when the collector next looks at everything.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")
_first = iter([True])
"""For whoever comes first in this process."""


def paused_collection(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Keep the collector of cycles from running while the function does; it goes on as before when that ends.

    Where several threads pause it, it goes on when the one that stopped it ends: that takes time, and no lock.
    """

    @wraps(function)
    def paused(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        enabled = gc.isenabled()
        try:
            gc.disable()
            return function(*args, **kwargs)
        finally:
            # An interrupt comes where a function of Python starts, a loop turns, or behind a call: not before this one.
            if enabled:
                gc.enable()
                if next(_first, False) and not gc.get_freeze_count():  # else somebody keeps things out of its sight
                    try:
                        gc.freeze()
                    finally:
                        gc.unfreeze()

    return paused
