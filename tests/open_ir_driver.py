"""A test driver for adapter IR with dynamic shapes that computes Relu.

Each program numbers its symbolic sizes differently, and guards separate sizes above ten from smaller ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from nnadapter.drivers import (
    SUPPORTED,
    Capability,
    Context,
    Device,
    Driver,
    DynamicShapes,
    Execution,
    ModelForm,
    Program,
    Reason,
    Threading,
    Unsupported,
)
from nnadapter.ir import Model, Operation, substitute_sizes


class Doings:
    """Behavior of the driver, set by tests."""

    def __init__(self) -> None:
        self.compiled = 0
        self.fails = False
        """Fail to compile with dynamic shapes."""
        self.refuses: Callable[[Operation, Model], bool] = lambda operation, model: False
        self.closing: Callable[[], None] = lambda: None
        """Called when a program is closed."""


DOINGS: list[Doings] = [Doings()]
"""Stack of behaviors; the last one is active."""


class OpenIrExecution(Execution):
    def __init__(self, mark, expected):
        self.mark, self.expected = mark, expected

    def specialize(self, sizes):
        return OpenIrExecution(substitute_sizes(self.mark, sizes), self.expected)

    def compute(self, inputs):
        assert self.mark == self.expected(inputs[0].shape[0]), "these sizes are another program's"
        return [np.maximum(inputs[0], 0)]


class OpenIrProgram(Program):
    memory_bytes = 1000

    def __init__(self, model):
        doings, (rows, *_) = DOINGS[-1], model.operands[model.inputs[0]].type.dimensions
        doings.compiled += 1
        own = doings.compiled
        self.is_large = bool(rows > 10)
        for number in range(1, own + 1):  # one more symbolic size than the previous program
            self.mark = rows * 1000 + number
        self.expected = lambda rows: rows * 1000 + own
        self.closing = doings.closing

    def create_execution(self):
        return OpenIrExecution(self.mark, self.expected)

    def close(self):
        self.closing()


class OpenIrContext(Context):
    def supported(self, model):
        refused = Unsupported(Reason.UNSUPPORTED_ATTRIBUTE, "it has no such window")
        return [refused if DOINGS[-1].refuses(operation, model) else SUPPORTED for operation in model.operations]

    def compile(self, model):
        if model.has_dynamic_shapes and DOINGS[-1].fails:
            raise RuntimeError("no more programs with open sizes")
        return OpenIrProgram(model)


class OpenIrDevice(Device):
    @property
    def capability(self):
        return Capability(form=ModelForm.IR, threading=Threading.REENTRANT, dynamic_shapes=DynamicShapes.ANY)

    def create_context(self, options):
        return OpenIrContext()


class OpenIrDriver(Driver):
    def open(self, device_id):
        return OpenIrDevice()


class Gate:
    """Gate that blocks the first thread to enter until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened, self._first = threading.Event(), threading.Event(), threading.Lock()

    def __call__(self) -> None:
        if self._first.acquire(blocking=False):
            self.reached.set()
            assert self.opened.wait(10)
