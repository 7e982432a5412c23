"""Executions of a program, lent to one run at a time or shared, and programs shared by equal segments."""

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
    """Executions of one program, made as they are needed and used again; keeps to the device's threading."""

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
        """Take a program of the device whose calls are named."""
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
        """The memory of the program with its executions, of which there will be one at least; the last that it told."""
        try:
            told: Holding = self._calls["memory_bytes"](_held, self.program, len(self._executions.all))
        except FAILURES:
            return self.told
        self._holding = told
        return told

    @property
    def told(self) -> Holding:
        """What `holding` was when somebody asked last; nothing if nobody did."""
        return self._holding or _NOTHING

    @property
    def shared(self) -> Execution | None:
        """The execution that all threads run in, where the device allows it; made by the first run."""
        return self._shared

    def compute(
        self, inputs: Sequence[Any], control: RunControl | None = None, sizes: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        """Run the program once, in an execution of its own for as long as it takes.

        Args:
            inputs: of the program.
            control: what may stop it; None where nobody may.
            sizes: see `Execution.specialize`; None for a program that is told none.
        """
        if control is None and sizes is None:
            return self._plainly(inputs)
        within = () if control is None else (control.for_driver(),)
        results: Sequence[Any] = self._alone(sizes, "compute_within" if within else "compute", inputs, *within)
        return results

    def _plainly(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """As `_alone`, without what only other ways of running need: nearly every run comes here."""
        outputs: Sequence[Any]
        if (shared := self._shared) is not None:
            outputs = self._call(shared.compute, inputs)
            return outputs
        if self._reentrant or self._device_lock is not None:
            outputs = self._alone(None, "compute", inputs)
            return outputs
        user = object()
        try:
            outputs = self._call(self._executions.acquire(user).compute, inputs)
        finally:
            self._executions.users.pop(user, None)
        return outputs

    def compute_into(self, inputs: Sequence[Any], outputs: Sequence[Array]) -> Sequence[Any]:
        """As `compute`, into these arrays; see `Execution.compute_into`."""
        results: Sequence[Any] = self._alone(None, "compute_into", inputs, outputs)
        return results

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: RunControl | None = None, sizes: Sequence[Any] | None = None
    ) -> Sequence[DeviceTensor] | None:
        """As `compute`, in memory of the device; see `Execution.compute_on_device`."""
        within = UNLIMITED if control is None else control.for_driver()
        results: Sequence[DeviceTensor] | None = self._alone(sizes, "compute_on_device", inputs, within)
        return results

    def kept_by(self, user: object) -> Execution:
        """An execution that nobody else gets until it is given back."""
        return self._executions.acquire(user)

    def give_back(self, user: object) -> None:
        """Let others have what a user kept."""
        self._executions.users.pop(user, None)

    def enqueue(
        self,
        execution: Execution,
        inputs: Sequence[DeviceTensor],
        stream: Stream,
        control: RunControl | None,
        sizes: Sequence[Any] | None,
    ) -> Sequence[DeviceTensor] | None:
        """As `compute_on_device`, but as work of a stream, in an execution that the caller keeps."""
        within = UNLIMITED if control is None else control.for_driver()
        made: Sequence[DeviceTensor] | None = self._call(_method, execution, sizes, "enqueue", inputs, stream, within)
        return made

    def _alone(self, sizes: Sequence[Any] | None, how: str, *arguments: Any) -> Any:
        """Run the program by a method of an execution that nobody else has now, but where all may share one."""
        if (shared := self._shared) is not None:
            return self._call(_method, shared, sizes, how, *arguments)
        user = object()
        try:
            execution = self._executions.acquire(user)
            if self._reentrant:
                self._shared = execution
            if self._device_lock is None:
                return self._call(_method, execution, sizes, how, *arguments)
            with self._device_lock:
                return self._call(_method, execution, sizes, how, *arguments)
        finally:
            self._executions.users.pop(user, None)

    def close(self) -> None:
        """Close every execution, then the program; nothing happens the second time."""
        if self._is_closed:
            return
        self._is_closed, self._shared = True, None
        self._calls["close"](close_all, [*self._executions.clear(), self.program])


def _held(program: Program, executions: int) -> Holding:
    nbytes = program.memory_bytes
    if executions > 1:
        nbytes += (executions - 1) * program.execution_bytes
    return Holding(nbytes, program.shared_bytes)


def _method(execution: Execution, sizes: Sequence[Any] | None, how: str, *arguments: Any) -> Any:
    """Call a method of an execution, at these sizes if it is told any."""
    return getattr(execution if sizes is None else execution.specialize(sizes), how)(*arguments)


class SameProgram(Program):
    """The program of another step, which closes it; executions are this step's own.

    Args:
        of: that program.
    """

    def __init__(self, of: Program) -> None:
        self.of = of

    def create_execution(self) -> Execution:
        """See `Program.create_execution`."""
        return self.of.create_execution()

    @property
    def memory_bytes(self) -> int:
        """What one execution holds: the program counts where it is closed."""
        return self.of.execution_bytes

    @property
    def execution_bytes(self) -> int:
        """See `Program.execution_bytes`."""
        return self.of.execution_bytes

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        """See `Program.shared_bytes`."""
        return self.of.shared_bytes

    def serialize(self) -> bytes | None:
        """See `Program.serialize`."""
        return self.of.serialize()
