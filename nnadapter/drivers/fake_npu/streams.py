"""Device memory, streams and events, simulated on the host.

Callers access device memory only by copies, which are counted. A stream is a thread that works in order; after a
failure it skips work until a caller synchronizes. Locks and queues are in C, so interrupts cannot corrupt them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import prod
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

import numpy as np

from nnadapter.drivers import DeviceTensor, Memory, MemoryStatistics
from nnadapter.drivers.interface import Event, Stream
from nnadapter.errors import FAILURES, DriverError, InvalidInputError, OutOfMemoryError
from nnadapter.ir.operand import Array
from nnadapter.process.resources import new_lock


class DeviceMemory:
    """Allocation and statistics of device memory. Thread-safe."""

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._used = self._peak = self._allocations = self._in = self._out = 0
        self._lock = new_lock()

    @property
    def statistics(self) -> MemoryStatistics:
        with self._lock:
            return MemoryStatistics(
                total_bytes=self._total,
                used_bytes=self._used,
                peak_bytes=self._peak,
                allocations=self._allocations,
                bytes_in=self._in,
                bytes_out=self._out,
            )

    def allocate(self, nbytes: int) -> FakeNpuMemory:
        with self._lock:
            available = self._total - self._used
            if not 0 <= nbytes <= available:
                raise OutOfMemoryError(
                    f"fake_npu was asked for {nbytes} bytes of device memory, available: {available}; free some memory"
                )
            self._used += nbytes
            self._peak = max(self._peak, self._used)
            self._allocations += 1
        return FakeNpuMemory(self, nbytes)

    def tensor(self, dimensions: tuple[int, ...], dtype: Any) -> DeviceTensor:
        array_type = np.dtype(dtype)
        return DeviceTensor(self.allocate(prod(dimensions) * array_type.itemsize), array_type, dimensions)

    def count(self, freed: int = 0, bytes_in: int = 0, bytes_out: int = 0) -> None:
        with self._lock:
            self._used -= freed
            self._in += bytes_in
            self._out += bytes_out


class FakeNpuMemory(Memory):
    """Block of device memory."""

    def __init__(self, device: DeviceMemory, nbytes: int) -> None:
        self._device = device
        self._bytes: Array | None = np.empty(nbytes, np.uint8)
        self.nbytes = nbytes

    def copy_in(self, array: Array) -> None:
        self.view(array.shape, array.dtype)[...] = array
        self._device.count(bytes_in=array.nbytes)

    def copy_out(self, array: Array) -> None:
        array[...] = self.view(array.shape, array.dtype)
        self._device.count(bytes_out=array.nbytes)

    def view(self, dimensions: tuple[int, ...], dtype: Any) -> Array:
        contents, array_type = self._bytes, np.dtype(dtype)
        if contents is None:
            raise DriverError("the device memory was freed; allocate it again")
        needed = prod(dimensions) * array_type.itemsize
        if needed > self.nbytes:
            raise InvalidInputError(
                f"a tensor of shape {dimensions} needs {needed} bytes, but the device memory has {self.nbytes}; "
                "allocate more"
            )
        tensor: Array = contents[:needed].view(array_type).reshape(dimensions)
        return tensor

    def free(self) -> None:
        contents, self._bytes = self._bytes, None
        if contents is not None:
            self._device.count(freed=self.nbytes)


Work = Callable[[], object]


class _Point:
    __slots__ = ("failure", "happened_ns", "under_way")

    def __init__(self) -> None:
        self.happened_ns: int | None = None
        self.failure: BaseException | None = None
        self.under_way = Lock()
        """Locked until the stream reaches this point."""
        self.under_way.acquire()

    def reached(self, failure: BaseException | None) -> None:
        self.failure, self.happened_ns = failure, time.perf_counter_ns()
        self.under_way.release()

    def wait(self) -> BaseException | None:
        with self.under_way:
            return self.failure


class Waits:
    """Number of times that the host waited for a stream or event. Thread-safe."""

    def __init__(self) -> None:
        self.number = 0
        self._lock = new_lock()

    def add(self) -> None:
        with self._lock:
            self.number += 1


class FakeNpuEvent(Event):
    """Event recorded by a stream."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self.point: _Point | None = None

    @property
    def is_done(self) -> bool:
        return self.point is None or not self.point.under_way.locked()

    @property
    def happened_ns(self) -> int | None:
        return None if self.point is None else self.point.happened_ns

    def synchronize(self) -> None:
        self._waits.add()
        point = self.point
        failure = None if point is None else point.wait()
        if failure is not None:
            raise failure

    def close(self) -> None:
        self.point = None


class _Queue:
    """Work and failure of a stream. Its thread refers only to this object, so unused streams are collected."""

    def __init__(self) -> None:
        self.work: SimpleQueue[Work | _Point | None] = SimpleQueue()
        self.failure: BaseException | None = None

    def do_all(self) -> None:
        while (item := self.work.get()) is not None:
            if isinstance(item, _Point):
                item.reached(self.failure)
            elif self.failure is None:
                try:
                    item()
                except FAILURES as error:
                    self.failure = error
            del item  # release its memory before waiting


class FakeNpuStream(Stream):
    """Stream with a thread that does its work in order."""

    def __init__(self, waits: Waits) -> None:
        self._waits, self._queue = waits, _Queue()
        self._thread: Thread | None = Thread(target=self._queue.do_all, name="fake_npu stream", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        self._open().work.put(work)

    def record(self, event: Event) -> None:
        assert isinstance(event, FakeNpuEvent), "events of a device are its own"
        point = _Point()
        self._open().work.put(point)
        event.point = point

    def wait(self, event: Event) -> None:
        assert isinstance(event, FakeNpuEvent), "events of a device are its own"
        point = event.point
        if point is not None:
            self.submit(point.wait)  # failures are raised on the other stream

    def synchronize(self) -> None:
        self._waits.add()
        queue, point = self._open(), _Point()
        queue.work.put(point)
        failure = point.wait()
        if failure is not None:
            queue.failure = None
            raise failure

    def close(self) -> None:
        thread = self._thread
        if thread is not None:
            self._queue.work.put(None)
            thread.join()
            self._thread = None

    def __del__(self) -> None:
        self._queue.work.put(None)

    def _open(self) -> _Queue:
        if self._thread is None:
            raise DriverError("the stream of fake_npu is closed; create another one")
        return self._queue
