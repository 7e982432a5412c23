"""What can be asked of a device, in its process: everything that was made on it has a number.

What is closed takes with it what was made from it. Drivers are called by functions that are named for the call, so that
the trace of a crash says where it was (`drivers/crashes.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from nnadapter.drivers.border import ask_compatibility, checked_bytes, create_execution, read_only
from nnadapter.drivers.capability import Capability, DeviceInfo
from nnadapter.drivers.crashes import NamedCalls
from nnadapter.drivers.interface import Compatibility, Context, Program
from nnadapter.drivers.isolation.ahead import Ahead, compute_ahead, compute_there
from nnadapter.drivers.isolation.at_sizes import at_sizes
from nnadapter.drivers.registry import device_info, open_device
from nnadapter.drivers.selection import check_options
from nnadapter.errors import CompilationError, DriverError, ExecutionError
from nnadapter.ir.operand import Array
from partition.verdict import Unsupported

Job = tuple[int, Sequence[Array]]
"""An execution, and what it is to compute with."""
SizedJob = tuple[int, Sequence[int], Sequence[Array]]
"""The same at sizes that are left open, in the order in which the trace of the model has them."""
Results = tuple[list[list[Array]], list[tuple[int, ...]]]
"""Of each job, and which inputs each has written to."""


class _Made:
    """What was made on the device, by number."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._lock = Lock()
        self._by_number: dict[int, Any] = {}
        self._of: dict[int, int] = {}
        """From what each was made."""

    def __getitem__(self, number: int) -> Any:
        return self._by_number[number]

    def keep(self, resource: Any, of: int = 0) -> int:
        number = next(self._numbers)
        self._by_number[number], self._of[number] = resource, of
        return number

    def taken(self, number: int) -> list[Any]:
        """Forget something, and what was made from it; returned in the order in which they are to be closed."""
        with self._lock:
            if number not in self._by_number:
                return []
            dependents = [dependent for dependent, of in list(self._of.items()) if of == number]
            del self._of[number]
            resource = self._by_number.pop(number)
        return [*(thing for dependent in dependents for thing in self.taken(dependent)), resource]


