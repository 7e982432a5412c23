"""Host side of an isolated device's process.

The child is a new process, never a fork, and inherits only the module path. It watches a socket (`lifeline`), so it
ends with the host process.

Each request uses its own channel, and the caller itself waits. If a request times out or is interrupted, the child is
killed. Requests are never repeated.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from threading import Lock, RLock, Thread
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple
from weakref import WeakSet

from nnadapter import errors
from nnadapter.drivers.isolation import channels
from nnadapter.process.processors import computes_for_this, computes_no_more
from nnadapter.process.resources import register_after_fork

PHASES: Mapping[str, float] = MappingProxyType(
    {
        "open": 120.0,
        "context": 120.0,
        "judge": 120.0,
        "admit": 300.0,
        "compile": 900.0,
        "deserialize": 300.0,
        "create": 120.0,
        "run": 300.0,
        "close": 30.0,
    }
)
"""Default time limits in seconds by phase; vendors' compilers are slow."""
PHASE_OF: Mapping[str, str] = MappingProxyType(
    {
        "open": "open",
        "create_context": "context",
        "profile": "context",
        "supported": "judge",
        "take_model": "judge",
        "admit": "admit",
        "compile": "compile",
        "compile_whole_graph": "compile",
        "clone_with_constants": "compile",
        "serialize": "compile",
        "deserialize": "deserialize",
        "deserialize_view": "deserialize",
        "check_blob": "deserialize",
        "create_execution": "create",
        "memory": "run",
        "compute": "run",
        "compute_on_streams": "run",
        "compute_at": "run",
        "compute_on_device": "run",
        "footprint": "run",
        "memory_statistics": "run",
        "close": "close",
    }
)


def read_limits(setting: object, device: str) -> Mapping[str, float] | None:
    """Return time limits of an `isolate` setting; None if off."""
    if isinstance(setting, Mapping):
        return {name: _seconds(name, value, device) for name, value in setting.items()}
    word = str(setting).lower() if isinstance(setting, (bool, int, str)) else ""
    if word not in _WORDS:
        raise errors.InvalidOptionError(
            f"option 'isolate' of device {device!r} is {setting!r}, expected true, false, or seconds by phase such as "
            "{'run': 0.5}"
        )
    return {} if _WORDS[word] else None


def _seconds(name: Any, value: Any, device: str) -> float:
    if name not in PHASES:
        raise errors.InvalidOptionError(
            f"option 'isolate' of device {device!r} has the unknown phase {name!r}; {errors.close_names(name, PHASES)}"
        )
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise errors.InvalidOptionError(
            f"option 'isolate' of device {device!r} has {value!r} for phase {name!r}, expected seconds above 0"
        )
    return float(value)


_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


_BEGIN = "import sys; sys.path[:] = sys.argv[3:]; from nnadapter.drivers.isolation.worker import main; main()"


class Started(NamedTuple):
    """Running child process."""

    process: subprocess.Popen[bytes]
    door: channels.Channel
    lifeline: channels.End


def start(output: BinaryIO) -> Started:
    """Start a child process that prints into `output`."""
    with ExitStack() as stack:
        try:
            door, other_door = channels.pair()
            stack.callback(door.close)
            lifeline, other_lifeline = channels.ends()
            stack.callback(lifeline.close)
            process = _process(output, other_door, other_lifeline)
        except (OSError, ValueError) as error:
            raise errors.DeviceUnavailableError(f"the process of a device did not start: {error}") from error
        stack.pop_all()
    return Started(process, door, lifeline)


def _process(output: BinaryIO, door: channels.End, lifeline: channels.End) -> subprocess.Popen[bytes]:
    path = [entry for entry in sys.path if isinstance(entry, str)]
    with door, lifeline:
        descriptors = door.fileno(), lifeline.fileno()
        return subprocess.Popen(
            [sys.executable or "python", "-X", "faulthandler", "-c", _BEGIN, *map(str, descriptors), *path],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=descriptors,
            process_group=0,  # keyboard interrupts go to the host only
        )


_OUTPUT_CHARACTERS = 300
_OUTPUT_LIMIT_BYTES = 1 << 20
_OUTPUT_TAIL_BYTES = 1 << 14
_LAST_LINES = 30
_TICK_S = 0.5
_CLOSE_S = 30.0


