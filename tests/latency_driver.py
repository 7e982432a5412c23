"""A driver for tests and benchmarks whose devices sleep a known time per operation, one computation at a time.

Sleeping leaves the host free, as hardware does. Results follow the definition of the operations.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

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
    Threading,
    Unsupported,
)
from nnadapter.errors import CancelledError
from nnadapter.ir.definition import by_definition

DEVICES = ("0", "1", "2")
BUSY = {device: threading.Lock() for device in DEVICES}
OVERLAPS = {"now": 0, "most": 0}
"""Number of devices that compute at once: now, and the largest so far."""
_counting = threading.Lock()
_LOOK_SECONDS = 0.001


@contextmanager
def counted():
    with _counting:
        OVERLAPS["now"] += 1
        OVERLAPS["most"] = max(OVERLAPS["most"], OVERLAPS["now"])
    try:
        yield
    finally:
        with _counting:
            OVERLAPS["now"] -= 1


class LatencyExecution(Execution):
    def __init__(self, model, device, options):
        self.model, self.device = model, device
        self.seconds = options["launch_ms"] / 1e3 + options["operation_ms"] / 1e3 * len(model.operations)
        self.stops = options["stops"]

    def compute(self, inputs):
        assert BUSY[self.device].acquire(blocking=False), "a device computes one thing at a time"
        try:
            with counted():
                end = time.monotonic() + self.seconds
                results = by_definition(self.model, inputs)
                time.sleep(max(0.0, end - time.monotonic()))
                return results
        finally:
            BUSY[self.device].release()

    def compute_within(self, inputs, control):
        end = time.monotonic() + self.seconds
        while self.stops and time.monotonic() < end:
            if control.cancelled():
                raise CancelledError("the device was told to stop")
            time.sleep(_LOOK_SECONDS)
        return by_definition(self.model, inputs) if self.stops else self.compute(inputs)


class LatencyProgram(Program):
    def __init__(self, *arguments):
        self.arguments = arguments

    def create_execution(self):
        return LatencyExecution(*self.arguments)


class LatencyContext(Context):
    def __init__(self, device, options):
        self.device, self.options = device, options

    def supported(self, model):
        only = self.options["only"]
        refused = Unsupported(Reason.SWITCHED_OFF, "not this one")
        return [SUPPORTED if not only or each.type in only else refused for each in model.operations]

    def compile(self, model):
        return LatencyProgram(model, self.device, self.options)

    def profile(self):
        return Profile(
            peak_flops=1e15,
            bandwidth=1e15,
            launch_seconds=self.options["launch_ms"] / 1e3,
            transfer_seconds=0.0,
            transfer_bandwidth=1e15,
            operation_seconds=self.options["operation_ms"] / 1e3,
            simulated=True,
        )


class LatencyDevice(Device):
    def __init__(self, device):
        self.device = device

    @property
    def capability(self):
        return Capability(
            form=ModelForm.IR,
            threading=Threading.SERIAL,
            options=(
                Option(name="operation_ms", default=1.0, help="Milliseconds of an operation.", minimum=0.0),
                Option(name="launch_ms", default=0.0, help="Milliseconds of a segment.", minimum=0.0),
                Option(name="only", default=(), help="Operations to take; all if empty."),
                Option(name="stops", default=False, help="It can stop in the middle."),
            ),
        )

    def create_context(self, options):
        return LatencyContext(self.device, options)


class LatencyDriver(Driver):
    def open(self, device_id):
        return LatencyDevice(device_id or DEVICES[0])

    def devices(self):
        return tuple(DeviceInfo(name=f"latency:{device}") for device in DEVICES)
