"""CPU segments as programs: sessions, thread pool permits and memory estimates.

Permits limit the thread pools of the process. Programs that exist only for timing do not count. Memory estimates were
fitted to malloc statistics of ONNX Runtime 1.31; runs use a shared arena.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.interface import Execution, Program
from nnadapter.drivers.onnxruntime.failures import UnoptimizedRuns, brief
from nnadapter.drivers.onnxruntime.sessions import Loadable, open_session, run_options, session_execution
from nnadapter.drivers.onnxruntime.values import run_of
from nnadapter.errors import CompilationError
from nnadapter.ir.operand import Array
from nnadapter.process.processors import usable
from nnadapter.process.resources import register_after_fork

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.drivers.onnxruntime.sessions import SessionProfile


_MOST_THREADS = 256
_FEWEST_POOLS = 8
_uncounted: ContextVar[int] = ContextVar("uncounted", default=0)


class _Pools:
    """Object to which all permits are weak references, so that they can be counted."""


_POOLS = _Pools()


class PoolPermit(weakref.ref[_Pools]):
    """Permission for a thread pool, valid while referenced.

    Permits are counted as weak references, so they need no release: an interrupt loses none, and no finalizer takes a
    lock.
    """


def pool_permit() -> PoolPermit | None:
    """Return a permit for a thread pool; None at the limit."""
    permit = PoolPermit(_POOLS)
    return permit if pools_held() <= most_pools() + _uncounted.get() else None


def most_pools() -> int:
    """Return the maximum number of thread pools."""
    return max(_FEWEST_POOLS, _MOST_THREADS // usable())


def pools_held() -> int:
    """Return the number of permits in use."""
    return weakref.getweakrefcount(_POOLS)


@contextmanager
def not_counting(pools: int) -> Iterator[None]:
    """Raise the limit on thread pools by `pools` in the block, for programs that exist only for timing."""
    token = _uncounted.set(max(pools, 0))  # some may be gone
    try:
        yield
    finally:
        _uncounted.reset(token)


_BYTES_PER_NODE = 7 << 10
_BYTES_PER_SESSION = 96 << 10


def session_bytes(model: Loadable, nodes: int) -> int:
    """Estimate the bytes of a session, without memory for runs."""
    python_copy_bytes = len(model.contents)
    return _BYTES_PER_SESSION + python_copy_bytes + model.nbytes + _BYTES_PER_NODE * nodes


class CpuProgram(Program):
    """Program of one session."""

    execution_bytes = 0

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
        self.notes = list(notes)
        self._reopen, self._unoptimized_runs = reopen, UnoptimizedRuns()
        self._session = session
        self._held_bytes, self._weights = session_bytes(model, nodes), model.weights
        self._permit = permit
        self._profile = profile
        if permit is not None:
            register_after_fork(self)

    def after_fork(self) -> None:
        """Keep the session alive in a forked child, because its destructor would wait for threads of the parent."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._session))

    @property
    def io_counts(self) -> tuple[int, int]:
        return len(self._session.get_inputs()), len(self._session.get_outputs())

    @property
    def memory_bytes(self) -> int:
        return self._held_bytes

    def create_execution(self) -> Execution:
        return session_execution(self._session, "the CPU", self._profile, self._repeat)

    def _repeat(
        self, names: Sequence[str], feeds: Mapping[str, Any], error: Exception
    ) -> tuple[onnxruntime.InferenceSession, list[Array]] | None:
        if not self._unoptimized_runs.allows(error):
            return None
        results: list[Array] = []

        def accept(session: onnxruntime.InferenceSession) -> None:
            results[:] = run_of(session)(names, feeds, run_options.get())

        try:
            self._session = self._reopen(notes=self.notes, accept=accept, failed=error)
        except Exception:  # noqa: BLE001  the first error has the cause
            return None
        return self._session, results

    def close(self) -> None:
        self._permit = None
        if self._profile is not None:
            self._profile.end()


def open_program(
    model: Loadable,
    session_options: onnxruntime.SessionOptions | None,
    *,
    wants_pool: bool,
    spins: bool,
    without: Sequence[str] = (),
    nodes: int = 0,
    profile: SessionProfile | None = None,
) -> CpuProgram:
    """Return the program of a model in a supported opset. ONNX Runtime's errors are not translated.

    `wants_pool` means that a thread pool would help. Other arguments are as in `open_session`.
    """
    permit = pool_permit() if wants_pool else None
    try:
        reopen = partial(
            open_session,
            model,
            session_options,
            has_pool=permit is not None,
            spins=spins,
            shares_arena=True,
            without=without,
        )
        notes: list[str] = []
        session = reopen(profile=profile, notes=notes)
        return CpuProgram(session, permit, model, nodes, profile, wants_pool=wants_pool, reopen=reopen, notes=notes)
    finally:
        del permit  # an error's frame would keep the permit


def load_program(
    model: Loadable,
    session_options: onnxruntime.SessionOptions | None,
    *,
    spins: bool,
    single_threaded: bool,
    border: tuple[int, int],
    without: Sequence[str] = (),
) -> CpuProgram:
    """Return the program of a compiled file's CPU segment; see `open_program`.

    `single_threaded` means that threads do not help; `border` has the expected numbers of inputs and outputs.
    """
    try:
        program = open_program(
            model, session_options, wants_pool=spins or not single_threaded, spins=spins, without=without
        )
        if program.io_counts != border:
            inputs, outputs = program.io_counts
            raise ValueError(
                f"the graph has {inputs} inputs and {outputs} outputs, expected {border[0]} and {border[1]}"
            )
        return program
    except Exception as error:
        raise CompilationError(
            f"ONNX Runtime does not load a CPU segment of the compiled model: {brief(error)}; compile the model again "
            "with the ONNX Runtime that is installed here",
            device="cpu",
        ) from error
