"""Process of an isolated device, seen from the session: start, requests, time limits and end.

Starts the process of a device, and has it end with this one.

It is started anew, never forked: with this one's module path as it is (a folder from which this one imports nothing,
such as the current one, is none of it), and nothing else of its state. It keeps one end of a pair of sockets over which
nothing is ever said. When the other end is gone, this process is, and the system kills it, whatever its driver does at
the time (`worker.py`).

The process of a device, as this one sees it: what it is asked, on which channels, and its end.

Every question goes over a channel of its own for as long as it takes, and whoever asks waits there himself, with a
time limit: there is no thread between. What is under way when a limit is over, or when somebody interrupts it, cannot
be told from what hangs, so the process is killed. Nothing is ever asked twice.
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
from nnadapter.drivers.isolation.channels import (
    AbandonedComputationError,
    Channel,
    Computation,
    End,
    Lane,
    ends,
    pair,
    read_answer,
    written,
)
from nnadapter.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    DeviceUnavailableError,
    DriverError,
    InvalidOptionError,
    NNAdapterError,
    OutOfMemoryError,
    close_names,
    located,
)
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
"""Seconds, where nobody says otherwise: vendors' libraries are large, and their compilers slow."""
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
"""What is asked -> its phase."""


def read_limits(setting: object, device: str) -> Mapping[str, float] | None:
    """Return what a person says of isolation: None for none of it, else seconds by phase where they differ.

    Args:
        setting: true or false, or seconds by phase.
        device: that it is said of.

    Raises:
        InvalidOptionError: it is something else.
    """
    if isinstance(setting, Mapping):
        return {name: _seconds(name, value, device) for name, value in setting.items()}
    word = str(setting).lower() if isinstance(setting, (bool, int, str)) else ""
    if word not in _WORDS:
        raise InvalidOptionError(
            f"option 'isolate' of device {device!r} is true, false, or seconds by phase such as {{'run': 0.5}}, "
            f"got {setting!r}"
        )
    return {} if _WORDS[word] else None


def _seconds(name: Any, value: Any, device: str) -> float:
    if name not in PHASES:
        raise InvalidOptionError(
            f"option 'isolate' of device {device!r} names no phase {name!r}; {close_names(name, PHASES)}"
        )
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise InvalidOptionError(
            f"option 'isolate' of device {device!r} takes seconds above 0 for {name!r}, got {value!r}"
        )
    return float(value)


_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


_BEGIN = "import sys; sys.path[:] = sys.argv[3:]; from nnadapter.drivers.isolation.worker import main; main()"


class Started(NamedTuple):
    """A process, as it begins."""

    process: subprocess.Popen[bytes]
    door: Channel
    """Takes new channels."""
    lifeline: End


def start(output: BinaryIO) -> Started:
    """Start a process.

    Args:
        output: takes what it prints.

    Raises:
        DeviceUnavailableError: it does not start.
    """
    with ExitStack() as stack:
        try:
            door, other_door = pair()
            stack.callback(door.close)
            lifeline, other_lifeline = ends()
            stack.callback(lifeline.close)
            process = _process(output, other_door, other_lifeline)
        except (OSError, ValueError) as error:
            raise DeviceUnavailableError(f"the process of a device did not start: {error}") from error
        stack.pop_all()
    return Started(process, door, lifeline)


