"""Entry point of an isolated device's process, and the objects that it serves.

Each channel has a thread. Exceptions of drivers become answers. Host memory with inputs is mapped read-only, so writing
to it crashes only this process. When the lifeline closes, SIGKILL ends the process even if a driver holds the GIL.
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
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn

import numpy as np

from nnadapter.drivers import Capability, Compatibility, Context, Control, DeviceInfo, Program, Unsupported
from nnadapter.drivers.boundary import ask_compatibility, checked_bytes, create_execution, read_only
from nnadapter.drivers.failures import NamedCalls
from nnadapter.drivers.interface import Device, DeviceTensor, Stream
from nnadapter.drivers.isolation import channels
from nnadapter.drivers.registry import device_info, open_device
from nnadapter.drivers.selection import check_options
from nnadapter.drivers.shared_memory import mapped
from nnadapter.errors import FAILURES, CompilationError, DriverError, ExecutionError, NNAdapterError, describe
from nnadapter.ir.operand import Array, dtype_name
from nnadapter.ir.structure import numbers
from nnadapter.ir.symbolic_numbers import SymbolicNumber
from nnadapter.records import replace

Job = tuple[int, Sequence[Array]]
SizedJob = tuple[int, Sequence[int], Sequence[Array]]
"""Number of an execution, values of symbolic sizes in the order of their creation, and inputs."""
Results = tuple[list[list[Array]], list[tuple[int, ...]]]
"""Results of each job, and positions of inputs that the driver overwrote."""


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
        return self._call("profile", context)

    def _memory_statistics(self) -> Any:
        return self._calls["memory_statistics"](self._device.memory_statistics)

    def _compute_on_streams(
        self, first_jobs: Sequence[Job], second_jobs: Sequence[Job]
    ) -> channels.StreamResults | None:
        resources = self._objects
        first, second = ([(resources[number], inputs) for number, inputs in jobs] for jobs in (first_jobs, second_jobs))
        return compute_on_streams(self._device, first, second)

    def _compute_on_device(self, jobs: Sequence[Job]) -> channels.StreamResults | None:
        return compute_on_device(self._device, [(self._objects[number], inputs) for number, inputs in jobs])

    def _take_model(self, number: int, model: Any) -> None:
        """Store the model, so that drivers get the same object in every request."""
        self._model = (number, model)

    def _supported(self, context: int, model: int) -> list[Any]:
        return list(self._call("supported", context, self._received_model(model)))

    def _admit(self, context: int, model: int) -> Any:
        return self._call("admit", context, self._received_model(model))

    def _compile(self, context: int, model: int) -> int:
        return self._program(self._call("compile", context, self._received_model(model)), context)

    def _compile_whole_graph(self, context: int, model: int) -> int:
        return self._program(self._call("compile_whole_graph", context, self._received_model(model)), context)

    def _clone_with_constants(self, context: int, program: int, model: int) -> int | None:
        clone = self._call("clone_with_constants", context, self._objects[program], self._received_model(model))
        return None if clone is None else self._program(clone, context)

    def _deserialize(self, context: int, blob: Any) -> int:
        return self._program(self._call("deserialize", context, bytes(memoryview(blob))), context)

    def _deserialize_view(self, context: int, blob: Any) -> int:
        load = self._objects[context].deserialize_view
        return self._program(self._calls["deserialize"](load, memoryview(blob).toreadonly()), context)

    def _check_blob(self, context: int, blob: Any) -> Compatibility | None:
        view = memoryview(blob).toreadonly()
        compatibility: Compatibility | Unsupported | None = self._calls["check_blob"](
            ask_compatibility, self._objects[context], view
        )
        if isinstance(compatibility, Unsupported):
            raise DriverError(compatibility.detail, device=self._name)
        return compatibility

    def _serialize(self, program: int) -> bytes | None:
        return checked_bytes(self._call("serialize", program))

    def _memory(self, program: int) -> tuple[int, int, Mapping[Hashable, int]]:
        compiled = self._objects[program]
        return int(compiled.memory_bytes), int(compiled.execution_bytes), dict(compiled.shared_bytes)

    def _create_execution(self, program: int) -> int:
        execution = self._calls["create_execution"](create_execution, self._objects[program])
        return self._objects.keep(execution, program)

    def _compute(self, jobs: Sequence[Job], at_once: bool) -> Results:
        return _computed_all([(self._objects[execution], inputs) for execution, inputs in jobs], at_once)

    def _compute_at(self, context: int, model: int, jobs: Sequence[SizedJob]) -> tuple[Results, list[int]]:
        symbolic = (number for number in numbers(self._received_model(model)) if isinstance(number, SymbolicNumber))
        trace, tasks, positions = next(symbolic).trace, [], []
        for position, (execution, variables, inputs) in enumerate(jobs):
            sizes = trace.replay(variables)  # only the driver's trace knows the guards
            if sizes is not None:
                tasks.append((self._objects[execution].specialize(sizes), inputs))
                positions.append(position)
        return _computed_all(tasks, at_once=False), positions

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

    def _call(self, method: str, number: int, *arguments: Any) -> Any:
        return self._calls[method](getattr(self._objects[number], method), *arguments)

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
    copied_tasks = [(execution, [read_only(np.array(array)) for array in inputs]) for execution, inputs in tasks]
    if at_once:
        with ThreadPoolExecutor(len(copied_tasks)) as pool:
            results = list(pool.map(_computed, copied_tasks))
    else:
        results = list(map(_computed, copied_tasks))
    changed = [
        tuple(position for position, pair in enumerate(zip(copies, originals, strict=True)) if _differs(*pair))
        for (_, copies), (_, originals) in zip(copied_tasks, tasks, strict=True)
    ]
    return results, changed


def _computed(task: tuple[Any, Sequence[Array]]) -> list[Array]:
    execution, inputs = task
    return list(_checked_arrays(execution.compute(inputs)))


def _checked_arrays(results: Sequence[Any]) -> Sequence[Array]:
    for position, result in enumerate(results):
        if type(result) is not np.ndarray:
            type_name = type(result).__name__
            raise ExecutionError(f"the driver returned {type_name} for output {position}, expected a numpy array")
    return results


def _differs(array: Array, other: Array) -> bool:
    return bool((array != other).any()) if array.dtype == object else array.tobytes() != other.tobytes()


Task = tuple[Any, Sequence[Array]]


def compute_on_streams(
    device: Device, first_tasks: Sequence[Task], second_tasks: Sequence[Task]
) -> channels.StreamResults | None:
    """Run tasks on one stream, then others on a stream that waits for the first stream; return None if unsupported."""
    if not (device.has_memory and device.has_streams):
        return None
    broken: list[str] = []
    with ExitStack() as stack:
        first, second = (_close_twice_at_exit(stack, device.create_stream()) for _ in range(2))
        event = _close_twice_at_exit(stack, device.create_event())
        if not event.is_done:
            broken.append("an event that was never recorded has not happened")
        event.synchronize()
        outputs = _enqueued(device, stack, first_tasks, first)
        first.record(event)
        second.wait(event)
        outputs += _enqueued(device, stack, second_tasks, second)
        second.synchronize()
        if not event.is_done:
            broken.append("an event has not happened although work that waited for it is done")
        event.synchronize()
        first.synchronize()
        if len(outputs) < len(first_tasks) + len(second_tasks):
            return None
        return [[_on_host(tensor) for tensor in tensors] for tensors in outputs], broken


def compute_on_device(device: Device, tasks: Sequence[Task]) -> channels.StreamResults | None:
    """Run tasks on device memory; return None if the device does not support this."""
    if not device.has_memory:
        return None
    broken: list[str] = []
    results: list[list[DeviceTensor]] = []
    with ExitStack() as later:
        for execution, arrays in tasks:
            with ExitStack() as stack:
                inputs = [_on_device(device, stack, array) for array in arrays]
                outputs = execution.compute_on_device(inputs)
                if outputs is None:
                    return None
                for memory in {id(tensor.memory): tensor.memory for tensor in outputs}.values():
                    later.callback(memory.free)
                results.append(list(outputs))
                if len({id(tensor.memory) for tensor in (*inputs, *outputs)}) < len(inputs) + len(outputs):
                    broken.append("a result of compute_on_device shares memory with an input or another result")
                pairs = zip(inputs, arrays, strict=True)
                if any(_on_host(tensor).tobytes() != array.tobytes() for tensor, array in pairs):
                    broken.append("compute_on_device wrote to an input that is not donated")
            if broken:
                return [], broken  # memory may be gone
        return [[_on_host(tensor) for tensor in tensors] for tensors in results], broken


def _close_twice_at_exit(stack: ExitStack, resource: Any) -> Any:
    stack.callback(resource.close)
    stack.callback(resource.close)
    return resource


def _enqueued(device: Device, stack: ExitStack, tasks: Sequence[Task], stream: Stream) -> list[Sequence[DeviceTensor]]:
    outputs: list[Sequence[DeviceTensor]] = []
    for execution, inputs in tasks:
        tensors = execution.enqueue([_on_device(device, stack, array) for array in inputs], stream)
        if tensors is None:
            break
        for tensor in tensors:
            stack.callback(tensor.memory.free)
        stack.callback(_wait, stream)  # runs before the memory is freed
        outputs.append(tensors)
    return outputs


def _wait(stream: Stream) -> None:
    with suppress(*FAILURES):
        stream.synchronize()


def _on_device(device: Device, stack: ExitStack, array: Array) -> DeviceTensor:
    memory = device.allocate(array.nbytes)
    stack.callback(memory.free)
    memory.copy_in(np.ascontiguousarray(array))
    return DeviceTensor(memory, array.dtype, array.shape)


def _on_host(tensor: DeviceTensor) -> Array:
    array = np.empty(tensor.shape, tensor.dtype)
    tensor.memory.copy_out(array)
    return array


class LaneServer:
    """Server of requests from one lane, in one thread of the device process."""

    def __init__(self, channel: channels.Channel, served: DeviceServer) -> None:
        self._channel, self._served = channel, served
        self._blocks: dict[int, tuple[mmap.mmap, mmap.mmap]] = {}

    def answer(self) -> None:
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
            command, arguments = channels.read(contents, _pieces(sizes, descriptors))
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
        except FAILURES as error:
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
            lane_block = self._blocks[channels.LANE_BLOCK][0]
            control = Control(deadline_seconds=seconds, cancelled=lambda: lane_block[0] != 0)
            results = call(execution.compute_within, arrays, control)
        elif into is not None:
            results = call(execution.compute_into, arrays, into)
        else:
            results = call(execution.compute, arrays)
        return _checked_arrays(results)

    def _place_results(self, results: Sequence[Array]) -> Any:
        sizes = (0 if result.dtype.hasobject else result.nbytes for result in results)
        offsets, nbytes = channels.aligned_offsets(sizes, channels.HEADER_BYTES)
        specs: list[Any] = [
            result if result.dtype.hasobject else (dtype_name(result.dtype), result.shape, offset)
            for result, offset in zip(results, offsets, strict=True)
        ]
        lane_arrays = [np.frombuffer(block, np.uint8) for block in self._blocks.get(channels.LANE_BLOCK, ())]
        if any(_overlaps_any(result, lane_arrays) for result in results):
            results = [np.array(result) for result in results]
        if channels.LANE_BLOCK not in self._blocks or len(self._blocks[channels.LANE_BLOCK][1]) < nbytes:
            self._channel.send(channels.written(("more", nbytes)))
            contents, descriptors = self._channel.receive_with_descriptors()
            self._map(pickle.loads(contents), descriptors)
        for spec, result in zip(specs, results, strict=True):
            if isinstance(spec, tuple):
                name, shape, offset = spec
                np.copyto(
                    np.ndarray(shape, channels.type_named(name), self._blocks[channels.LANE_BLOCK][1], offset), result
                )
        return True, specs

    def _array(self, spec: channels.Spec, *, writable: bool) -> Array:
        if isinstance(spec, np.ndarray):
            return spec
        name, shape, number, offset = spec
        array: Array = np.ndarray(shape, channels.type_named(name), self._blocks[number][writable], offset)
        array.setflags(write=writable)
        return array

    def _map(self, blocks: Sequence[tuple[int, int]], descriptors: Sequence[int]) -> None:
        for (number, nbytes), descriptor in zip(blocks, descriptors, strict=True):
            duplicate = os.dup(descriptor)
            to_write = mapped(descriptor, nbytes, writable=True)
            to_read = mapped(duplicate, nbytes, writable=False)
            # Private copies of inputs, so the driver may overwrite them.
            self._blocks[number] = to_write if number == channels.LANE_BLOCK else to_read, to_write


def _pieces(sizes: Sequence[int], descriptors: Sequence[int]) -> list[memoryview]:
    if not descriptors:
        return []
    starts, total = channels.aligned_offsets(sizes)
    view = memoryview(mapped(descriptors[0], total, writable=False))
    return [view[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _written(results: Sequence[Array], into: Sequence[Array]) -> bool:
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
    return any(np.may_share_memory(result, array) for array in arrays)


def _pickled(answer: Any) -> bytes:
    try:
        return channels.written(answer)
    except Exception as error:  # noqa: BLE001  a driver's objects may not be picklable
        message = f"the driver's answer cannot be sent: {type(error).__name__}: {error}"
        return channels.written((False, ("DriverError", message, {})))


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
    first, entrance = threading.Event(), channels.from_descriptor(door)
    lanes: list[channels.Channel] = []
    threading.Thread(target=_open, args=(entrance, served, lanes, first), daemon=True).start()
    first.wait()
    _serve(lanes.pop(), served)
    threading.Event().wait()


def end_with(lifeline: int) -> None:
    """End this process when the peer closes the lifeline."""
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


def _open(door: channels.Channel, served: DeviceServer, lanes: list[channels.Channel], first: threading.Event) -> None:
    while True:
        try:
            _, descriptors = door.receive_with_descriptors()
        except (OSError, EOFError):
            os._exit(0)
        for descriptor in descriptors:
            channel = channels.from_descriptor(descriptor)
            if not first.is_set():
                lanes.append(channel)
                first.set()
                continue
            threading.Thread(target=_serve, args=(channel, served), daemon=True).start()


def _serve(channel: channels.Channel, served: DeviceServer) -> None:
    seat: Any = LaneServer(channel, served)
    try:
        while True:
            seat.answer()
    except (OSError, EOFError):
        pass
    finally:
        channel.close()
