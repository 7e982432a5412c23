"""What sessions are timed beside: engines by themselves, as a program without nnadapter uses them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

from nnadapter.errors import InvalidOptionError, near_names

_HOMES: Mapping[str, str] = MappingProxyType(
    {"ort": "nnadapter.drivers.onnxruntime.alone", "openvino": "nnadapter.drivers.openvino.alone"}
)
PEERS = tuple(_HOMES)
"""Names of engines."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine."""

    name: str
    version: str
    opened: Callable[[str | os.PathLike[str] | bytes], Callable[[Mapping[str, Any]], Sequence[Any]]]
    """Model -> what runs a feed and gives all outputs, in the model's order."""


def peer_of(name: str) -> Peer:
    """Return an engine, which is imported now.

    Raises:
        InvalidOptionError: there is none of this name.
        MissingExtraError: its package is not installed.
    """
    if name not in _HOMES:
        near = near_names(name, PEERS, "; ")
        raise InvalidOptionError(f"a model is not timed beside {name!r}, expected {', '.join(PEERS)}{near}")
    home = import_module(_HOMES[name])
    return Peer(name, home.version(), home.opened)
