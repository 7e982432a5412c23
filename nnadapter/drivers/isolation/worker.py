"""Entry point of an isolated device's process, and the objects that it serves.

Each channel has a thread. Exceptions of drivers become answers. Host memory with inputs is mapped read-only, so
writing to it crashes only this process. SIGKILL at the closing of the lifeline ends the process even if a driver holds
the GIL.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn

import numpy as np

from nnadapter.drivers import Capability, Compatibility, Context, Control, DeviceInfo, Program, Unsupported
from nnadapter.drivers.arenas import ALIGNMENT
from nnadapter.drivers.boundary import ask_compatibility, checked_bytes, create_execution, read_only
from nnadapter.drivers.failures import NamedCalls
from nnadapter.drivers.isolation.channels import (
    HEADER_BYTES,
    LANE_BLOCK,
    Channel,
    Spec,
    StreamResults,
    compute_on_device,
    compute_on_streams,
    from_descriptor,
    read,
    type_named,
    written,
)
from nnadapter.drivers.registry import device_info, open_device
from nnadapter.drivers.selection import check_options
from nnadapter.drivers.shared_memory import mapped
from nnadapter.errors import FAILURES, CompilationError, DriverError, ExecutionError, NNAdapterError, describe
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array, dtype_name
from nnadapter.ir.structure import numbers
from nnadapter.ir.symbolic_numbers import SymbolicNumber, SymbolicTrace
from nnadapter.records import replace

SizedTask = tuple[Any, Sequence[int], Sequence[Array]]
"""Execution, symbolic sizes in trace order, inputs."""


def at_sizes(model: Model, task: SizedTask) -> tuple[Any, Sequence[Array]] | None:
    """Return the specialized execution and inputs; None outside of the guards, which only the driver's trace knows."""
    execution, variables, inputs = task
    sizes = trace_of(model).replay(variables)
    return None if sizes is None else (execution.specialize(sizes), inputs)


def trace_of(model: Model) -> SymbolicTrace:
    """Return the trace of a model with dynamic shapes."""
    return next(number.trace for number in numbers(model) if isinstance(number, SymbolicNumber))


Job = tuple[int, Sequence[Array]]
SizedJob = tuple[int, Sequence[int], Sequence[Array]]
"""Execution, symbolic sizes in trace order, inputs."""
Results = tuple[list[list[Array]], list[tuple[int, ...]]]
"""Results and overwritten inputs per job."""


class _ObjectTable:
    def __init__(self) -> None:
        self._numbers = count(1)
        self._lock = Lock()
        self._by_number: dict[int, Any] = {}
        self._of: dict[int, int] = {}

    def __getitem__(self, number: int) -> Any:
        return self._by_number[number]

    def keep(self, resource: Any, of: int = 0) -> int:
        number = next(self._numbers)
        self._by_number[number], self._of[number] = resource, of
        return number

    def pop_with_dependents(self, number: int) -> list[Any]:
        """Remove an object and its dependents, in closing order."""
        with self._lock:
            if number not in self._by_number:
                return []
            dependents = [dependent for dependent, of in list(self._of.items()) if of == number]
            del self._of[number]
            resource = self._by_number.pop(number)
        return [*(thing for dependent in dependents for thing in self.pop_with_dependents(dependent)), resource]


