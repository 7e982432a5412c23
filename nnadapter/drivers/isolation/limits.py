"""How long the process of a device may take for what it is asked, by the phase that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from nnadapter.errors import InvalidOptionError, close_names

PHASES: Mapping[str, float] = MappingProxyType(
    {
        "open": 120.0,
        "context": 120.0,
        "judge": 120.0,
        "admit": 300.0,
        "compile": 900.0,
        "deserialize": 300.0,
        "create": 120.0,
        "run": 300.0,
        "close": 30.0,
    }
)
"""Seconds, where nobody says otherwise: vendors' libraries are large, and their compilers slow."""
PHASE_OF: Mapping[str, str] = MappingProxyType(
    {
        "open": "open",
        "create_context": "context",
        "profile": "context",
        "supported": "judge",
        "take_model": "judge",
        "admit": "admit",
        "compile": "compile",
        "compile_whole": "compile",
        "bind": "compile",
        "serialize": "compile",
        "deserialize": "deserialize",
        "deserialize_view": "deserialize",
        "check_blob": "deserialize",
        "create_execution": "create",
        "memory": "run",
        "compute": "run",
        "compute_ahead": "run",
        "compute_at": "run",
        "compute_there": "run",
        "footprint": "run",
        "memory_statistics": "run",
        "close": "close",
    }
)
"""What is asked -> its phase."""


def read_limits(setting: object, device: str) -> Mapping[str, float] | None:
    """Return what a person says of isolation: None for none of it, else seconds by phase where they differ.

    Args:
        setting: true or false, or seconds by phase.
        device: that it is said of.

    Raises:
        InvalidOptionError: it is something else.
    """
    if isinstance(setting, Mapping):
        return {name: _seconds(name, value, device) for name, value in setting.items()}
    word = str(setting).lower() if isinstance(setting, (bool, int, str)) else ""
    if word not in _WORDS:
        raise InvalidOptionError(
            f"option 'isolate' of device {device!r} is true, false, or seconds by phase such as {{'run': 0.5}}, "
            f"got {setting!r}"
        )
    return {} if _WORDS[word] else None


def _seconds(name: Any, value: Any, device: str) -> float:
    if name not in PHASES:
        raise InvalidOptionError(
            f"option 'isolate' of device {device!r} names no phase {name!r}; {close_names(name, PHASES)}"
        )
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise InvalidOptionError(
            f"option 'isolate' of device {device!r} takes seconds above 0 for {name!r}, got {value!r}"
        )
    return float(value)


_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
