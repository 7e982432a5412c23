"""A fake_npu that breaks one rule of the driver interface, for the conformance kit to find."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import numpy as np

from nnadapter.drivers import Compatibility, Context, Device, Driver, Execution, Option, Program
from nnadapter.drivers.fake_npu import FakeNpuDriver
from nnadapter.errors import InvalidModelError

ABOUT_BINDING = ("binds_nothing", "fails_to_bind", "binds_the_same")
"""Lies about binding constants. Sessions find them; the kit recognizes bound programs by their results."""
LIES = (
    "none",
    "wrong_axis",
    "off_by_one",
    "not_a_number",
    "wrong_dtype",
    "wrong_count",
    "mutates_inputs",
    "crashes",
    "leaks",
    "hangs",
    "claims",
    "stale_constants",
    "takes_any_bytes",
    "fails_to_judge",
    "computes_nothing_ahead",
    "gives_inputs_back",
    "stays_at_its_size",
    *ABOUT_BINDING,
)
LEAKED = []
COUNTS = {"compile": 0}


def with_wrong_axis(model):
    """Return the model with every softmax along the first axis."""
    operations = [
        replace(operation, attributes={**operation.attributes, "axis": 0}) if operation.type == "SOFTMAX" else operation
        for operation in model.operations
    ]
    return replace(model, operations=tuple(operations))


class LyingExecution(Execution):
    def __init__(self, execution, model, lie):
        self.execution, self.model, self.lie = execution, model, lie
        self.sized = None
        self.types = {model.operations[model.producer[out]].type for out in model.outputs if out in model.producer}
        self.all_types = {operation.type for operation in model.operations}

    def specialize(self, sizes):
        if self.lie != "stays_at_its_size" or self.sized is None:
            self.sized = self.execution.specialize(sizes)
        return LyingExecution(self.sized, self.model, self.lie)

    def enqueue(self, inputs, stream, *control):
        made = self.execution.enqueue(inputs, stream, *control)
        if self.lie == "computes_nothing_ahead":
            stream.synchronize()
            for tensor in made:
                tensor.memory.copy_in(np.zeros(tensor.nbytes, np.uint8))
        return made

    def compute_on_device(self, inputs, *control):
        made = self.execution.compute_on_device(inputs, *control)
        if self.lie != "gives_inputs_back" or made[0].nbytes > inputs[0].memory.nbytes:
            return made
        result = np.empty(made[0].shape, made[0].dtype)
        made[0].memory.copy_out(result)
        inputs[0].memory.copy_in(result)
        return [replace(made[0], memory=inputs[0].memory), *made[1:]]

    def compute(self, inputs):
        if self.lie == "crashes" and "TANH" in self.all_types:
            os._exit(3)
        if self.lie == "hangs" and "TANH" in self.all_types:
            time.sleep(3600)
        if self.lie == "leaks":
            LEAKED.append(np.ones(40_000, np.float32))
        results = list(self.execution.compute(inputs))
        if self.lie == "mutates_inputs" and "RELU" in self.all_types:
            for array in inputs:
                array.setflags(write=True)
                array[...] = 0
        return self.told(results)

    def told(self, results):
        if self.lie == "off_by_one" and "ARG_MAX" in self.types:
            return [result + 1 if result.dtype == np.int64 else result for result in results]
        if self.lie == "not_a_number" and "EXP" in self.types:
            return [np.full_like(result, np.nan) if result.dtype.kind == "f" else result for result in results]
        if self.lie == "wrong_dtype" and "EQUAL" in self.types:
            return [result.astype(np.int8) if result.dtype == np.bool_ else result for result in results]
        if self.lie == "wrong_count" and "SPLIT" in self.types:
            return results[:-1]
        return results

    def close(self):
        self.execution.close()


class LyingProgram(Program):
    def __init__(self, program, model, lie):
        self.program, self.model, self.lie = program, model, lie

    def create_execution(self):
        execution = self.program.create_execution()
        return execution if self.model is None else LyingExecution(execution, self.model, self.lie)

    def serialize(self):
        return self.program.serialize()

    def close(self):
        self.program.close()


class LyingContext(Context):
    def __init__(self, context, lie):
        self.context, self.lie = context, lie

    def supported(self, model):
        return self.context.supported(model)

    def admit(self, model):
        return self.context.admit(model)

    def compile(self, model):
        COUNTS["compile"] += 1
        if self.lie == "claims" and any(operation.type == "ABS" for operation in model.operations):
            raise RuntimeError("internal compiler error 7")
        if self.lie == "wrong_axis":
            try:
                return LyingProgram(self.context.compile(with_wrong_axis(model)), model, self.lie)
            except (TypeError, AttributeError) as error:  # this lie makes the model invalid
                raise InvalidModelError(str(error)) from error
        return LyingProgram(self.context.compile(model), model, self.lie)

    def clone_with_constants(self, program, model):
        if self.lie == "stale_constants":
            return LyingProgram(self.context.compile(program.model), model, self.lie)
        if self.lie == "fails_to_bind":
            raise RuntimeError("no room for weights")
        if self.lie in ("binds_nothing", "binds_the_same"):
            return program if self.lie == "binds_the_same" else None
        bound = self.context.clone_with_constants(program.program, model)
        return None if bound is None else LyingProgram(bound, model, self.lie)

    def check_blob(self, blob):
        if self.lie == "fails_to_judge" and len(blob) < 100:
            raise IndexError("too short")
        return Compatibility.IDENTICAL if self.lie == "takes_any_bytes" else self.context.check_blob(blob)

    def deserialize(self, blob):
        return LyingProgram(self.context.deserialize(blob), None, self.lie)

    def close(self):
        self.context.close()


class LyingDevice(Device):
    def __init__(self):
        self.device = FakeNpuDriver().open("")
        self.allocate, self.create_stream = self.device.allocate, self.device.create_stream
        self.create_event = self.device.create_event

    has_memory = has_streams = True

    @property
    def capability(self):
        return replace(
            self.device.capability,
            options=(*self.device.capability.options, Option(name="lie", default="none", help="It.", choices=LIES)),
        )

    def create_context(self, options):
        lie = options["lie"]
        own = {name: value for name, value in options.items() if name != "lie"}
        return LyingContext(self.device.create_context(own), lie)


class LyingDriver(Driver):
    def open(self, device_id):
        return LyingDevice()
