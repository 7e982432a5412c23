"""A driver with memory of its own that breaks where it is told to, and else computes as fake_npu does.

Its segments have at most as many operations as `MOST` says, so that several of it follow each other.
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
"""`input` or `output`: whose memory all outputs that stay on the device are said to lie in."""
MOST = {"operations": 1000}
STREAMS: set[str] = set()
"""`refused`: nothing is enqueued; `fails`: what is enqueued raises at once where it breaks, and not at the wait."""
GATE: list[threading.Event] = []
"""Work of streams waits until the first of these is set, for at most 10 s."""
ENQUEUED: list[set[str]] = []
"""Operations of the steps that were enqueued."""
BEHIND: list[Callable[[], None]] = []
"""Each is called once, behind the next step that is enqueued."""


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
