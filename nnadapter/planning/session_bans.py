"""The bans of one device in a session; nothing of `nnadapter.caching` is imported before there is one, or a cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nnadapter.drivers.capability import OptionValues
from nnadapter.drivers.interface import SegmentModel
from nnadapter.process.forking import new_lock

if TYPE_CHECKING:
    from nnadapter.caching.bans import Ban, DeviceBans


class SessionBans:
    """See `nnadapter.caching.bans.DeviceBans`. Usable from many threads at once.

    Args:
        device: its name.
        options: of its context.
        folder: of the session's cache; None where it has none.
    """

    def __init__(self, device: str, options: OptionValues, folder: Path | None) -> None:
        self._device, self._options, self._folder = device, options, folder
        self._lock = new_lock()
        self._bans = None if folder is None else self._made()

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._bans)

    @property
    def all(self) -> tuple[Ban, ...]:
        """Those that hold now."""
        return () if self._bans is None else self._bans.all

    @property
    def of_nodes(self) -> bool:
        """Whether nodes are banned, and not only segments for their size."""
        return self._bans is not None and self._bans.of_nodes

    def find(self, model: SegmentModel) -> Ban | None:
        """See `DeviceBans.find`."""
        return None if self._bans is None else self._bans.find(model)

    def add(
        self,
        model: SegmentModel,
        nodes: Sequence[str],
        why: str,
        stage: str,
        *,
        is_size: bool = False,
        reproducer: str = "",
    ) -> Ban | None:
        """See `DeviceBans.add`."""
        with self._lock:
            if self._bans is None:
                self._bans = self._made()
        return self._bans.add(model, nodes, why, stage, is_size=is_size, reproducer=reproducer)

    def _made(self) -> DeviceBans:
        from nnadapter.caching.bans import DeviceBans

        return DeviceBans(self._device, self._options, self._folder)
