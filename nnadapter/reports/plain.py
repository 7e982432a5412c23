"""Frozen facts as what JSON knows, and as JSON text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from nnadapter.process.cache import remembered


def plain(value: Any) -> Any:
    """Return dataclasses and mappings as dicts, tuples as lists, numbers as Python's; what is not finite is None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    # What drivers say of a segment may be numpy's numbers, and need not be finite.
    number = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(number, float) and not math.isfinite(number) else number


def to_lines(data: Mapping[str, Any]) -> str:
    """Return JSON text with a line per key, and a line per item of a list of objects.

    Large reports are smaller so and sooner written than with every key on its own line, and what differs between two
    files is a whole node or segment.
    """
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {_value(value)}" for key, value in data.items()) + "\n}"


def _value(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"    {json.dumps(item, allow_nan=False)}" for item in value) + "\n  ]"
    return json.dumps(value, allow_nan=False)


@remembered(256)
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(kind))
