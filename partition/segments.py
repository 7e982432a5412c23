"""Placement -> segments."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """A convex set of atoms on one device."""

    device: str
    """The device's label."""
    atoms: tuple[int, ...]
    """Positions of its atoms, ascending."""
