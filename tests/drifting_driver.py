"""A fake_npu on which nodes in `DRIFTS` compute wrong results, for shadow checks to find."""

from __future__ import annotations

from dataclasses import replace

from nnadapter.drivers import Context, Device, Driver, Execution, Option, Program
from nnadapter.drivers.fake_npu import FakeNpuDriver
from tests.planted_driver import spoil

DRIFTS: set[str] = set()
"""Nodes that compute wrong results now."""


class DriftingExecution(Execution):
    def __init__(self, right, wrong, node):
        self.right, self.wrong, self.node = right, wrong, node

    def compute(self, inputs):
        return (self.wrong if self.node in DRIFTS else self.right).compute(inputs)

    def close(self):
        self.right.close()
        self.wrong.close()


class DriftingProgram(Program):
    def __init__(self, right, wrong, node):
        self.right, self.wrong, self.node = right, wrong, node

    def create_execution(self):
        return DriftingExecution(self.right.create_execution(), self.wrong.create_execution(), self.node)

    def close(self):
        self.right.close()
        self.wrong.close()


class DriftingContext(Context):
    def __init__(self, context, options):
        self.context, self.node, self.factor = context, options["node"], 1 + options["percent"] / 100

    def supported(self, model):
        return self.context.supported(model)

    def compile(self, model):
        wrong = self.context.compile(spoil(model, self.node, self.factor, 0))
        return DriftingProgram(self.context.compile(model), wrong, self.node)

    def close(self):
        self.context.close()


class DriftingDevice(Device):
    def __init__(self):
        self.device = FakeNpuDriver().open("")

    @property
    def capability(self):
        own = self.device.capability
        more = (
            Option(name="node", default="", help="The node."),
            Option(name="percent", default=1.0, help="What its result grows by."),
        )
        return replace(own, options=(*own.options, *more))

    def create_context(self, options):
        own = {name: value for name, value in options.items() if name not in ("node", "percent")}
        return DriftingContext(self.device.create_context(own), options)


class DriftingDriver(Driver):
    def open(self, device_id):
        return DriftingDevice()
