"""The tables of functions that the interpreter takes from files of their own, as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nnadapter.testing.interpreter.image import IMAGE_FUNCTIONS
from nnadapter.testing.interpreter.position import POSITION_FUNCTIONS
from nnadapter.testing.interpreter.sampling import SAMPLING_FUNCTIONS
from nnadapter.testing.interpreter.window import WINDOW_FUNCTIONS

FURTHER_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **IMAGE_FUNCTIONS,
    **POSITION_FUNCTIONS,
    **SAMPLING_FUNCTIONS,
    **WINDOW_FUNCTIONS,
}
"""Rows for the interpreter's table."""
