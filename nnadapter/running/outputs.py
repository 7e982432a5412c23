"""Outputs of a run as their caller gets them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.drivers.copies import Copies, Transfer
from nnadapter.running.residence import delivered

Kept = Mapping[str, str]
"""Inputs and outputs that stay, and the devices where they shall lie; empty for where they do."""
NOTHING_KEPT: Kept = MappingProxyType({})


def output_of(value: Any, name: str, feeds: Mapping[str, Any], kept: Kept | None, made: list[Transfer]) -> Any:
    """An output as its caller wants it: an array of its own, or kept where it lies or shall lie."""
    fed = name in feeds
    if kept is not None and name in kept and isinstance(value, (np.ndarray, Copies)):
        copies = value if isinstance(value, Copies) else Copies(value)
        is_callers = isinstance(feeds.get(name), np.ndarray)
        copies.is_shared |= fed
        return delivered(copies.without_array() if is_callers else copies, name, kept[name], made)
    if type(value) is Copies:
        return own_value(value.host(name, made), fed)
    return own_value(value, fed)


def own_value(value: Any, fed: bool) -> Any:
    """An output that nobody else holds: constants and inputs that are outputs as well are copied."""
    if isinstance(value, np.ndarray) and (fed or not value.flags.writeable):
        return value.copy()
    return value
