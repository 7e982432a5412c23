"""Outputs of a run as their caller gets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nnadapter.drivers.copies import Copies, Transfer
from nnadapter.running.residence import delivered

Kept = Mapping[str, str]
"""Outputs that stay, and the devices where they shall lie; empty for where they do."""


def output_of(value: Any, name: str, feeds: Mapping[str, Any], kept: Kept | None, made: list[Transfer]) -> Any:
    """An output as its caller wants it: an array of its own, or kept where it lies or shall lie."""
    fed = name in feeds
    if kept is not None and name in kept:
        is_mine = fed and isinstance(value, np.ndarray)
        return delivered(value.copy() if is_mine else value, name, kept[name], made)
    if type(value) is Copies:
        return own_value(value.host(name, made), fed)
    return own_value(value, fed)


def own_value(value: Any, fed: bool) -> Any:
    """An output that nobody else holds: constants and inputs that are outputs as well are copied."""
    if isinstance(value, np.ndarray) and (fed or not value.flags.writeable):
        return value.copy()
    return value
