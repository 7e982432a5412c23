"""What this process does not share with one that is forked from it."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Parting(Protocol):
    """What has something that belongs to one process."""

    def part(self) -> None:
        """In the process that was forked: let go of it. No other thread runs; locks may be held by those there were."""


_things: WeakSet[Parting] = WeakSet()


def part_at_fork(thing: Parting) -> None:
    """Have `thing.part` called in every process that is forked while it lives."""
    _things.add(thing)


def _part() -> None:
    for thing in list(_things):
        thing.part()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_part)
