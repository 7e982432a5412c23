"""What the interfaces have in common: they are open until they are closed, and close what was made from them first."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Self

from nnadapter.errors import ClosedError
from nnadapter.process.closing import Closable, close_all
from nnadapter.process.forking import new_re_lock


class Handle:
    """Something of a device. Closing is safe from any thread and more than once; it waits for what is under way.

    Args:
        parent: what it was made from, which closes it before itself.
        owned: what its driver made for it, closed with it; a `close` that raises there is a DriverWarning.
    """

    def __init__(self, parent: Handle | None, owned: Closable | None = None) -> None:
        self._lock = new_re_lock()
        self._closed = False
        self._owned = owned
        self._children: weakref.WeakSet[Handle] = weakref.WeakSet()
        if parent is not None:
            parent._adopt(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def check_open(self) -> None:
        """Raise ClosedError if it was closed."""
        if self._closed:
            raise ClosedError(f"{self} is closed; make another one")

    def close(self) -> None:
        """Close what was made from it, then free what it holds. It is not to be used after it."""
        with self._lock:
            self._closed = True
            children = list(self._children)
        for child in children:
            child.close()
        with self._lock:
            owned, self._owned = self._owned, None
        if owned is not None:
            close_all([owned])

    def __enter__(self) -> Self:
        """Itself, if it is open."""
        self.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _adopt(self, child: Handle) -> None:
        with self._lock:
            self.check_open()
            self._children.add(child)
