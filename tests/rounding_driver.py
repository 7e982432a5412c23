"""A serial driver that rounds inputs and results to its precision; its engine's default is bfloat16."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from nnadapter.drivers import (
    SUPPORTED,
    Capability,
    ComputePrecision,
    Context,
    Device,
    Driver,
    Execution,
    ModelForm,
    Option,
    Precision,
    Program,
    Threading,
)
from nnadapter.ir.definition import by_definition

ROUNDED = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
CONTEXTS: list[str] = []
"""Precisions of the contexts created so far."""


class RoundingExecution(Execution):
    def __init__(self, model, dtype):
        self.model, self.dtype = model, dtype

    def compute(self, inputs):
        return list(map(self.rounded, by_definition(self.model, list(map(self.rounded, inputs)))))

    def rounded(self, array):
        return array.astype(self.dtype).astype(np.float32) if array.dtype == np.float32 else array


class RoundingProgram(Program):
    def __init__(self, model, dtype):
        self.model, self.dtype = model, dtype

    def create_execution(self):
        return RoundingExecution(self.model, self.dtype)


class RoundingContext(Context):
    def __init__(self, precision):
        CONTEXTS.append(precision)
        self.dtype = ROUNDED[precision]

    def supported(self, model):
        return [SUPPORTED] * len(model.operations)

    def compile(self, model):
        return RoundingProgram(model, self.dtype)


class RoundingDevice(Device):
    capability = Capability(
        form=ModelForm.IR,
        threading=Threading.SERIAL,
        precisions=tuple(ComputePrecision(precision=Precision(name)) for name in (*ROUNDED, "w8a8")),
        default_precision=Precision.BFLOAT16,
        options=(Option(name="precision", default="float32", choices=tuple(ROUNDED), help="Rounds results."),),
    )

    def create_context(self, options):
        return RoundingContext(options["precision"])


class RoundingDriver(Driver):
    def open(self, device_id):
        return RoundingDevice()
