"""A device in a process of its own, so that a crash or a hang of its driver is an error and not the end.

The process is started anew, never forked, and opens the device by its name. A pipe goes each way: whoever's other side
is gone learns of it at once. Every request has a time limit; after it the process is killed. What is lost stays lost:
the device, and everything that was made on it, raises from then on; open another one.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import IO, Any, BinaryIO

from nnadapter import errors
from nnadapter.drivers.capability import Capability
from nnadapter.drivers.interface import Admission, Compatibility, Context, Device, Execution, Program, SegmentModel
from nnadapter.drivers.isolated_ahead import Ahead
from nnadapter.drivers.pipes import receive, send
from nnadapter.errors import DeviceLostError, DeviceTimeoutError, DriverError, NNAdapterError
from nnadapter.ir.operand import Array
from partition.verdict import Verdict

TIME_LIMIT_S = 30.0
"""Seconds that one request may take."""
_START_S = 120.0
"""Seconds that the process may take to start and open its device: vendors' libraries are large."""
_TOLD = 300
"""Characters of what the process said last."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the process holds."""

    resident_bytes: int
    """0 where the system does not say."""
    handles: int
    """Open files, sockets and pipes; 0 where the system does not say."""


@dataclass(frozen=True, slots=True)
class Computed:
    """One of several computations."""

    results: list[Array]
    changed_inputs: tuple[int, ...]
    """Positions of the inputs that the driver wrote to."""


