"""Planner thread of a session with `Options(background=True)`; meanwhile the CPU runs the entire model."""

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

_MOST_QUEUED = 8
_MOST_FAILED = 256
_ORIGINAL_MODEL = "as it was"
_NAME = "nnadapter: plans"


class BackgroundSource(Protocol):
    """Members of `ModelPlanSource` that the background thread uses."""

    @property
    def is_fixed(self) -> bool:
        pass

    def make_ahead(self, shapes: InputShapes, selection: BranchSelection | None) -> None:
        pass

    def make_cpu_fallback(self) -> CpuFallback:
        pass


class BackgroundPlanner:
    """Queue of shapes for which a background thread makes plans, for one session. Thread-safe."""

    def __init__(self, source: BackgroundSource) -> None:
        self.runs = 0
        self._source = ref(source)
        self._cpu_fallbacks: PlanCache[CpuFallback] = PlanCache(1, sys.maxsize)
        self._lock = new_lock()
        self._queue: dict[_Key, None] = {}
        self._thread: Thread | None = None
        self._failed: Cache[_Key, bool] = Cache("plans not made in the background", _MOST_FAILED)
        self._is_impossible = False
        register_after_fork(self)

    def begin(self, shapes: InputShapes, selection: BranchSelection | None = None) -> bool:
        """Queue planning for these shapes; return False if planning failed before or no thread can start."""
        key = shapes, selection
        if self._failed.get(key):
            return False
        with self._lock:
            if len(self._queue) < _MOST_QUEUED:
                self._queue.setdefault(key)
            if self._thread is None:
                self._thread = Thread(target=self._make_all, name=_NAME)
                try:
                    self._thread.start()
                except RuntimeError:
                    self._thread = None
                    self._queue.clear()
                    return False
        return True

    def run(
        self,
        feed: Mapping[str, Any],
        outputs: Sequence[str],
        control: RunControl | None,
        out_devices: OutDevices | None,
    ) -> RunResult | None:
        if self._is_impossible:
            return None
        use = object()
        try:
            try:
                _, cpu_fallback = self._cpu_fallbacks.take(use, _ORIGINAL_MODEL, self._make_cpu_fallback)
            except ClosedError:
                raise
            except NNAdapterError:
                self._is_impossible = True
                return None
            self.runs += 1
            return cpu_fallback.run(feed, outputs, "", out_devices, control)
        finally:
            self._cpu_fallbacks.users.pop(use, None)
            self._cpu_fallbacks.close_unused()

    def after_fork(self) -> None:
        self._queue.clear()
        self._thread = None

    def close(self) -> None:
        with self._lock:
            self._queue.clear()
        self._cpu_fallbacks.close()

    def _make_cpu_fallback(self) -> CpuFallback:
        source = self._source()
        assert source is not None, "it runs"
        return source.make_cpu_fallback()

    def _make_all(self) -> None:
        while (key := self._next_key()) is not None:
            try:
                _make(self._source, *key)
            except FAILURES:
                self._failed.put(key, True)
            finally:
                with self._lock:
                    self._queue.pop(key, None)

    def _next_key(self) -> _Key | None:
        with self._lock:
            key = None if _is_process_over() else next(iter(self._queue), None)
            if key is None:
                self._thread = None
        source = self._source()
        # With dynamic shapes, plans for later shapes still need the CPU fallback while they are made.
        if key is None and source is not None and source.is_fixed:
            self._cpu_fallbacks.drop_all()
            self._cpu_fallbacks.close_unused()
        return key


def _is_process_over() -> bool:
    return not any(thread.is_alive() and not thread.daemon and thread.name != _NAME for thread in threading.enumerate())


def _make(source_ref: ref[BackgroundSource], shapes: InputShapes, selection: BranchSelection | None) -> None:
    if (source := source_ref()) is not None:
        source.make_ahead(shapes, selection)
