"""A driver with a simulated clock, which advances by launch, tensors and operations."""

from __future__ import annotations

from math import hypot

import numpy as np

from nnadapter.costs import Stopwatch
from nnadapter.drivers import (
    SUPPORTED,
    Capability,
    Context,
    Device,
    DeviceInfo,
    Driver,
    Execution,
    ModelForm,
    Option,
    Profile,
    Program,
    Reason,
    Unsupported,
)
from nnadapter.ir import SCHEMAS

LAUNCH, TENSOR, BYTE = 80e-6, 7e-6, 1 / 2e9
"""Seconds per segment, per tensor transfer, and per byte transferred."""
COSTS = {
    "MAT_MUL": (3e-6, 1 / 5e11, 1 / 8e10),
    "CONV_2D": (5e-6, 1 / 9e11, 1 / 6e10),
    "SOFTMAX": (9e-6, 0.0, 1 / 1e10),
    "LAYER_NORMALIZATION": (9e-6, 0.0, 1 / 1e10),
    "LSTM": (6e-6, 1 / 1e11, 0.0),
    "RESHAPE": (0.0, 0.0, 0.0),
    "TANH": (4e-6, 0.0, 1 / 2e10),
    "REDUCE_MEAN": (2e-6, 0.0, 1 / 3e10),
    "SPLIT": (1e-6, 0.0, 1 / 5e10),
    "CONCAT": (1e-6, 0.0, 1 / 5e10),
    "ERF": (4e-6, 0.0, 1 / 2e10),
    "SIGMOID": (4e-6, 0.0, 1 / 2e10),
}
"""Operation -> seconds per operation, per FLOP, and per byte read or written."""
OTHERS = (2e-6, 0.0, 1 / 4e10)
NEW = {"now": 0.0, "version": "1.0", "profile": None, "made": 0, "ran": None, "listed": "metered", "wholes": [0, 0]}
"""Initial state of the device.

`ran` collects execution numbers if it is a list. `listed` names the row in the device list. `wholes` counts the
programs compiled as entire plans: open now, and most at once.
"""
STATE = dict(NEW)


def now() -> float:
    return STATE["now"]


STOPWATCH = Stopwatch(clock=now, busy=lambda: 0.0, sleep=lambda _: None)


def seconds_of(model, slow, times) -> float:
    border = [model.operands[each].type.nbytes for each in (*model.inputs, *model.outputs)]
    total = LAUNCH + TENSOR * len(border) + BYTE * sum(border)
    for operation in model.operations:
        inputs = [model.operands[each].type for each in operation.inputs if each >= 0]
        outputs = [model.operands[each].type for each in operation.outputs]
        flops = SCHEMAS[operation.type].flops(inputs, outputs, operation.attributes)
        once, per_flop, per_byte = COSTS.get(operation.type, OTHERS)
        seconds = once + hypot(per_flop * flops, per_byte * sum(each.nbytes for each in (*inputs, *outputs)))
        total += seconds * times if operation.type in slow else seconds
    return total


class MeteredExecution(Execution):
    def __init__(self, model, options):
        self.options, self.runs = options, 0
        self.seconds = seconds_of(model, options["slow"], options["times"])
        self.types = [model.operands[each].type for each in model.outputs]
        self.number = STATE["made"] = STATE["made"] + 1

    def compute(self, inputs):
        self.runs += 1
        slower = 30.0 if self.options["disturbed"] and self.runs % 4 == 0 else 1.0
        STATE["now"] += self.seconds * slower
        if STATE["ran"] is not None:
            STATE["ran"].append(self.number)
        return [np.zeros(each.dimensions, each.dtype.array_type) for each in self.types]


class MeteredProgram(Program):
    def __init__(self, model, options):
        self.model, self.options = model, options

    def create_execution(self):
        return MeteredExecution(self.model, self.options)


class MeteredWhole(MeteredProgram):
    def __init__(self, model, options):
        super().__init__(model, options)
        self.count(1)

    def count(self, more):
        now, most = STATE["wholes"]
        STATE["wholes"] = [now + more, max(most, now + more)]

    def close(self):
        self.count(-1)


class MeteredContext(Context):
    def __init__(self, options):
        self.options = options

    def supported(self, model):
        refused = Unsupported(Reason.SWITCHED_OFF, "off today")
        return [refused if each.type in self.options["off"] else SUPPORTED for each in model.operations]

    def compile(self, model):
        if any(operation.type in self.options["breaks_on"] for operation in model.operations):
            raise RuntimeError("out of registers")
        return MeteredProgram(model, self.options)

    def compile_whole_graph(self, model):
        self.compile(model)
        return MeteredWhole(model, self.options)

    def profile(self):
        if self.options["profile"] == "raises":
            raise OSError("no such register")
        if self.options["profile"] == "wrong":
            return Profile(
                peak_flops=-1.0, bandwidth=1e9, launch_seconds=0.0, transfer_seconds=0.0, transfer_bandwidth=1e9
            )
        return STATE["profile"]


class MeteredDevice(Device):
    @property
    def capability(self):
        return Capability(
            form=ModelForm.IR,
            options=(
                Option(name="off", default=(), help="Operations to refuse.", affects_speed=False),
                Option(name="breaks_on", default=(), help="Operations that do not compile.", affects_speed=False),
                Option(name="disturbed", default=False, help="Every fourth run is slow.", affects_speed=False),
                Option(name="slow", default=(), help="Operations that take longer.", affects_speed=False),
                Option(name="times", default=1, help="How much longer.", affects_speed=False),
                Option(name="profile", default="", help="How to ask for limits.", affects_speed=False),
                Option(name="turbo", default=False, help="Another speed."),
            ),
        )

    def create_context(self, options):
        return MeteredContext(options)


class MeteredDriver(Driver):
    def open(self, device_id):
        return MeteredDevice()

    def devices(self):
        return (DeviceInfo(name=STATE["listed"], version=STATE["version"]),)
