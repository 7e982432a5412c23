"""The tables of functions that `tests.ir_interpreter` takes from files of their own, as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.ir_image_functions import IMAGE_FUNCTIONS
from tests.ir_position_functions import POSITION_FUNCTIONS
from tests.ir_sampling_functions import SAMPLING_FUNCTIONS
from tests.ir_window_functions import WINDOW_FUNCTIONS

FURTHER_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **IMAGE_FUNCTIONS,
    **POSITION_FUNCTIONS,
    **SAMPLING_FUNCTIONS,
    **WINDOW_FUNCTIONS,
}
"""Rows for the interpreter's table."""