class Served:
    """The device, once the first question has named it, and all that was made on it."""

    def __init__(self) -> None:
        self._made = _Made()
        self._name = ""
        self._model: tuple[int, Any] = (0, None)

    def call(self, command: str) -> Callable[..., Any]:
        """What answers a question."""
        answers: Callable[..., Any] = getattr(self, f"_{command}")
        return answers

    def execution(self, number: int) -> tuple[Any, Callable[..., Any]]:
        """An execution, and what calls it."""
        return self._made[number], self._calls["compute"]

    def _open(self, name: str) -> tuple[Capability, DeviceInfo]:
        self._name, self._calls = name, NamedCalls(name)
        self._device = open_device(name)
        return self._device.capability, replace(device_info(self._name), capability=None)

    def _create_context(self, options: Mapping[str, Any]) -> int:
        device = self._device
        context = self._calls["create_context"](device.create_context, check_options(self._name, options))
        if not isinstance(context, Context):
            raise DriverError(f"the driver gave {type(context).__name__}, expected a Context", device=self._name)
        return self._made.keep(context)

    def _profile(self, context: int) -> Any:
        return self._calls["profile"](self._made[context].profile)

    def _memory_statistics(self) -> Any:
        return self._calls["memory_statistics"](self._device.memory_statistics)

    def _compute_ahead(self, before: Sequence[Job], behind: Sequence[Job]) -> Ahead | None:
        resources = self._made
        first, second = ([(resources[number], inputs) for number, inputs in jobs] for jobs in (before, behind))
        return compute_ahead(self._device, first, second)

    def _compute_there(self, jobs: Sequence[Job]) -> Ahead | None:
        return compute_there(self._device, [(self._made[number], inputs) for number, inputs in jobs])

    def _take_model(self, number: int, model: Any) -> None:
        """Hold a model for the questions that follow: the same object for all of them, as drivers may rely on."""
        self._model = (number, model)

    def _supported(self, context: int, model: int) -> list[Any]:
        return list(self._calls["supported"](self._made[context].supported, self._held(model)))

    def _admit(self, context: int, model: int) -> Any:
        return self._calls["admit"](self._made[context].admit, self._held(model))

    def _compile(self, context: int, model: int) -> int:
        program = self._calls["compile"](self._made[context].compile, self._held(model))
        return self._program(program, context)

    def _compile_whole(self, context: int, model: int) -> int:
        program = self._calls["compile_whole"](self._made[context].compile_whole, self._held(model))
        return self._program(program, context)

    def _bind(self, context: int, program: int, model: int) -> int | None:
        bound = self._calls["bind"](self._made[context].bind, self._made[program], self._held(model))
        return None if bound is None else self._program(bound, context)

    def _deserialize(self, context: int, blob: Any) -> int:
        call = self._calls["deserialize"]
        return self._program(call(self._made[context].deserialize, bytes(memoryview(blob))), context)

    def _deserialize_view(self, context: int, blob: Any) -> int:
        call = self._calls["deserialize"]
        return self._program(call(self._made[context].deserialize_view, memoryview(blob).toreadonly()), context)

    def _check_blob(self, context: int, blob: Any) -> Compatibility | None:
        view = memoryview(blob).toreadonly()
        compatibility: Compatibility | Unsupported | None = self._calls["check_blob"](
            ask_compatibility, self._made[context], view
        )
        if isinstance(compatibility, Unsupported):
            raise DriverError(compatibility.detail, device=self._name)
        return compatibility

    def _serialize(self, program: int) -> bytes | None:
        return checked_bytes(self._calls["serialize"](self._made[program].serialize))

    def _memory(self, program: int) -> tuple[int, int, Mapping[Hashable, int]]:
        compiled_program = self._made[program]
        return (
            int(compiled_program.memory_bytes),
            int(compiled_program.execution_bytes),
            dict(compiled_program.shared_bytes),
        )

    def _create_execution(self, program: int) -> int:
        execution = self._calls["create_execution"](create_execution, self._made[program])
        return self._made.keep(execution, program)

    def _compute(self, jobs: Sequence[Job], at_once: bool) -> Results:
        return _computed_all([(self._made[execution], inputs) for execution, inputs in jobs], at_once)

    def _compute_at(self, context: int, model: int, jobs: Sequence[SizedJob]) -> tuple[Results, list[int]]:
        """Results of the jobs at whose sizes the program of the model holds, and the positions of those jobs."""
        segment_model = self._held(model)
        tasks = [at_sizes(segment_model, (self._made[execution], *arguments)) for execution, *arguments in jobs]
        positions = [position for position, task in enumerate(tasks) if task is not None]
        return _computed_all([task for task in tasks if task is not None], at_once=False), positions

    def _close(self, number: int) -> None:
        failures = []
        for resource in self._made.taken(number):
            try:
                self._calls["close"](resource.close)
            except Exception as error:  # noqa: BLE001  the others are closed all the same
                failures.append(error)
        if failures:
            raise failures[0]

    def _footprint(self) -> tuple[int, int]:
        """Resident bytes, and open file handles; zeros where the system does not say."""
        process = Path("/proc/self")
        if not (process / "statm").exists():
            return 0, 0
        pages = int((process / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(list((process / "fd").iterdir()))

    def _held(self, number: int) -> Any:
        model_number, model = self._model
        assert model_number == number, "the host sends a model before it asks about it"
        return model

    def _program(self, program: Any, context: int) -> int:
        if not isinstance(program, Program):
            raise CompilationError(f"the driver gave {type(program).__name__}, expected a Program", device=self._name)
        return self._made.keep(program, context)


def _computed_all(tasks: Sequence[tuple[Any, Sequence[Array]]], at_once: bool) -> Results:
    """Results of each task, all of them held until the last is done."""
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
            raise ExecutionError(f"the driver gave {type_name} for output {position}, expected a numpy array")
    return list(results)


def _differs(copied_array: Array, original_array: Array) -> bool:
    if copied_array.dtype == object:
        return bool((copied_array != original_array).any())
    return copied_array.tobytes() != original_array.tobytes()
