"""Running a program, in the arena that is lent to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nnadapter.drivers.arenas import Arena, Arenas
from nnadapter.drivers.fake_npu.binding import Binding, Bound
from nnadapter.drivers.fake_npu.device_memory import DeviceMemory, FakeNpuMemory
from nnadapter.drivers.fake_npu.kernels.kernel import Run
from nnadapter.drivers.fake_npu.streams import FakeNpuStream
from nnadapter.drivers.fake_npu.threads import run_limited
from nnadapter.drivers.interface import UNLIMITED, Control, DeviceTensor, Execution, Stream
from nnadapter.errors import CancelledError
from nnadapter.ir.operand import Array

if TYPE_CHECKING:
    from nnadapter.drivers.fake_npu.tracing import InstructionEvents


class FakeNpuExecution(Execution):
    """The instructions of a program, bound to the arena that is lent to them, nearly always the same one."""

    def __init__(
        self,
        binding: Binding,
        arenas: Arenas,
        device_memory: DeviceMemory,
        threads: int,
        events: InstructionEvents | None = None,
    ) -> None:
        self._binding = binding
        self._arenas = arenas
        self._device_memory = device_memory
        self._threads = threads
        self._events = events

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`."""
        return self.compute_within(inputs, UNLIMITED)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """See `Execution.compute_within`: `control` is asked before every instruction.

        Raises:
            CancelledError: nobody wants the results any more.
        """
        results = [np.empty(*form) for form in self._binding.outputs()]
        self._fill(results, inputs, control)
        return results

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute_into`."""
        self._fill(outputs, inputs, UNLIMITED)
        return outputs

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """See `Execution.compute_on_device`."""
        with self._room() as made:
            self._fill([_placed(tensor) for tensor in made], [_placed(tensor) for tensor in inputs], control)
        return made

    def enqueue(
        self, inputs: Sequence[DeviceTensor], stream: Stream, control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """See `Execution.enqueue`."""
        assert isinstance(stream, FakeNpuStream), "streams of a device are its own"
        with self._room() as made:
            arrays = [_placed(tensor) for tensor in made], [_placed(tensor) for tensor in inputs]
            stream.submit(partial(self._fill, *arrays, control))
        return made

    @contextmanager
    def _room(self) -> Iterator[list[DeviceTensor]]:
        """Room for the outputs on the device, freed where the block raises."""
        made: list[DeviceTensor] = []
        try:
            for form in self._binding.outputs():
                made.append(self._device_memory.tensor(*form))
            yield made
        except BaseException:
            for tensor in made:
                tensor.memory.free()
            raise

    def _fill(self, results: Sequence[Array], inputs: Sequence[Array], control: Control) -> None:
        """Compute the outputs into these arrays."""
        with self._arenas.acquire(self._binding.frame.memory.arena_bytes, self._holder()) as arena:
            runs = self._binding.runs(self._bound(arena), inputs, results)
            if self._events is not None:
                runs = self._events.of(runs)
            # Kernels overflow on purpose where the limit is the right result; the caller's settings are put back.
            with np.errstate(all="ignore"):
                wanted = runs if control.cancelled is None else _while_wanted(runs, control.cancelled)
                run_limited(wanted, self._threads)

    def _holder(self) -> object:
        """Who is bound to an arena."""
        return self

    def _bound(self, arena: Arena) -> Bound:
        bound: Bound | None = arena.bound.get(self)
        if bound is None:
            bound = arena.bound[self] = self._binding.bound(arena.bytes)
        return bound


def _placed(tensor: DeviceTensor) -> Array:
    assert isinstance(tensor.memory, FakeNpuMemory), "memory of a device is its own"
    return tensor.memory.view(tensor.shape, tensor.dtype)


def _while_wanted(runs: Sequence[Run], cancelled: Callable[[], bool]) -> Iterator[Run]:
    for position, run in enumerate(runs):
        if cancelled():
            raise CancelledError(f"fake_npu was stopped before instruction {position} of {len(runs)}")
        yield run
