"""A test driver with device memory and programmable failures; otherwise it computes as fake_npu does.

`MOST` limits the operations per segment, so that several segments follow each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from nnadapter.drivers import SUPPORTED, Admission, Context, Driver, Execution, Program, Reason, Unsupported
from nnadapter.drivers.fake_npu import FakeNpuDevice

BREAKS: set[str] = set()
"""Operations whose programs fail when they run."""
GIVES_AGAIN: set[str] = set()
"""`input` or `output`: the tensor whose memory the driver claims for all device-resident outputs."""
MOST = {"operations": 1000}
STREAMS: set[str] = set()
"""`refused`: nothing is enqueued; `fails`: enqueued work raises immediately, not at the wait."""
GATE: list[threading.Event] = []
"""Event that work on streams waits for, at most 10 s."""
ENQUEUED: list[set[str]] = []
"""Operations of each enqueued step."""
BEHIND: list[Callable[[], None]] = []
"""Callbacks, each called once after the next step is enqueued."""


class ResidingExecution(Execution):
    def __init__(self, inner, types):
        self.inner, self.types = inner, types

    def compute(self, inputs):
        self.fail()
        return self.inner.compute(inputs)

    def compute_on_device(self, inputs, control):
        self.fail()
        made = self.inner.compute_on_device(inputs, control)
        for whose in GIVES_AGAIN:
            memory = (inputs if whose == "input" else made)[0].memory
            for each in made:
                if each.memory is not memory:
                    each.memory.free()
            return [replace(each, memory=memory) for each in made]
        return made

    def enqueue(self, inputs, stream, control):
        if "refused" in STREAMS:
            return None
        if "fails" in STREAMS:
            self.fail()
        if GATE:
            stream.submit(partial(GATE[0].wait, 10))
        made = self.inner.enqueue(inputs, stream, control)
        stream.submit(self.fail)
        ENQUEUED.append(self.types)
        if BEHIND:
            BEHIND.pop(0)()
        return made

    def fail(self):
        if BREAKS & self.types:
            raise RuntimeError("a wire burnt through")


class ResidingProgram(Program):
    def __init__(self, inner, types):
        self.inner, self.types = inner, types

    def create_execution(self):
        return ResidingExecution(self.inner.create_execution(), self.types)


class ResidingContext(Context):
    def __init__(self, inner):
        self.inner = inner

    def supported(self, model):
        refused = Unsupported(Reason.UNSUPPORTED_OPERATION, "no sines here")
        return [refused if each.type == "SIN" else SUPPORTED for each in model.operations]

    def admit(self, model):
        if len(model.operations) <= MOST["operations"]:
            return Admission()
        return Admission(verdict=Unsupported(Reason.MEMORY_LIMIT, "too many operations at once"))

    def compile(self, model):
        return ResidingProgram(self.inner.compile(model), {each.type for each in model.operations})


class ResidingDevice(FakeNpuDevice):
    def create_context(self, options):
        return ResidingContext(super().create_context(options))


class ResidingDriver(Driver):
    def open(self, device_id):
        return ResidingDevice()
