"""What a session does until a plan is made, where its runs are not to wait for one: the CPU runs the model as it was.

Plans are made in a thread, one after the other, in the order in which runs wanted them. What goes wrong there is said
by the next run that wants the plan: it makes the plan itself, as every run does that is not spared the wait.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from nnadapter.engine.cpu_fallback import CpuFallback
from nnadapter.engine.plan_store import PlanCache
from nnadapter.errors import FAILURES, ClosedError, NNAdapterError
from nnadapter.process.resources import Cache, new_lock, register_after_fork

if TYPE_CHECKING:
    from nnadapter.engine.bound_steps import Kept
    from nnadapter.engine.branches import Chosen
    from nnadapter.engine.control import RunControl
    from nnadapter.engine.plan_source import InputShapes, RunResult

    _Key = tuple[InputShapes, Chosen | None]

_MOST_AWAITED = 8
"""Plans that are to be made at once; others are asked for again by the next runs that want them."""
_MOST_FAILED = 256
_WHOLE = "as it was"
_NAME = "nnadapter: plans"


class Planned(Protocol):
    """An engine that makes plans."""

    @property
    def is_fixed(self) -> bool:
        """Whether the model fixes the shapes of all inputs."""

    def make_ahead(self, shapes: InputShapes, chosen: Chosen | None) -> None:
        """Make the plan for these shapes that a run takes, of what inputs choose where they choose anything."""

    def on_host(self) -> CpuFallback:
        """The model as it was, for the CPU."""


class BackgroundPlanner:
    """The plans of an engine that are being made, and what runs until they are. Usable from many threads at once.

    Args:
        engine: which has this.
    """

    def __init__(self, engine: Planned) -> None:
        self.runs = 0
        """That the CPU had while a plan was made."""
        self._engine = ref(engine)
        self._wholes: PlanCache[CpuFallback] = PlanCache(1, sys.maxsize)
        self._lock = new_lock()
        self._awaited: dict[_Key, None] = {}
        """Plans to be made, in the order in which they are."""
        self._thread: Thread | None = None
        self._failed: Cache[_Key, bool] = Cache("plans not made in the background", _MOST_FAILED)
        self._is_refused = False
        """The CPU does not take the model."""
        register_after_fork(self)

    def begin(self, shapes: InputShapes, chosen: Chosen | None = None) -> bool:
        """Have the plan for these shapes made, unless it is to be made already; False if that failed before.

        Args:
            shapes: of the inputs.
            chosen: what they choose of the model, if anything.
        """
        key = shapes, chosen
        if self._failed.get(key):
            return False
        with self._lock:
            if len(self._awaited) < _MOST_AWAITED:
                self._awaited.setdefault(key)
            if self._thread is None:
                self._thread = Thread(target=self._make_all, name=_NAME)
                try:
                    self._thread.start()
                except RuntimeError:  # there are too many, or the process ends
                    self._thread = None
                    self._awaited.clear()
                    return False
        return True

    def run(
        self, feed: Mapping[str, Any], outputs: Sequence[str], control: RunControl | None, kept: Kept | None
    ) -> RunResult | None:
        """Run the model as it was; None where the CPU does not take it, so that a run has to wait for its plan."""
        if self._is_refused:
            return None
        use = object()
        try:
            try:
                _, whole = self._wholes.take(use, _WHOLE, self._cpu_fallback)
            except ClosedError:
                raise
            except NNAdapterError:
                self._is_refused = True
                return None
            self.runs += 1
            return whole.run(feed, outputs, "", kept, control)
        finally:
            self._wholes.users.pop(use, None)
            self._wholes.close_unused()

    def after_fork(self) -> None:
        """In a process that was forked, where the thread is not: runs ask again for what it was to make."""
        self._awaited.clear()
        self._thread = None

    def close(self) -> None:
        """Make nothing more, and let the CPU's model go."""
        with self._lock:
            self._awaited.clear()
        self._wholes.close()

    def _cpu_fallback(self) -> CpuFallback:
        engine = self._engine()
        assert engine is not None, "it runs"
        return engine.on_host()

    def _make_all(self) -> None:
        while (following := self._next()) is not None:
            try:
                _make(self._engine, *following)
            except FAILURES:
                self._failed.put(following, True)
            finally:
                with self._lock:
                    self._awaited.pop(following, None)

    def _next(self) -> _Key | None:
        """What is to be made next; None where the thread ends: at the end of the process nobody waits for more."""
        with self._lock:
            following = None if _is_process_over() else next(iter(self._awaited), None)
            if following is None:
                self._thread = None
        engine = self._engine()
        if following is None and engine is not None and engine.is_fixed:  # others come with other shapes yet
            self._wholes.drop_all()
            self._wholes.close_unused()
        return following


def _is_process_over() -> bool:
    """Whether it lives on for plans alone; threads may go on after the main one."""
    return not any(thread.is_alive() and not thread.daemon and thread.name != _NAME for thread in threading.enumerate())


def _make(engine: ref[Planned], shapes: InputShapes, chosen: Chosen | None) -> None:
    """Make a plan, if the session is there still."""
    if (session := engine()) is not None:
        session.make_ahead(shapes, chosen)