def _process(output: BinaryIO, door: End, lifeline: End) -> subprocess.Popen[bytes]:
    """The process, which gets these ends."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    with door, lifeline:
        descriptors = door.fileno(), lifeline.fileno()
        return subprocess.Popen(
            [sys.executable or "python", "-X", "faulthandler", "-c", _BEGIN, *map(str, descriptors), *path],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=descriptors,
            process_group=0,  # an interrupt from the keyboard is this process's alone
        )


_OUTPUT_CHARACTERS = 300
"""Characters of what the process said last."""
_OUTPUT_LIMIT_BYTES = 1 << 20
"""What it prints is cut off now and then, beyond so much."""
_OUTPUT_TAIL_BYTES = 1 << 14
_LAST_LINES = 30
_TICK_S = 0.5
"""How often somebody looks whether it is still used."""
_CLOSE_S = 30.0


class Child:
    """One process, which is being started.

    Args:
        device: its name.
        limit_s: seconds that it may take to open the device.
        on_tick: called now and then, from a thread of its own, as long as the process lives.
    """

    def __init__(self, device: str, limit_s: float, on_tick: Callable[[Child], None]) -> None:
        self.device = device
        self.lost = ""
        """Why it can no longer be asked; empty while it can."""
        self.is_ended = False
        """It was ended on purpose, and not because something went wrong."""
        self.has_delivered = False
        """It has computed something."""
        self.users: WeakSet[object] = WeakSet()
        """Contexts that are open."""
        self.is_counted = False
        """Its loss is."""
        self.closing: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        """Takes numbers of what nobody has any more, from finalizers, too."""
        self.told: Any = None
        """What it said when the device was open."""
        self.model: tuple[int, Any] = (0, None)
        self.model_lock = RLock()
        self._limit, self._on_tick = limit_s, on_tick
        self._error: BaseException | None = None
        self._started: Started | None = None
        self._idle: list[Lane] = []
        self._lanes: WeakSet[Lane] = WeakSet()
        self._ending = RLock()
        """A finalizer may end it in a thread that does."""
        try:
            self._said: BinaryIO = tempfile.TemporaryFile("a+b")  # noqa: SIM115  closed with the process
        except OSError as error:
            raise DeviceUnavailableError(f"the process of device {device!r} did not start: {error}") from error
        self._opening = Lock()
        """Held until it has opened the device, or failed."""
        self._opening.acquire()
        _all.add(self)
        register_after_fork(self)
        Thread(target=self._live, name=f"nnadapter process of {device}", daemon=True).start()

    @property
    def process_id(self) -> int:
        """The system's number of the process."""
        assert self._started is not None, "it was started"
        return self._started.process.pid

    def wait_until_open(self) -> None:
        """Wait until the device is open.

        Raises:
            NNAdapterError: it did not open.
        """
        if self._opening.locked():
            with self._opening:
                pass
        if self._error is not None:
            raise self._error

    def ask(self, command: str, limit_s: float, **arguments: Any) -> Any:
        """Have the process do something, and return what comes of it.

        Raises:
            DeviceTimeoutError: no answer came in time; the process is killed.
            DeviceLostError: the process died, now or before.
            NNAdapterError: what the driver raised.
        """
        aside: list[memoryview] = []
        contents = written((command, arguments), lambda buffer: aside.append(buffer.raw()))
        return self.converse(command, limit_s, lambda lane, end: lane.ask(contents, aside, end))

    def run(self, computation: Computation, limit_s: float) -> Any:
        """Have it compute; see `ask`, and `Lane.compute`."""
        result = self.converse("compute", limit_s, lambda lane, end: lane.compute(computation, end))
        self.has_delivered = True
        return result

    def converse(self, command: str, limit_s: float, talk: Callable[[Lane, float], tuple[bytes, Any]]) -> Any:
        """Say something over a channel that nobody else has, and return what comes of it; see `ask`.

        Args:
            command: is asked.
            limit_s: how long it may take.
            talk: says it, and returns the answer as bytes, or nothing and what came of it.
        """
        if self.lost:
            raise self._lost_error(DeviceLostError, command)
        lane: Lane | None = None
        try:
            lane = self._lane()
            lane.is_alone = len(self._lanes) == 1
            answer, value = talk(lane, time.monotonic() + limit_s)
        except AbandonedComputationError:
            raise self._stopped(command, "once nobody wanted it any more") from None
        except TimeoutError:
            raise self._stopped(command, f"within {limit_s:g} s") from None
        except (OSError, EOFError):
            raise self._died(command) from None
        finally:
            if lane is not None and not lane.is_talking:
                self._idle.append(lane)
            elif lane is not None and not self.lost:
                # An interrupt: neither what was sent nor what will be answered is known.
                self.end(f"device {self.device!r} was interrupted at {command!r} and was stopped", on_purpose=True)
        return self._read(command, answer) if answer else value

    def end(self, reason: str, *, on_purpose: bool = False) -> None:
        """Kill the process; nothing happens the second time. May be called from any thread."""
        with self._ending:
            if self.lost:
                return
            self.is_ended, self.lost = on_purpose, reason
            self._kill()
        self._give_back()

    def _kill(self) -> None:
        if self._started is not None:
            try:
                computes_no_more(self._started.process.pid)
            finally:
                self._started.process.kill()
                self._started.process.wait()

    def after_fork(self) -> None:
        """In a process that was forked: let go of what is the other one's."""
        self.lost, self.is_ended = "its process belongs to the one that this was forked from", True
        self._ending = RLock()
        self.closing, self._opening, self.model_lock = queue.SimpleQueue(), Lock(), RLock()
        if self._started is not None:
            self._started.process.returncode = 0  # it is no child of this one, and not to be waited for
        self._give_back(list(self._lanes))

    def _live(self) -> None:
        """Start, and look now and then after what goes on, as long as the process lives."""
        try:
            self._begin(start(self._said))
            answer = self.ask("open", self._limit, name=self.device)
            self.told = answer
        except BaseException as error:  # noqa: BLE001  whoever waits for it raises it
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
                with contextlib.suppress(NNAdapterError):
                    self.ask("close", _CLOSE_S, number=number)

    def _begin(self, started: Started) -> None:
        with self._ending:
            self._started = started
            computes_for_this(started.process.pid)
            if self.lost:  # somebody ended it as it was started
                self._kill()
                self._give_back()

    def _tidy(self) -> None:
        """Close channels that nobody has used lately, and forget what was printed long ago."""
        for lane in self._idle[:]:
            with contextlib.suppress(ValueError):
                self._idle.remove(lane)
                if lane.was_used:
                    lane.was_used = False
                    self._idle.append(lane)
                else:
                    lane.close()
        with contextlib.suppress(OSError, ValueError):
            if os.fstat(self._said.fileno()).st_size > _OUTPUT_LIMIT_BYTES:
                os.ftruncate(self._said.fileno(), 0)
        self._on_tick(self)

    def _lane(self) -> Lane:
        try:
            return self._idle.pop()
        except IndexError:
            assert self._started is not None, "it was started"
            channel, other = _new_pair(self.device)
            lane = Lane(channel, self.device)
            self._lanes.add(lane)
            with other:
                self._started.door.send(b"", [other.fileno()], time.monotonic() + _CLOSE_S)
            return lane

    def _read(self, command: str, answer: bytes) -> Any:
        try:
            reply = read_answer(answer, self.device)
            if isinstance(reply, tuple) and len(reply) == 2:
                if reply[0] is True:
                    return reply[1]
                raise _error(self.device, reply[1])
            raise DriverError(f"the process of device {self.device!r} gave no answer", device=self.device)
        except NNAdapterError as error:
            raise located(error, self.device, PHASE_OF[command]) from error.__cause__

    def _lost_error(self, kind: type[DeviceLostError], command: str) -> DeviceLostError:
        text = f"{self.lost}; it is started again when it is next used"
        return kind(text, device=self.device, phase=PHASE_OF[command])

    def _stopped(self, command: str, limit: str) -> DeviceLostError:
        self.end(f"device {self.device!r} gave no answer to {command!r} {limit} and was stopped")
        return self._lost_error(DeviceTimeoutError, command)

    def _died(self, command: str) -> DeviceLostError:
        if not self.lost and self._started is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._started.process.wait(5)
            code = self._started.process.poll()
            how = f"killed by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
            self.end(f"the process of device {self.device!r} ended at {command!r}, {how}{self._last_output()}")
        return self._lost_error(DeviceLostError, command)

    def _last_output(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            begin = max(0, os.fstat(self._said.fileno()).st_size - _OUTPUT_TAIL_BYTES)
            output = os.pread(self._said.fileno(), _OUTPUT_TAIL_BYTES, begin).decode(errors="replace")
            summary = " ".join(_crash(output) or " ".join(output.split("\n")[-_LAST_LINES:]).split())
            return f", saying: {summary[:_OUTPUT_CHARACTERS]}" if summary else ""
        return ""

    def _give_back(self, lanes: list[Lane] | None = None) -> None:
        for lane in (*self._idle, *(lanes or ())):
            lane.close()
        self._idle.clear()
        if self._started is not None:
            self._started.door.close()
            self._started.lifeline.close()
        self._said.close()
        self.closing.put(None)


def _new_pair(device: str) -> tuple[Channel, End]:
    try:
        return pair()
    except OSError as error:  # nothing is wrong with the process, and it is not to be started again
        raise OutOfMemoryError(
            f"there is no channel to the process of device {device!r}: {error}; close files, or allow more of them",
            device=device,
        ) from error


def _crash(output: str) -> list[str]:
    """What the trace of a crash says: which it was, and in which call of the driver; empty where there is none."""
    lines = output.split("\n")
    fatal = [line for line in lines if line.startswith("Fatal Python error")]
    calls = [f"in {line.partition(' in ')[2]}" for line in lines if " in device " in line and ", call " in line]
    return [*fatal[-1:], *calls[-1:]]


def _error(device: str, payload: Any) -> NNAdapterError:
    """What the driver raised, as it was where it is one of ours; else as a fault of the driver."""
    if not (isinstance(payload, tuple) and len(payload) == 3 and isinstance(payload[2], Mapping)):
        return DriverError(f"the process of device {device!r} gave an error that is none", device=device)
    kind, message, fields = payload
    error_class = getattr(errors, str(kind), None)
    if isinstance(error_class, type) and issubclass(error_class, NNAdapterError):
        with contextlib.suppress(TypeError):  # some need more than a message
            return error_class(str(message), **{str(name): value for name, value in fields.items()})
    return DriverError(f"{kind}: {message}", device=device)


def _end_all() -> None:
    for child in list(_all):
        child.end("this process ends", on_purpose=True)


_all: WeakSet[Child] = WeakSet()
atexit.register(_end_all)