class DeviceServer:
    """Handlers of requests; method `_COMMAND` serves the request `COMMAND`."""

    def __init__(self) -> None:
        self._objects = _ObjectTable()
        self._name = ""
        self._model: tuple[int, Any] = (0, None)

    def call(self, command: str) -> Callable[..., Any]:
        answers: Callable[..., Any] = getattr(self, f"_{command}")
        return answers

    def execution(self, number: int) -> tuple[Any, Callable[..., Any]]:
        return self._objects[number], self._calls["compute"]

    def _open(self, name: str) -> tuple[Capability, DeviceInfo]:
        self._name, self._calls = name, NamedCalls(name)
        self._device = open_device(name)
        return self._device.capability, replace(device_info(self._name), capability=None)

    def _create_context(self, options: Mapping[str, Any]) -> int:
        device = self._device
        context = self._calls["create_context"](device.create_context, check_options(self._name, options))
        if not isinstance(context, Context):
            raise DriverError(f"the driver returned {type(context).__name__}, expected a Context", device=self._name)
        return self._objects.keep(context)

    def _profile(self, context: int) -> Any:
        return self._calls["profile"](self._objects[context].profile)

    def _memory_statistics(self) -> Any:
        return self._calls["memory_statistics"](self._device.memory_statistics)

    def _compute_on_streams(self, first_jobs: Sequence[Job], second_jobs: Sequence[Job]) -> StreamResults | None:
        resources = self._objects
        first, second = ([(resources[number], inputs) for number, inputs in jobs] for jobs in (first_jobs, second_jobs))
        return compute_on_streams(self._device, first, second)

    def _compute_on_device(self, jobs: Sequence[Job]) -> StreamResults | None:
        return compute_on_device(self._device, [(self._objects[number], inputs) for number, inputs in jobs])

    def _take_model(self, number: int, model: Any) -> None:
        """Store the model: drivers may rely on its identity."""
        self._model = (number, model)

    def _supported(self, context: int, model: int) -> list[Any]:
        return list(self._calls["supported"](self._objects[context].supported, self._received_model(model)))

    def _admit(self, context: int, model: int) -> Any:
        return self._calls["admit"](self._objects[context].admit, self._received_model(model))

    def _compile(self, context: int, model: int) -> int:
        program = self._calls["compile"](self._objects[context].compile, self._received_model(model))
        return self._program(program, context)

    def _compile_whole_graph(self, context: int, model: int) -> int:
        program = self._calls["compile_whole_graph"](
            self._objects[context].compile_whole_graph, self._received_model(model)
        )
        return self._program(program, context)

    def _clone_with_constants(self, context: int, program: int, model: int) -> int | None:
        bound = self._calls["clone_with_constants"](
            self._objects[context].clone_with_constants, self._objects[program], self._received_model(model)
        )
        return None if bound is None else self._program(bound, context)

    def _deserialize(self, context: int, blob: Any) -> int:
        call = self._calls["deserialize"]
        return self._program(call(self._objects[context].deserialize, bytes(memoryview(blob))), context)

    def _deserialize_view(self, context: int, blob: Any) -> int:
        call = self._calls["deserialize"]
        return self._program(call(self._objects[context].deserialize_view, memoryview(blob).toreadonly()), context)

    def _check_blob(self, context: int, blob: Any) -> Compatibility | None:
        view = memoryview(blob).toreadonly()
        compatibility: Compatibility | Unsupported | None = self._calls["check_blob"](
            ask_compatibility, self._objects[context], view
        )
        if isinstance(compatibility, Unsupported):
            raise DriverError(compatibility.detail, device=self._name)
        return compatibility

    def _serialize(self, program: int) -> bytes | None:
        return checked_bytes(self._calls["serialize"](self._objects[program].serialize))

    def _memory(self, program: int) -> tuple[int, int, Mapping[Hashable, int]]:
        compiled_program = self._objects[program]
        return (
            int(compiled_program.memory_bytes),
            int(compiled_program.execution_bytes),
            dict(compiled_program.shared_bytes),
        )

    def _create_execution(self, program: int) -> int:
        execution = self._calls["create_execution"](create_execution, self._objects[program])
        return self._objects.keep(execution, program)

    def _compute(self, jobs: Sequence[Job], at_once: bool) -> Results:
        return _computed_all([(self._objects[execution], inputs) for execution, inputs in jobs], at_once)

    def _compute_at(self, context: int, model: int, jobs: Sequence[SizedJob]) -> tuple[Results, list[int]]:
        segment_model = self._received_model(model)
        tasks = [at_sizes(segment_model, (self._objects[execution], *arguments)) for execution, *arguments in jobs]
        positions = [position for position, task in enumerate(tasks) if task is not None]
        return _computed_all([task for task in tasks if task is not None], at_once=False), positions

    def _close(self, number: int) -> None:
        failures = []
        for resource in self._objects.pop_with_dependents(number):
            try:
                self._calls["close"](resource.close)
            except Exception as error:  # noqa: BLE001  close the others, too
                failures.append(error)
        if failures:
            raise failures[0]

    def _footprint(self) -> tuple[int, int]:
        process = Path("/proc/self")
        if not (process / "statm").exists():
            return 0, 0
        pages = int((process / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(list((process / "fd").iterdir()))

    def _received_model(self, number: int) -> Any:
        model_number, model = self._model
        assert model_number == number, "the host sends a model before it asks about it"
        return model

    def _program(self, program: Any, context: int) -> int:
        if not isinstance(program, Program):
            raise CompilationError(
                f"the driver returned {type(program).__name__}, expected a Program", device=self._name
            )
        return self._objects.keep(program, context)


def _computed_all(tasks: Sequence[tuple[Any, Sequence[Array]]], at_once: bool) -> Results:
    """Run tasks and keep all results until the end."""
    copied_tasks = [(execution, [read_only(np.array(array)) for array in inputs]) for execution, inputs in tasks]
    if at_once:
        with ThreadPoolExecutor(len(copied_tasks)) as pool:
            results = list(pool.map(_computed, copied_tasks))
    else:
        results = list(map(_computed, copied_tasks))
    changed = [
        tuple(
            i
            for i, (copied_array, original_array) in enumerate(zip(copies, original, strict=True))
            if _differs(copied_array, original_array)
        )
        for (_, copies), (_, original) in zip(copied_tasks, tasks, strict=True)
    ]
    return results, changed


def _computed(task: tuple[Any, Sequence[Array]]) -> list[Array]:
    execution, inputs = task
    results = execution.compute(inputs)
    for position, result in enumerate(results):
        if type(result) is not np.ndarray:
            type_name = type(result).__name__
            raise ExecutionError(f"the driver returned {type_name} for output {position}, expected a numpy array")
    return list(results)


def _differs(copied_array: Array, original_array: Array) -> bool:
    if copied_array.dtype == object:
        return bool((copied_array != original_array).any())
    return copied_array.tobytes() != original_array.tobytes()


class LaneServer:
    """Device end of a lane, for one thread."""

    def __init__(self, channel: Channel, served: DeviceServer) -> None:
        self._channel, self._served = channel, served
        self._blocks: dict[int, tuple[mmap.mmap, mmap.mmap]] = {}
        """Read-only and writable mappings."""

    def answer(self) -> None:
        """Answer one message."""
        contents, descriptors = self._channel.receive_with_descriptors()
        message = pickle.loads(contents)
        if len(message) == 2:
            self._channel.send(_pickled(self._handle(message, descriptors)))
            return
        answer = self._computed(message, descriptors)
        self._channel.send(answer if isinstance(answer, bytes) else _pickled(answer))

    def _handle(self, message: tuple[bytes, Sequence[int]], descriptors: Sequence[int]) -> tuple[bool, Any]:
        contents, sizes = message
        try:
            command, arguments = read(contents, _pieces(sizes, descriptors))
            return True, self._served.call(command)(**arguments)
        except FAILURES as error:  # a driver may raise anything
            return False, _error_as_data(error)

    def _computed(self, message: Sequence[Any], descriptors: Sequence[int]) -> Any:
        number, inputs, outputs, sizes, seconds, blocks, freed_blocks = message
        try:
            self._map(blocks, descriptors)
            for block_number in freed_blocks:
                self._blocks.pop(block_number, None)
            execution, call = self._served.execution(number)
            arrays = [self._array(spec, writable=False) for spec in inputs]
            into = None if outputs is None else [self._array(spec, writable=True) for spec in outputs]
            if sizes is not None:
                execution = call(execution.specialize, sizes)
            results = self._results(execution, call, arrays, into, seconds)
            if into is not None and _written(results, into):
                return b""
            return self._place_results(results)
        except FAILURES as error:  # as above
            return False, _error_as_data(error)

    def _results(
        self,
        execution: Any,
        call: Callable[..., Any],
        arrays: Sequence[Array],
        into: Sequence[Array] | None,
        seconds: float | None,
    ) -> Sequence[Array]:
        if seconds is not None:
            lane_block = self._blocks[LANE_BLOCK][0]
            control = Control(deadline_seconds=seconds, cancelled=lambda: lane_block[0] != 0)
            results = call(execution.compute_within, arrays, control)
        elif into is not None:
            results = call(execution.compute_into, arrays, into)
        else:
            results = call(execution.compute, arrays)
        for position, result in enumerate(results):
            if type(result) is not np.ndarray:
                type_name = type(result).__name__
                raise ExecutionError(f"the driver returned {type_name} for output {position}, expected a numpy array")
        return results  # type: ignore[no-any-return]

    def _place_results(self, results: Sequence[Array]) -> Any:
        """Copy results into the lane's memory, which may have to grow."""
        specs: list[Any] = []
        nbytes = HEADER_BYTES
        for result in results:
            if result.dtype.hasobject:
                specs.append(result)
                continue
            specs.append((dtype_name(result.dtype), result.shape, nbytes))
            nbytes += -(-result.nbytes // ALIGNMENT) * ALIGNMENT
        if any(_overlaps(result, lane_array) for result in results for lane_array in self._own_arrays()):
            results = [np.array(result) for result in results]
        if LANE_BLOCK not in self._blocks or len(self._blocks[LANE_BLOCK][1]) < nbytes:
            self._channel.send(written(("more", nbytes)))
            contents, descriptors = self._channel.receive_with_descriptors()
            self._map(pickle.loads(contents), descriptors)
        for spec, result in zip(specs, results, strict=True):
            if isinstance(spec, tuple):
                name, shape, offset = spec
                np.copyto(np.ndarray(shape, type_named(name), self._blocks[LANE_BLOCK][1], offset), result)
        return True, specs

    def _own_arrays(self) -> list[Array]:
        return [np.frombuffer(block, np.uint8) for block in self._blocks.get(LANE_BLOCK, ())]

    def _array(self, spec: Spec, *, writable: bool) -> Array:
        if isinstance(spec, np.ndarray):
            return spec
        name, shape, number, offset = spec
        array: Array = np.ndarray(shape, type_named(name), self._blocks[number][writable], offset)
        array.setflags(write=writable)
        return array

    def _map(self, blocks: Sequence[tuple[int, int]], descriptors: Sequence[int]) -> None:
        for (number, nbytes), descriptor in zip(blocks, descriptors, strict=True):
            duplicate = os.dup(descriptor)
            to_write = mapped(descriptor, nbytes, writable=True)
            to_read = mapped(duplicate, nbytes, writable=False)
            # Private copies of inputs, so the driver may overwrite them.
            self._blocks[number] = to_write if number == LANE_BLOCK else to_read, to_write


def _pieces(sizes: Sequence[int], descriptors: Sequence[int]) -> list[memoryview]:
    """Map a message's large buffers read-only."""
    if not descriptors:
        return []
    starts, total = [], 0
    for size in sizes:
        starts.append(total)
        total += -(-size // ALIGNMENT) * ALIGNMENT
    view = memoryview(mapped(descriptors[0], total, writable=False))
    return [view[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _written(results: Sequence[Array], into: Sequence[Array]) -> bool:
    """Copy results to their targets; False if they do not fit."""
    if results is into:
        return True
    forms = [(array.shape, array.dtype) for array in into]
    if [(result.shape, result.dtype) for result in results] != forms:
        return False
    pairs = zip(results, into, strict=True)
    sources = [
        result if result is target or not _overlaps_any(result, into) else np.array(result) for result, target in pairs
    ]
    for result, target in zip(sources, into, strict=True):
        if result is not target:
            np.copyto(target, result)
    return True


def _overlaps_any(result: Array, arrays: Sequence[Array]) -> bool:
    return any(_overlaps(result, array) for array in arrays)


def _overlaps(result: Array, array: Array) -> bool:
    return np.may_share_memory(result, array)


def _pickled(answer: Any) -> bytes:
    try:
        return written(answer)
    except Exception as error:  # noqa: BLE001  a driver's objects may not be picklable
        message = f"the driver's answer cannot be sent: {type(error).__name__}: {error}"
        return written((False, ("DriverError", message, {})))


def _error_as_data(error: BaseException) -> tuple[str, str, Mapping[str, Any]]:
    fields = {"refused": error.refused} if isinstance(error, CompilationError) else {}
    kind, text = type(error).__name__, describe(error)
    return kind, text if isinstance(error, NNAdapterError) else text.removeprefix(f"{kind}: "), fields


def main() -> None:
    """Serve the device that the first message names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    door, lifeline = map(int, sys.argv[1:3])
    end_with(lifeline)
    os.environ.pop("NNADAPTER_ISOLATE", None)
    served = DeviceServer()
    # Some drivers must be opened in the main thread, so it serves the first channel.
    first, entrance = threading.Event(), from_descriptor(door)
    lanes: list[Channel] = []
    threading.Thread(target=_open, args=(entrance, served, lanes, first), daemon=True).start()
    first.wait()
    _serve(lanes.pop(), served)
    threading.Event().wait()


def end_with(lifeline: int) -> None:
    """End this process when the peer closes the socket."""
    import fcntl

    other = socket.socket(fileno=lifeline)
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    # Needed in any case: the peer may be gone already.
    threading.Thread(target=_watch, args=(other,), daemon=True).start()


def _watch(lifeline: socket.socket) -> NoReturn:
    lifeline.setblocking(True)
    lifeline.recv(1)
    os._exit(0)


def _open(door: Channel, served: DeviceServer, lanes: list[Channel], first: threading.Event) -> None:
    while True:
        try:
            _, descriptors = door.receive_with_descriptors()
        except (OSError, EOFError):
            os._exit(0)
        for descriptor in descriptors:
            channel = from_descriptor(descriptor)
            if not first.is_set():
                lanes.append(channel)
                first.set()
                continue
            threading.Thread(target=_serve, args=(channel, served), daemon=True).start()


def _serve(channel: Channel, served: DeviceServer) -> None:
    seat: Any = LaneServer(channel, served)
    try:
        while True:
            seat.answer()
    except (OSError, EOFError):
        pass
    finally:
        channel.close()
