"""A CPU segment: one session of ONNX Runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.interface import Execution, Program
from nnadapter.drivers.onnxruntime.footprint import session_bytes
from nnadapter.drivers.onnxruntime.optimizers import UnoptimizedRuns
from nnadapter.drivers.onnxruntime.pools import PoolPermit
from nnadapter.drivers.onnxruntime.sessions import run_options, session_execution
from nnadapter.drivers.onnxruntime.values import run_of
from nnadapter.drivers.onnxruntime.weights import Loadable
from nnadapter.ir.operand import Array
from nnadapter.process.forking import register_after_fork

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.drivers.onnxruntime.profiling import SessionProfile


class CpuProgram(Program):
    """One session."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        permit: PoolPermit | None,
        model: Loadable,
        nodes: int = 0,
        profile: SessionProfile | None = None,
        *,
        wants_pool: bool,
        reopen: Callable[..., onnxruntime.InferenceSession],
        notes: Sequence[str] = (),
    ) -> None:
        self.wants_pool = wants_pool
        """It gains from threads of its own, whether there was a permit or not."""
        self.notes = list(notes)
        """Which optimization level runs, and why, if it is a lower one."""
        self._reopen, self._unoptimized_runs = reopen, UnoptimizedRuns()
        self._session = session
        self._held_bytes, self._weights = session_bytes(model, nodes), model.weights
        self._permit = permit
        self._profile = profile
        if permit is not None:
            register_after_fork(self)

    def part(self) -> None:
        """In a process that was forked, where its threads are not: it stays, since its end would wait for them."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._session))

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`, and `session_bytes`."""
        return self._held_bytes

    @property
    def execution_bytes(self) -> int:
        """See `Program.execution_bytes`: the session computes for all."""
        return 0

    def create_execution(self) -> Execution:
        """See `Program.create_execution`."""
        return session_execution(self._session, "the CPU", self._profile, self._repeat)

    def _repeat(
        self, names: Sequence[str], feeds: Mapping[str, Any], error: Exception
    ) -> tuple[onnxruntime.InferenceSession, list[Array]] | None:
        """Repeat a failed run with fewer optimizations. Further runs use them if it succeeds."""
        if not self._unoptimized_runs.allows(error):
            return None
        results: list[Array] = []

        def accept(session: onnxruntime.InferenceSession) -> None:
            results[:] = run_of(session)(names, feeds, run_options.get())

        try:
            self._session = self._reopen(notes=self.notes, accept=accept, failed=error)
        except Exception:  # noqa: BLE001  the first error says what is wrong
            return None
        return self._session, results

    def close(self) -> None:
        """See `Program.close`."""
        self._permit = None
        if self._profile is not None:
            self._profile.end()
