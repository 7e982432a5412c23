"""Plans made in a background thread, while the CPU runs the entire model.

If that fails, the next run makes the plan itself and raises the error.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from nnadapter.engine.executor import CpuFallback
from nnadapter.engine.plan_store import PlanCache
from nnadapter.errors import FAILURES, ClosedError, NNAdapterError
from nnadapter.process.resources import Cache, new_lock, register_after_fork

if TYPE_CHECKING:
    from nnadapter.engine.bound_steps import OutDevices
    from nnadapter.engine.branches import BranchSelection
    from nnadapter.engine.control import RunControl
    from nnadapter.engine.plan_source import InputShapes, RunResult

    _Key = tuple[InputShapes, BranchSelection | None]

_MOST_AWAITED = 8
_MOST_FAILED = 256
_ORIGINAL_MODEL = "as it was"
_NAME = "nnadapter: plans"


class Planned(Protocol):
    """Plan source, as seen by the background thread."""

    @property
    def is_fixed(self) -> bool:
        pass

    def make_ahead(self, shapes: InputShapes, selection: BranchSelection | None) -> None:
        pass

    def on_host(self) -> CpuFallback:
        pass


class BackgroundPlanner:
    """Queue of plans to make in the background. Thread-safe."""

    def __init__(self, engine: Planned) -> None:
        self.runs = 0
        """Runs on the CPU while a plan was made."""
        self._engine = ref(engine)
        self._wholes: PlanCache[CpuFallback] = PlanCache(1, sys.maxsize)
        self._lock = new_lock()
        self._awaited: dict[_Key, None] = {}
        self._thread: Thread | None = None
        self._failed: Cache[_Key, bool] = Cache("plans not made in the background", _MOST_FAILED)
        self._is_refused = False
        register_after_fork(self)

    def begin(self, shapes: InputShapes, selection: BranchSelection | None = None) -> bool:
        """Queue the plan for these shapes; return False if planning for them failed before."""
        key = shapes, selection
        if self._failed.get(key):
            return False
        with self._lock:
            if len(self._awaited) < _MOST_AWAITED:
                self._awaited.setdefault(key)
            if self._thread is None:
                self._thread = Thread(target=self._make_all, name=_NAME)
                try:
                    self._thread.start()
                except RuntimeError:
                    self._thread = None
                    self._awaited.clear()
                    return False
        return True

    def run(
        self,
        feed: Mapping[str, Any],
        outputs: Sequence[str],
        control: RunControl | None,
        out_devices: OutDevices | None,
    ) -> RunResult | None:
        """Run the entire model on the CPU; return None if the CPU cannot load it."""
        if self._is_refused:
            return None
        use = object()
        try:
            try:
                _, cpu_fallback = self._wholes.take(use, _ORIGINAL_MODEL, self._cpu_fallback)
            except ClosedError:
                raise
            except NNAdapterError:
                self._is_refused = True
                return None
            self.runs += 1
            return cpu_fallback.run(feed, outputs, "", out_devices, control)
        finally:
            self._wholes.users.pop(use, None)
            self._wholes.close_unused()

    def after_fork(self) -> None:
        self._awaited.clear()
        self._thread = None

    def close(self) -> None:
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
        """Return the next key to plan. None ends the thread; so does the end of all other threads."""
        with self._lock:
            following = None if _is_process_over() else next(iter(self._awaited), None)
            if following is None:
                self._thread = None
        engine = self._engine()
        # With dynamic shapes, plans for later shapes still need the CPU fallback while they are made.
        if following is None and engine is not None and engine.is_fixed:
            self._wholes.drop_all()
            self._wholes.close_unused()
        return following


def _is_process_over() -> bool:
    return not any(thread.is_alive() and not thread.daemon and thread.name != _NAME for thread in threading.enumerate())


def _make(engine: ref[Planned], shapes: InputShapes, selection: BranchSelection | None) -> None:
    if (session := engine()) is not None:
        session.make_ahead(shapes, selection)
