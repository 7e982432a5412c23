"""The tables of functions that the interpreter takes from files of their own, as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nnadapter.ir.definition.image import IMAGE_FUNCTIONS
from nnadapter.ir.definition.position import POSITION_FUNCTIONS
from nnadapter.ir.definition.sampling import SAMPLING_FUNCTIONS
from nnadapter.ir.definition.window import WINDOW_FUNCTIONS

FURTHER_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **IMAGE_FUNCTIONS,
    **POSITION_FUNCTIONS,
    **SAMPLING_FUNCTIONS,
    **WINDOW_FUNCTIONS,
}
"""Rows for the interpreter's table."""
