"""A compiled model of the engine, and the one that takes its place where a run at open sizes has failed.

From such a run on the engine reads memory of before: what it makes at other sizes is wrong, or it ends the process
(seen with OpenVINO 2026.4). So nothing is computed by that model any more. Whoever needs it next has it written and
read back, and that computes as if it were new.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from nnadapter.drivers.openvino.turning import turns_by_narrow_tables
from nnadapter.process.forking import new_lock, new_re_lock

Read = Callable[[memoryview], tuple[Any, object]]
"""What the engine wrote -> a compiled model, and the memory that the engine may look into for it."""


class RecoverableModel:
    """One compiled model. Usable from many threads.

    Args:
        compiled: the engine's.
        read_from: memory that the engine may look into as long as it lives.
        read: reads what the engine writes; None where that would be another model.
        contents: what it was read from: what the engine writes of a model that it has read, it does not read again.
        takes_turns: the engine computes one run of it at a time.
    """

    def __init__(
        self,
        compiled: Any,
        read_from: object,
        read: Read | None,
        contents: memoryview | None = None,
        *,
        takes_turns: bool = False,
    ) -> None:
        self.compiled, self.read_from = compiled, read_from
        self.turn: AbstractContextManager[Any] = new_re_lock() if takes_turns else nullcontext()
        """Held by a run at open sizes while the engine has it: none begins before it is known whether another failed.
        A handler of signals may run in the middle of one."""
        self.why = ""
        """Why a run failed; empty as long as none did."""
        self._read, self._contents = read, contents
        self._next: RecoverableModel | None = None
        self._lock = new_lock()

    def known(self) -> RecoverableModel:
        """The one that was made last in its place, if one was."""
        later = self._next
        return self if later is None or later is self else later.known()

    def written(self) -> memoryview | None:
        """What the engine writes of it, and reads; None where it does not.

        Raises:
            Exception: of the engine.
        """
        if self._read is None or self._contents is not None:
            return self._contents
        return None if turns_by_narrow_tables(self.compiled) else memoryview(self.compiled.export_model().getvalue())

    def latest(self) -> RecoverableModel:
        """The one that computes now: this one, or the one in its place, or this one still where there can be none.

        Raises:
            Exception: of the engine.
        """
        if not self.why or self._read is None:
            return self
        with self._lock:
            if self._next is None:
                contents = self.written()
                self._next = self if contents is None else self._after(contents, self._read)
        return self if self._next is self else self._next.latest()

    def _after(self, contents: memoryview, read: Read) -> RecoverableModel:
        takes_turns = not isinstance(self.turn, nullcontext)
        return RecoverableModel(*read(contents), read, contents, takes_turns=takes_turns)
