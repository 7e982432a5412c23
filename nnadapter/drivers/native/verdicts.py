"""Verdicts: the host's structures with room for a sentence each, and what a driver wrote into them."""

from __future__ import annotations

import ctypes
from typing import Any

from nnadapter.drivers.native.codes import REASONS
from nnadapter.drivers.native.structures import Holder, StructPool, read_text
from partition.verdict import SUPPORTED, Reason, Unsupported, Verdict

DETAIL_BYTES = 512
"""Room for the sentence of one verdict, its final 0 included."""


class VerdictSink:
    """So many verdicts, for a driver to fill in; each says at first what `supported` says.

    Args:
        count: how many.
        supported: what a driver that writes nothing has said.
    """

    def __init__(self, count: int, *, supported: bool = False) -> None:
        self._holder = Holder()
        self._count = count
        self._details = bytearray(max(count, 1) * DETAIL_BYTES)
        self._nothing = bytes(max(count, 1))
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._details))
        places = [{"detail": self._start + index * DETAIL_BYTES, "capacity": DETAIL_BYTES} for index in range(count)]
        self._room = StructPool("Verdict", [{"supported": int(supported), **place} for place in places])
        self._all_supported = StructPool("Verdict", [{"supported": 1, **place} for place in places]).bytes
        """What is there where a driver takes everything, which most do."""
        self.addresses = self._room.addresses
        """Where they are, in order."""
        self.array = self._holder.pointers(self.addresses)
        """Where the array of pointers to them is; None if there are none."""

    def cleared(self) -> VerdictSink:
        """Itself, as it was made: what a driver wrote is gone."""
        self._room.clear()
        self._details[::DETAIL_BYTES] = self._nothing
        return self

    def read(self) -> list[Verdict]:
        """What the driver answered, in order."""
        if self._room.bytes == self._all_supported:
            return [SUPPORTED] * self._count
        return [self._read(index, verdict) for index, verdict in enumerate(self._room.structures)]

    def _read(self, index: int, verdict: Any) -> Verdict:
        if verdict.supported == 1:
            return SUPPORTED
        room = self._start + index * DETAIL_BYTES  # the driver may have moved its pointer
        detail = read_text(ctypes.string_at(room, DETAIL_BYTES).partition(b"\0")[0])
        if verdict.supported == 0 and verdict.reason in REASONS:
            return Unsupported(REASONS[verdict.reason], detail or "the driver gave no sentence; ask its vendor")
        answer = f"supported {verdict.supported} with reason {verdict.reason}"
        return Unsupported(
            Reason.DRIVER_ERROR, f"the driver answered {answer}, which means nothing: {detail}".rstrip(": ")
        )
