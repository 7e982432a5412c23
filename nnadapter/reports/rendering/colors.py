"""A color for every device, for pictures on a light ground."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.drivers.selection import HOSTS

HOST = "#d5d9df"
"""Devices that accelerate nothing are gray."""
_PALETTE = ("#9cc7f0", "#f3c27b", "#a9d8a0", "#e3a9cf", "#c4b5ee", "#8fd6d2", "#eeb1a0", "#d8d388")
"""Told apart in grayscale as far as eight can be; black text on each has a contrast above 7."""


def colors(devices: Sequence[str]) -> dict[str, str]:
    """Return `#rrggbb` per device, the same for the same list; the ninth accelerator has the first color again."""
    others = [name for name in devices if name not in HOSTS]
    accelerator_colors = {name: _PALETTE[index % len(_PALETTE)] for index, name in enumerate(others)}
    return {name: accelerator_colors.get(name, HOST) for name in devices}