class Child:
    """Process of a device, which starts in the background. A thread calls `on_tick` regularly."""

    def __init__(self, device: str, limit_s: float, on_tick: Callable[[Child], None]) -> None:
        self.device = device
        self.lost = ""
        """Reason for the loss of the process; empty while it lives."""
        self.is_ended = False
        self.has_delivered = False
        self.users: WeakSet[object] = WeakSet()
        self.is_counted = False
        self.closing: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.opening_answer: Any = None
        self.model: tuple[int, Any] = (0, None)
        self.model_lock = RLock()
        self._limit, self._on_tick = limit_s, on_tick
        self._error: BaseException | None = None
        self._started: Started | None = None
        self._idle: list[channels.Lane] = []
        self._lanes: WeakSet[channels.Lane] = WeakSet()
        self._ending = RLock()
        """Reentrant, because a finalizer may call `end` inside `end`."""
        try:
            self._output: BinaryIO = tempfile.TemporaryFile("a+b")  # noqa: SIM115  closed with the process
        except OSError as error:
            raise errors.DeviceUnavailableError(f"the process of device {device!r} did not start: {error}") from error
        self._opening = Lock()
        """Locked until the device is open or has failed to open."""
        self._opening.acquire()
        _all.add(self)
        register_after_fork(self)
        Thread(target=self._live, name=f"nnadapter process of {device}", daemon=True).start()

    @property
    def process_id(self) -> int:
        assert self._started is not None, "it was started"
        return self._started.process.pid

    def wait_until_open(self) -> None:
        if self._opening.locked():
            with self._opening:
                pass
        if self._error is not None:
            raise self._error

    def ask(self, command: str, limit_s: float, **arguments: Any) -> Any:
        """Send a request to the process, wait, and return the result.

        Raises:
            DeviceTimeoutError: no answer in time; the process is killed.
            DeviceLostError: the process died.
            NNAdapterError: from the driver.
        """
        aside: list[memoryview] = []
        contents = channels.written((command, arguments), lambda buffer: aside.append(buffer.raw()))
        return self.converse(command, limit_s, lambda lane, end: lane.ask(contents, aside, end))

    def run(self, computation: channels.Computation, limit_s: float) -> Any:
        result = self.converse("compute", limit_s, lambda lane, end: lane.compute(computation, end))
        self.has_delivered = True
        return result

    def converse(self, command: str, limit_s: float, talk: Callable[[channels.Lane, float], tuple[bytes, Any]]) -> Any:
        """Call `talk(lane, deadline)` with an idle lane, and return the result of the request that `talk` sends.

        `talk` returns (serialized answer, None) or (b"", result).
        """
        if self.lost:
            raise self._lost_error(errors.DeviceLostError, command)
        lane: channels.Lane | None = None
        try:
            lane = self._lane()
            lane.is_alone = len(self._lanes) == 1
            answer, value = talk(lane, time.monotonic() + limit_s)
        except channels.AbandonedComputationError:
            raise self._stopped(command, f"did not answer {command!r} after the cancellation") from None
        except TimeoutError:
            raise self._stopped(command, f"did not answer {command!r} within {limit_s:g} s") from None
        except (OSError, EOFError):
            raise self._died(command) from None
        finally:
            if lane is not None and not lane.is_talking:
                self._idle.append(lane)
            elif lane is not None and not self.lost:
                # The state of the conversation is unknown.
                self.end(f"device {self.device!r} was interrupted during {command!r} and was stopped", on_purpose=True)
        return self._read(command, answer) if answer else value

    def end(self, reason: str, *, on_purpose: bool = False) -> None:
        """Kill the process, at most once; later errors include `reason`. Thread-safe.

        An end `on_purpose` does not count as a loss.
        """
        with self._ending:
            if self.lost:
                return
            self.is_ended, self.lost = on_purpose, reason
            self._kill()
        self._release()

    def _kill(self) -> None:
        if self._started is not None:
            try:
                computes_no_more(self._started.process.pid)
            finally:
                self._started.process.kill()
                self._started.process.wait()

    def after_fork(self) -> None:
        self.lost, self.is_ended = "its process belongs to the parent of this forked process", True
        self._ending = RLock()
        self.closing, self._opening, self.model_lock = queue.SimpleQueue(), Lock(), RLock()
        if self._started is not None:
            self._started.process.returncode = 0  # not our child
        self._release(list(self._lanes))

    def _live(self) -> None:
        try:
            self._begin(start(self._output))
            answer = self.ask("open", self._limit, name=self.device)
            self.opening_answer = answer
        except BaseException as error:  # noqa: BLE001  raised by the waiting thread
            self._error = error
            self.end(f"device {self.device!r} did not open")
        finally:
            self._opening.release()
        while not self.lost:
            try:
                number = self.closing.get(timeout=_TICK_S)
            except queue.Empty:
                self._tidy()
                continue
            if number is not None:
                with contextlib.suppress(errors.NNAdapterError):
                    self.ask("close", _CLOSE_S, number=number)

    def _begin(self, started: Started) -> None:
        with self._ending:
            self._started = started
            computes_for_this(started.process.pid)
            if self.lost:  # ended while starting
                self._kill()
                self._release()

    def _tidy(self) -> None:
        for lane in self._idle[:]:
            with contextlib.suppress(ValueError):
                self._idle.remove(lane)
                if lane.was_used:
                    lane.was_used = False
                    self._idle.append(lane)
                else:
                    lane.close()
        with contextlib.suppress(OSError, ValueError):
            if os.fstat(self._output.fileno()).st_size > _OUTPUT_LIMIT_BYTES:
                os.ftruncate(self._output.fileno(), 0)
        self._on_tick(self)

    def _lane(self) -> channels.Lane:
        try:
            return self._idle.pop()
        except IndexError:
            assert self._started is not None, "it was started"
            channel, other = _new_pair(self.device)
            lane = channels.Lane(channel, self.device)
            self._lanes.add(lane)
            with other:
                self._started.door.send(b"", [other.fileno()], time.monotonic() + _CLOSE_S)
            return lane

    def _read(self, command: str, answer: bytes) -> Any:
        try:
            reply = channels.read_answer(answer, self.device)
            if isinstance(reply, tuple) and len(reply) == 2:
                if reply[0] is True:
                    return reply[1]
                raise _error(self.device, reply[1])
            text = f"the process of device {self.device!r} returned an answer of unknown form; report it to the vendor"
            raise errors.DriverError(text, device=self.device)
        except errors.NNAdapterError as error:
            raise errors.located(error, self.device, PHASE_OF[command]) from error.__cause__

    def _lost_error(self, kind: type[errors.DeviceLostError], command: str) -> errors.DeviceLostError:
        text = f"{self.lost}; the next use starts it again"
        return kind(text, device=self.device, phase=PHASE_OF[command])

    def _stopped(self, command: str, problem: str) -> errors.DeviceLostError:
        self.end(f"device {self.device!r} {problem} and was stopped")
        return self._lost_error(errors.DeviceTimeoutError, command)

    def _died(self, command: str) -> errors.DeviceLostError:
        if not self.lost and self._started is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._started.process.wait(5)
            code = self._started.process.poll()
            how = f"killed by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
            self.end(f"the process of device {self.device!r} ended during {command!r}, {how}{self._last_output()}")
        return self._lost_error(errors.DeviceLostError, command)

    def _last_output(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            begin = max(0, os.fstat(self._output.fileno()).st_size - _OUTPUT_TAIL_BYTES)
            output = os.pread(self._output.fileno(), _OUTPUT_TAIL_BYTES, begin).decode(errors="replace")
            summary = " ".join(_crash(output) or " ".join(output.split("\n")[-_LAST_LINES:]).split())
            return f", with output: {summary[:_OUTPUT_CHARACTERS]}" if summary else ""
        return ""

    def _release(self, lanes: list[channels.Lane] | None = None) -> None:
        for lane in (*self._idle, *(lanes or ())):
            lane.close()
        self._idle.clear()
        if self._started is not None:
            self._started.door.close()
            self._started.lifeline.close()
        self._output.close()
        self.closing.put(None)


def _new_pair(device: str) -> tuple[channels.Channel, channels.End]:
    try:
        return channels.pair()
    except OSError as error:  # the process is fine and must not be restarted
        raise errors.OutOfMemoryError(
            f"cannot create a channel to the process of device {device!r}: {error}; close files, or raise their limit",
            device=device,
        ) from error


def _crash(output: str) -> list[str]:
    lines = output.split("\n")
    fatal = [line for line in lines if line.startswith("Fatal Python error")]
    calls = [f"in {line.partition(' in ')[2]}" for line in lines if " in device " in line and ", call " in line]
    return [*fatal[-1:], *calls[-1:]]


def _error(device: str, payload: Any) -> errors.NNAdapterError:
    if not (isinstance(payload, tuple) and len(payload) == 3 and isinstance(payload[2], Mapping)):
        text = f"the process of device {device!r} reported an error of unknown form; report it to the vendor"
        return errors.DriverError(text, device=device)
    kind, message, fields = payload
    error_class = getattr(errors, str(kind), None)
    if isinstance(error_class, type) and issubclass(error_class, errors.NNAdapterError):
        with contextlib.suppress(TypeError):  # some constructors need more arguments
            return error_class(str(message), **{str(name): value for name, value in fields.items()})
    return errors.DriverError(f"{kind}: {message}", device=device)


def _end_all() -> None:
    for child in list(_all):
        child.end("this process ends", on_purpose=True)


_all: WeakSet[Child] = WeakSet()
atexit.register(_end_all)
