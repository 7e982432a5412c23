"""A segment as the model that its device takes."""

from __future__ import annotations

from dataclasses import dataclass

from nnadapter.drivers.interface import SegmentModel


@dataclass(frozen=True, eq=False)
class Part:
    """A model cut out for one step, and the values that its inputs stand for, in their order."""

    model: SegmentModel
    inputs: tuple[str, ...]
