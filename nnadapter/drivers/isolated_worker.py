"""The process that `isolated` starts: it opens one device and does what is asked through its pipe, until that ends.

Requests come on what was standard input, answers go where standard output was; a driver that prints does so on standard
error. When the other side dies its end of the pipe closes, and this process ends at once, whatever the driver does.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from nnadapter.drivers.border import ask_compatibility, checked_bytes, create_execution, read_only
from nnadapter.drivers.interface import Compatibility, Context, Program
from nnadapter.drivers.isolated_ahead import Ahead, compute_ahead
from nnadapter.drivers.pipes import Message, receive, send
from nnadapter.drivers.registry import open_device
from nnadapter.drivers.selection import check_options
from nnadapter.errors import CompilationError, DriverError, ExecutionError
from nnadapter.ir.operand import Array
from partition.verdict import Unsupported

Job = tuple[int, Sequence[Array]]
"""An execution, and what it is to compute with."""


class _Served:
    """A device, and what was made on it, by number."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._device = open_device(name)
        self._numbers = count(1)
        self._made: dict[int, Any] = {}
        self._model: tuple[int, Any] = (0, None)

    def capability(self) -> Any:
        return self._device.capability

    def create_context(self, options: Mapping[str, Any]) -> int:
        context = self._device.create_context(check_options(self._name, options))
        if not isinstance(context, Context):
            raise DriverError(f"the driver gave {type(context).__name__}, expected a Context", device=self._name)
        return self._keep(context)

    def take_model(self, number: int, model: Any) -> None:
        """Hold a model for the questions that follow: the same object for all of them, as drivers may rely on."""
        self._model = (number, model)

    def supported(self, context: int, model: int) -> list[Any]:
        return list(self._made[context].supported(self._held(model)))

    def admit(self, context: int, model: int) -> Any:
        return self._made[context].admit(self._held(model))

    def compile(self, context: int, model: int) -> int:
        return self._program(self._made[context].compile(self._held(model)))

    def bind(self, context: int, program: int, model: int) -> int | None:
        bound = self._made[context].bind(self._made[program], self._held(model))
        return None if bound is None else self._program(bound)

    def deserialize(self, context: int, blob: bytes) -> int:
        return self._program(self._made[context].deserialize(blob))

    def check_blob(self, context: int, blob: bytes) -> Compatibility | None:
        says = ask_compatibility(self._made[context], memoryview(blob))
        if isinstance(says, Unsupported):
            raise DriverError(says.detail, device=self._name)
        return says

    def serialize(self, program: int) -> bytes | None:
        return checked_bytes(self._made[program].serialize())

    def memory(self, program: int) -> tuple[int, int, Mapping[Hashable, int]]:
        made = self._made[program]
        return int(made.memory_bytes), int(made.execution_bytes), dict(made.shared_bytes)

    def create_execution(self, program: int) -> int:
        return self._keep(create_execution(self._made[program]))

    def compute(self, jobs: Sequence[Job], at_once: bool) -> tuple[list[list[Array]], list[tuple[int, ...]]]:
        """Results of each job, all of them held until the last is done, and which inputs each has written to."""
        input_copies = [[read_only(np.array(array)) for array in inputs] for _, inputs in jobs]
        tasks = [(self._made[execution], inputs) for (execution, _), inputs in zip(jobs, input_copies, strict=True)]
        if at_once:
            with ThreadPoolExecutor(len(tasks)) as pool:
                results = list(pool.map(_compute, tasks))
        else:
            results = list(map(_compute, tasks))
        changed = [
            tuple(i for i, (now, before) in enumerate(zip(inputs, original, strict=True)) if _differs(now, before))
            for inputs, (_, original) in zip(input_copies, jobs, strict=True)
        ]
        return results, changed

    def compute_ahead(self, before: Sequence[Job], behind: Sequence[Job]) -> Ahead | None:
        made = self._made
        first, second = ([(made[number], inputs) for number, inputs in jobs] for jobs in (before, behind))
        return compute_ahead(self._device, first, second)

    def close(self, number: int) -> None:
        self._made.pop(number).close()

    def footprint(self) -> tuple[int, int]:
        """Resident bytes, and open file handles; zeros where the system does not say."""
        process = Path("/proc/self")
        if not (process / "statm").exists():
            return 0, 0
        pages = int((process / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE"), len(list((process / "fd").iterdir()))

    def _held(self, number: int) -> Any:
        known, model = self._model
        assert known == number, "the host sends a model before it asks about it"
        return model

    def _program(self, program: Any) -> int:
        if not isinstance(program, Program):
            raise CompilationError(f"the driver gave {type(program).__name__}, expected a Program", device=self._name)
        return self._keep(program)

    def _keep(self, made: Any) -> int:
        number = next(self._numbers)
        self._made[number] = made
        return number


def _compute(task: tuple[Any, Sequence[Array]]) -> list[Array]:
    execution, inputs = task
    results = execution.compute(inputs)
    for position, result in enumerate(results):
        if type(result) is not np.ndarray:
            type_name = type(result).__name__
            raise ExecutionError(f"the driver gave {type_name} for output {position}, expected a numpy array")
    return list(results)


def _differs(now: Array, before: Array) -> bool:
    if now.dtype == object:
        return bool((now != before).any())
    return now.tobytes() != before.tobytes()


def main() -> None:
    """Serve the device that the first message names."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    waiting: queue.Queue[Message] = queue.Queue()
    threading.Thread(target=_listen, args=(requests, waiting), daemon=True).start()
    served: _Served | None = None
    while True:
        what, arguments = waiting.get()
        try:
            if served is None:
                served = _Served(**arguments)
                outcome: object = served.capability()
            else:
                ask: Callable[..., object] = getattr(served, what)
                outcome = ask(**arguments)
            _answer(answers, (True, outcome))
        except Exception as error:  # noqa: BLE001  a driver may raise anything; the host is told
            _answer(answers, (False, (type(error).__name__, " ".join(str(error).split()))))


def _answer(answers: BinaryIO, answer: object) -> None:
    try:
        send(answers, answer)
    except OSError:
        _end()
    except Exception as error:  # noqa: BLE001  what a driver made may not be something that can be sent
        send(answers, (False, ("DriverError", f"the driver's answer cannot be sent: {type(error).__name__}: {error}")))


def _listen(requests: BinaryIO, waiting: queue.Queue[Message]) -> None:
    """Read requests; when the other side is gone, so is this one, even in the middle of a computation."""
    while True:
        try:
            waiting.put(receive(requests))
        except (EOFError, OSError):
            _end()


def _end() -> NoReturn:
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
