"""Pool of the executions of a compiled program, and wrappers of programs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.boundary import create_execution
from nnadapter.drivers.capability import Threading
from nnadapter.drivers.failures import NamedCalls
from nnadapter.drivers.interface import UNLIMITED, DeviceTensor, Execution, Program, Stream
from nnadapter.drivers.registry import device_lock
from nnadapter.engine.plan_store import Holding
from nnadapter.errors import FAILURES
from nnadapter.ir.operand import Array
from nnadapter.process.resources import ObjectPool, close_all

if TYPE_CHECKING:
    from nnadapter.engine.control import RunControl


_NOTHING = Holding(0, {})


class ExecutionPool:
    """Reusable executions of one program. Calls obey the threading that the device declares."""

    __slots__ = (
        "_call",
        "_calls",
        "_device_lock",
        "_executions",
        "_holding",
        "_is_closed",
        "_reentrant",
        "_shared",
        "program",
    )

    def __init__(self, program: Program, threading_: Threading, calls: NamedCalls) -> None:
        self.program = program
        self._calls, self._call = calls, calls["compute"]
        self._holding: Holding | None = None
        self._is_closed = False
        self._reentrant = threading_ is Threading.REENTRANT
        self._device_lock = device_lock(calls.device) if threading_ is Threading.SERIAL else None
        self._shared: Execution | None = None
        self._executions: ObjectPool[Execution] = ObjectPool(calls["create_execution"], create_execution, program)

    @property
    def holding(self) -> Holding:
        """Memory of the program and its executions; the last known value if the driver fails."""
        try:
            holding: Holding = self._calls["memory_bytes"](_memory_of, self.program, len(self._executions.all))
        except FAILURES:
            return self.last_holding
        self._holding = holding
        return holding

    @property
    def last_holding(self) -> Holding:
        return self._holding or _NOTHING

    @property
    def shared(self) -> Execution | None:
        """Execution that all threads use at once on a reentrant device; None before the first run."""
        return self._shared

    def compute(
        self, inputs: Sequence[Any], control: RunControl | None = None, sizes: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        """Run the program once; `sizes` are the symbolic sizes for `Execution.specialize`, or None."""
        if control is None and sizes is None:
            return self._compute_plainly(inputs)
        within = () if control is None else (control.for_driver(),)
        results: Sequence[Any] = self._call_exclusively(
            sizes, "compute_within" if within else "compute", inputs, *within
        )
        return results

    def _compute_plainly(self, inputs: Sequence[Any]) -> Sequence[Any]:
        outputs: Sequence[Any]
        if (shared := self._shared) is not None:
            outputs = self._call(shared.compute, inputs)
            return outputs
        if self._reentrant or self._device_lock is not None:
            outputs = self._call_exclusively(None, "compute", inputs)
            return outputs
        user = object()
        try:
            outputs = self._call(self._executions.acquire(user).compute, inputs)
        finally:
            self._executions.users.pop(user, None)
        return outputs

    def compute_into(self, inputs: Sequence[Any], outputs: Sequence[Array]) -> Sequence[Any]:
        results: Sequence[Any] = self._call_exclusively(None, "compute_into", inputs, outputs)
        return results

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: RunControl | None = None, sizes: Sequence[Any] | None = None
    ) -> Sequence[DeviceTensor] | None:
        within = UNLIMITED if control is None else control.for_driver()
        results: Sequence[DeviceTensor] | None = self._call_exclusively(sizes, "compute_on_device", inputs, within)
        return results

    def reserve(self, user: object) -> Execution:
        """Reserve an execution until `release`; any object can identify the user."""
        return self._executions.acquire(user)

    def release(self, user: object) -> None:
        self._executions.users.pop(user, None)

    def enqueue(
        self,
        execution: Execution,
        inputs: Sequence[DeviceTensor],
        stream: Stream,
        control: RunControl | None,
        sizes: Sequence[Any] | None,
    ) -> Sequence[DeviceTensor] | None:
        """Enqueue the program on a stream, in a reserved execution; return None if that is impossible."""
        within = UNLIMITED if control is None else control.for_driver()
        out: Sequence[DeviceTensor] | None = self._call(
            _call_method, execution, sizes, "enqueue", inputs, stream, within
        )
        return out

    def _call_exclusively(self, sizes: Sequence[Any] | None, method: str, *arguments: Any) -> Any:
        if (shared := self._shared) is not None:
            return self._call(_call_method, shared, sizes, method, *arguments)
        user = object()
        try:
            execution = self._executions.acquire(user)
            if self._reentrant:
                self._shared = execution
            if self._device_lock is None:
                return self._call(_call_method, execution, sizes, method, *arguments)
            with self._device_lock:
                return self._call(_call_method, execution, sizes, method, *arguments)
        finally:
            self._executions.users.pop(user, None)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed, self._shared = True, None
        self._calls["close"](close_all, [*self._executions.clear(), self.program])


def _memory_of(program: Program, executions: int) -> Holding:
    nbytes = program.memory_bytes
    if executions > 1:
        nbytes += (executions - 1) * program.execution_bytes
    return Holding(nbytes, program.shared_bytes)


def _call_method(execution: Execution, sizes: Sequence[Any] | None, method: str, *arguments: Any) -> Any:
    return getattr(execution if sizes is None else execution.specialize(sizes), method)(*arguments)


class WrappedProgram(Program):
    """Program that forwards all calls to another program, `inner`."""

    def __init__(self, inner: Program) -> None:
        self.inner = inner

    def create_execution(self) -> Execution:
        return self.inner.create_execution()

    @property
    def memory_bytes(self) -> int:
        return self.inner.memory_bytes

    @property
    def execution_bytes(self) -> int:
        return self.inner.execution_bytes

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        return self.inner.shared_bytes

    def serialize(self) -> bytes | None:
        return self.inner.serialize()

    def close(self) -> None:
        self.inner.close()


class SameProgram(WrappedProgram):
    """Program shared with an equal step. Only that step closes it; each step has executions of its own."""

    @property
    def memory_bytes(self) -> int:
        return self.inner.execution_bytes

    def close(self) -> None:
        pass


def driver_program(program: Program) -> Program:
    """Return the driver's program that traced or shared programs wrap."""
    while isinstance(program, WrappedProgram):
        program = program.inner
    return program
