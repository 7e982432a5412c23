"""Verdicts: the host's structures with room for a sentence each, and what a driver wrote into them."""

from __future__ import annotations

import ctypes
from typing import Any

from nnadapter.drivers.native.codes import REASONS
from nnadapter.drivers.native.structures import Holder, make, read_text
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
        self._buffer = ctypes.create_string_buffer(max(count, 1) * DETAIL_BYTES)
        start = ctypes.addressof(self._buffer)
        self._verdicts = [
            make("Verdict", supported=int(supported), detail=start + index * DETAIL_BYTES, capacity=DETAIL_BYTES)
            for index in range(count)
        ]
        self.addresses = [ctypes.addressof(verdict) for verdict in self._verdicts]
        """Where they are, in order."""
        self.array = self._holder.pointers(self.addresses)
        """Where the array of pointers to them is; None if there are none."""

    def read(self) -> list[Verdict]:
        """What the driver answered, in order."""
        return [self._read(index, verdict) for index, verdict in enumerate(self._verdicts)]

    def _read(self, index: int, verdict: Any) -> Verdict:
        if verdict.supported == 1:
            return SUPPORTED
        room = ctypes.addressof(self._buffer) + index * DETAIL_BYTES  # the driver may have moved its pointer
        detail = read_text(ctypes.string_at(room, DETAIL_BYTES).partition(b"\0")[0])
        if verdict.supported == 0 and verdict.reason in REASONS:
            return Unsupported(REASONS[verdict.reason], detail or "the driver gave no sentence; ask its vendor")
        said = f"supported {verdict.supported} with reason {verdict.reason}"
        return Unsupported(
            Reason.DRIVER_ERROR, f"the driver answered {said}, which means nothing: {detail}".rstrip(": ")
        )