class IsolatedDevice(Device):
    """A device that runs elsewhere; otherwise like any other. One request at a time.

    Args:
        name: the device, as in `nnadapter devices`.
        time_limit_s: seconds that one request may take.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: as `nnadapter.drivers.registry.open_device`.
        DeviceLostError: its process died while it opened.
    """

    def __init__(self, name: str, *, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._name, self._limit = name, time_limit_s
        self._models = count(1)
        self._model: tuple[int, SegmentModel] = (0, None)
        self._lock = threading.RLock()
        self._lost = ""
        self._said: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  closed with the device
        self._process = _start(self._said)
        self._answers: queue.SimpleQueue[tuple[bool, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(self._process.stdout, self._answers), daemon=True).start()
        try:
            self._capability: Capability = self.ask("open", limit_s=_START_S, name=name)
        except NNAdapterError:
            self.close()
            raise

    @property
    def capability(self) -> Capability:
        """See `Device.capability`."""
        return self._capability

    @property
    def lost(self) -> str:
        """Why the device can no longer be used; empty while it can."""
        return self._lost

    @property
    def process_id(self) -> int:
        """The system's number of the process."""
        return self._process.pid

    def create_context(self, options: Mapping[str, Any]) -> IsolatedContext:
        """See `Device.create_context`; options that are left out have their defaults.

        Raises:
            InvalidOptionError: an option does not exist or does not fit.
        """
        return IsolatedContext(self, self.ask("create_context", options=dict(options)))

    def compute(self, jobs: Sequence[tuple[Execution, Sequence[Array]]], *, at_once: bool = False) -> list[Computed]:
        """Compute one job after the other, or all at once in threads; results are fetched after the last is done."""
        numbered = [(number_of(execution), list(inputs)) for execution, inputs in jobs]
        results, changed = self.ask("compute", jobs=numbered, at_once=at_once)
        return [Computed(*each) for each in zip(results, changed, strict=True)]

    def compute_ahead(
        self, before: Sequence[tuple[Execution, Sequence[Array]]], behind: Sequence[tuple[Execution, Sequence[Array]]]
    ) -> Ahead | None:
        """Compute jobs as work of two streams; see `isolated_ahead.compute_ahead`."""
        first, second = ([(number_of(each), list(inputs)) for each, inputs in jobs] for jobs in (before, behind))
        ahead: Ahead | None = self.ask("compute_ahead", before=first, behind=second)
        return ahead

    def footprint(self) -> Footprint:
        """What the process holds now."""
        return Footprint(*self.ask("footprint"))

    def hold(self, model: SegmentModel) -> int:
        """Send a model, unless it was the last one, and return its number."""
        with self._lock:
            number, last = self._model
            if last is not model:
                number = next(self._models)
                self.ask("take_model", number=number, model=model)
                self._model = number, model
            return number

    def ask(self, what: str, *, limit_s: float | None = None, **arguments: Any) -> Any:
        """Have the process do something, and return what comes of it.

        Raises:
            DeviceTimeoutError: no answer came in time; the process is killed.
            DeviceLostError: the process died, now or before.
            NNAdapterError: what the driver raised.
        """
        with self._lock:
            if self._lost:
                raise DeviceLostError(f"{self._lost}; open it again", device=self._name)
            limit = self._limit if limit_s is None else limit_s
            try:
                assert self._process.stdin is not None
                send(self._process.stdin, (what, arguments))
                answer = self._answers.get(timeout=limit)
            except OSError:
                raise self._died(what) from None
            except queue.Empty:
                self._end(f"device {self._name!r} gave no answer to {what!r} within {limit:g} s and was stopped")
                raise DeviceTimeoutError(f"{self._lost}; open it again", device=self._name) from None
            except KeyboardInterrupt:  # what was sent, and what will be answered, is not known
                self._end(f"device {self._name!r} was interrupted at {what!r} and was stopped")
                raise
        if answer is None:
            raise self._died(what)
        good, value = answer
        if not good:
            raise _error(self._name, *value)
        return value

    def close(self) -> None:
        """See `Device.close`: the process ends."""
        with self._lock:
            if not self._lost:
                self._end(f"device {self._name!r} was closed")
            self._said.close()

    def _died(self, what: str) -> DeviceLostError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.poll()
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        self._end(f"the process of device {self._name!r} ended at {what!r}, {how}{self._last_words()}")
        return DeviceLostError(f"{self._lost}; open it again", device=self._name)

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").split("\n")
        told = " ".join(" ".join(line for line in lines[-30:] if line.strip()).split())
        return f", saying: {told[:_TOLD]}" if told else ""

    def _end(self, why: str) -> None:
        self._lost = why
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class IsolatedContext(Context):
    """See `IsolatedDevice`; `close` frees it there."""

    def __init__(self, device: IsolatedDevice, number: int) -> None:
        self.device, self.number = device, number

    def supported(self, model: SegmentModel) -> Sequence[Verdict]:
        """See `Context.supported`."""
        verdicts: list[Verdict] = self.device.ask("supported", context=self.number, model=self.device.hold(model))
        return verdicts

    def admit(self, model: SegmentModel) -> Admission:
        """See `Context.admit`."""
        admission: Admission = self.device.ask("admit", context=self.number, model=self.device.hold(model))
        return admission

    def compile(self, model: SegmentModel) -> Program:
        """See `Context.compile`."""
        model_number = self.device.hold(model)
        return IsolatedProgram(self.device, self.device.ask("compile", context=self.number, model=model_number))

    def bind(self, program: Program, model: SegmentModel) -> Program | None:
        """See `Context.bind`."""
        assert isinstance(program, IsolatedProgram), "programs of a context are its own"
        arguments = {"program": program.number, "model": self.device.hold(model)}
        number = self.device.ask("bind", context=self.number, **arguments)
        return None if number is None else IsolatedProgram(self.device, number)

    def deserialize(self, blob: bytes) -> Program:
        """See `Context.deserialize`."""
        return IsolatedProgram(self.device, self.device.ask("deserialize", context=self.number, blob=blob))

    def check_blob(self, blob: memoryview) -> Compatibility | None:
        """See `Context.check_blob`.

        Raises:
            DriverError: the driver raised, or gave something else.
        """
        says: Compatibility | None = self.device.ask("check_blob", context=self.number, blob=bytes(blob))
        return says

    def close(self) -> None:
        """See `Context.close`."""
        self.device.ask("close", number=self.number)


class IsolatedProgram(Program):
    """See `IsolatedDevice`."""

    def __init__(self, device: IsolatedDevice, number: int) -> None:
        self.device, self.number = device, number

    def create_execution(self) -> Execution:
        """See `Program.create_execution`."""
        return IsolatedExecution(self.device, self.device.ask("create_execution", program=self.number))

    @cached_property
    def _memory(self) -> tuple[int, int, Mapping[Hashable, int]]:
        """What the program said first: a device that computes is not asked again."""
        memory: tuple[int, int, Mapping[Hashable, int]] = self.device.ask("memory", program=self.number)
        return memory

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`."""
        return self._memory[0]

    @property
    def execution_bytes(self) -> int:
        """See `Program.execution_bytes`."""
        return self._memory[1]

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        """See `Program.shared_bytes`."""
        return {(id(self.device), key): nbytes for key, nbytes in self._memory[2].items()}

    def serialize(self) -> bytes | None:
        """See `Program.serialize`."""
        blob: bytes | None = self.device.ask("serialize", program=self.number)
        return blob

    def close(self) -> None:
        """See `Program.close`."""
        self.device.ask("close", number=self.number)


class IsolatedExecution(Execution):
    """See `IsolatedDevice`."""

    def __init__(self, device: IsolatedDevice, number: int) -> None:
        self.device, self.number = device, number

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`."""
        return self.device.compute([(self, inputs)])[0].results

    def close(self) -> None:
        """See `Execution.close`."""
        self.device.ask("close", number=self.number)


def number_of(execution: Execution) -> int:
    """The number by which the process knows an execution.

    Raises:
        DriverError: it is of another device.
    """
    if not isinstance(execution, IsolatedExecution):
        raise DriverError(f"got {type(execution).__name__}, expected an execution of an isolated device")
    return execution.number


def _start(said: BinaryIO) -> subprocess.Popen[bytes]:
    """The process, with this one's module path and nothing else of its state."""
    path = os.pathsep.join(each or os.getcwd() for each in sys.path)  # noqa: PTH109  the text is what the variable holds
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "nnadapter.drivers.isolated_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
        env={**os.environ, "PYTHONPATH": path},
    )


def _listen(answers: IO[bytes] | None, waiting: queue.SimpleQueue[tuple[bool, Any] | None]) -> None:
    """Read answers; None says that the process is gone."""
    assert answers is not None, "the process is started with a pipe"
    try:
        while True:
            waiting.put(receive(answers))
    except (EOFError, OSError, ValueError):  # ValueError: this side closed the pipe
        waiting.put(None)


def _error(device: str, kind: str, message: str) -> NNAdapterError:
    """What the driver raised, as it was where it is one of ours; else as a fault of the driver."""
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, NNAdapterError):
        with contextlib.suppress(TypeError):  # some need more than a message
            return known(message)
    return DriverError(f"{kind}: {message}", device=device)
