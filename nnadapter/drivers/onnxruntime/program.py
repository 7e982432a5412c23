"""CPU segments as programs: one session each, its thread pool and footprint, compiled or loaded.

Pools of threads that sessions of ONNX Runtime have for themselves: so many at once in the process.

What is compiled to be timed beside others has as many as it would have without them: it is to take as long as it does
when it is used.

What a session of ONNX Runtime holds: ONNX Runtime does not say, so by a rule that was measured.

Source: growth of the process by malloc's own count, models of 30 to 460 nodes and 1 to 70 MB of weights, ONNX Runtime
1.31. What runs need comes from an arena that all sessions share and no session owns.
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
"""In the pools of the process; each has as many as there are processors."""
_FEWEST_POOLS = 8
"""Pools that there may be, however many threads these have."""
_uncounted: ContextVar[int] = ContextVar("uncounted", default=0)
"""How many do not count for what is compiled now."""


class _Pools:
    """What permits refer to."""


_POOLS = _Pools()


class PoolPermit(weakref.ref[_Pools]):
    """Leave to have a pool of threads, for as long as it lives; a session without one runs in the caller's thread.

    Python counts the references to an object: the living ones. So nothing is given back, and no interrupt between two
    steps loses a permit; and where a session is dropped and collected, no finalizer waits for a lock.
    """


def pool_permit() -> PoolPermit | None:
    """A permit, unless there are as many as there may be."""
    permit = PoolPermit(_POOLS)
    return permit if pools_held() <= most_pools() + _uncounted.get() else None


def most_pools() -> int:
    """How many permits there may be."""
    return max(_FEWEST_POOLS, _MOST_THREADS // usable())


def pools_held() -> int:
    """How many permits there are."""
    return weakref.getweakrefcount(_POOLS)


@contextmanager
def not_counting(pools: int) -> Iterator[None]:
    """Have what is compiled in the block get permits as if so many of those that there are were none.

    Args:
        pools: of programs that are timed beside it, and will not stay with it.
    """
    token = _uncounted.set(max(pools, 0))  # some may have gone since they were counted
    try:
        yield
    finally:
        _uncounted.reset(token)


_PYTHON_COPIES = 1
"""ONNX Runtime's Python session keeps the serialized model, to be made again with other providers."""
_BYTES_PER_NODE = 7 << 10
"""A kernel, its definition and its place in the order."""
_BYTES_PER_SESSION = 96 << 10


def session_bytes(model: Loadable, nodes: int) -> int:
    """Return the bytes that a session holds, beside what runs need.

    Args:
        model: as ONNX Runtime was given it; the session has its weights in the form that its kernels want.
        nodes: how many it has; 0 if nobody counted them.
    """
    return _BYTES_PER_SESSION + _PYTHON_COPIES * len(model.contents) + model.nbytes + _BYTES_PER_NODE * nodes


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

    def after_fork(self) -> None:
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
        self._permit = None
        if self._profile is not None:
            self._profile.end()


def load_program(
    model: Loadable,
    session_options: onnxruntime.SessionOptions | None,
    *,
    spins: bool,
    single_threaded: bool,
    border: tuple[int, int],
    without: Sequence[str] = (),
) -> CpuProgram:
    """Return the program of a model at an opset that ONNX Runtime knows.

    Args:
        model: the model; with session options, all of it in one.
        session_options: ONNX Runtime's own.
        spins: its threads may spin: nothing else of the plan runs beside.
        single_threaded: threads gain it nothing, see `threads_gain`; of one that spins that is not asked.
        border: how many inputs and outputs it has to have.
        without: see `open_session`.

    Raises:
        CompilationError: ONNX Runtime does not load it.
    """
    wants_pool = spins or not single_threaded
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
        session = reopen(notes=notes)
        io_counts = len(session.get_inputs()), len(session.get_outputs())
        if io_counts != border:
            raise ValueError(
                f"it has {io_counts[0]} inputs and {io_counts[1]} outputs, expected {border[0]} and {border[1]}"
            )
        return CpuProgram(session, permit, model, wants_pool=wants_pool, reopen=reopen, notes=notes)
    except Exception as error:
        raise CompilationError(
            f"ONNX Runtime does not load a CPU segment of the compiled model: {brief(error)}; compile the model again "
            "with the ONNX Runtime that is installed here",
            device="cpu",
        ) from error
    finally:
        del permit  # somebody may keep the error, and this frame with it
