"""Computations in device memory and on streams, inside the process of an isolated device.

`compute_on_device`:

1. Results lie in memory of their own, and stay when inputs are freed.
2. Inputs are as they were.

`compute_on_streams`, as work of two streams:

1. An event that was never recorded has happened, and waiting for it is no wait.
2. What is enqueued on one stream, from tensors in the device's memory, is done when an event behind it has happened.
3. Another stream that waits for that event goes on behind it.
4. Streams and events may be closed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from nnadapter.drivers.interface import Device, DeviceTensor, Stream
from nnadapter.errors import FAILURES
from nnadapter.ir.operand import Array

Task = tuple[Any, Sequence[Array]]
"""An execution, and what it is to compute with."""
StreamResults = tuple[list[list[Array]], list[str]]
"""Results of each task, and which promises were broken, in words."""


def compute_on_streams(
    device: Device, first_tasks: Sequence[Task], second_tasks: Sequence[Task]
) -> StreamResults | None:
    """Compute tasks on one stream, and others on another that waits for the first; each execution is in one of them.

    Returns:
        None where the device has no streams or no memory, or does not enqueue such a task.
    """
    if not (device.has_memory and device.has_streams):
        return None
    broken: list[str] = []
    with ExitStack() as stack:
        first, second = (_closed_twice(stack, device.create_stream()) for _ in range(2))
        event = _closed_twice(stack, device.create_event())
        if not event.is_done:
            broken.append("an event that was never recorded has not happened")
        event.synchronize()
        outputs = _enqueued(device, stack, first_tasks, first)
        first.record(event)
        second.wait(event)
        outputs += _enqueued(device, stack, second_tasks, second)
        second.synchronize()
        if not event.is_done:
            broken.append("an event has not happened when what waited for it is done")
        event.synchronize()
        first.synchronize()
        if len(outputs) < len(first_tasks) + len(second_tasks):
            return None
        return [[_on_host(tensor) for tensor in tensors] for tensors in outputs], broken


def compute_on_device(device: Device, tasks: Sequence[Task]) -> StreamResults | None:
    """Compute tasks one after the other from tensors in the device's memory to others there.

    Returns:
        None where the device has no memory, or does not compute such a task.
    """
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
                    broken.append("a result of compute_on_device lies in memory of an input, or of another result")
                pairs = zip(inputs, arrays, strict=True)
                if any(_on_host(tensor).tobytes() != array.tobytes() for tensor, array in pairs):
                    broken.append("compute_on_device wrote to an input that is not donated")
            if broken:
                return [], broken  # nothing is read of what may be gone
        return [[_on_host(tensor) for tensor in tensors] for tensors in results], broken


def _closed_twice(stack: ExitStack, resource: Any) -> Any:
    stack.callback(resource.close)
    stack.callback(resource.close)
    return resource


def _enqueued(device: Device, stack: ExitStack, tasks: Sequence[Task], stream: Stream) -> list[Sequence[DeviceTensor]]:
    """What each task makes, as far as the device enqueues them."""
    outputs: list[Sequence[DeviceTensor]] = []
    for execution, inputs in tasks:
        tensors = execution.enqueue([_on_device(device, stack, array) for array in inputs], stream)
        if tensors is None:
            break
        for tensor in tensors:
            stack.callback(tensor.memory.free)
        stack.callback(_wait, stream)  # which comes before what it reads and writes is freed
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
