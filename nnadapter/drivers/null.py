"""Null device: supports every operation and returns zeros.

A minimal driver, for testing planning, partitioning and host overhead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnadapter.drivers.capability import (
    Capability,
    DeviceInfo,
    DeviceType,
    DynamicShapes,
    ModelForm,
    OperationSupport,
    OptionValues,
    Threading,
    precisions_of,
)
from nnadapter.drivers.interface import Context, Device, Driver, Execution, Program
from nnadapter.errors import DeviceNotFoundError
from nnadapter.ir import SCHEMAS, Array, Model, substitute_sizes, verify
from nnadapter.ir.operand import ANY
from partition.graph import SUPPORTED, Verdict

_CAPABILITY = Capability(
    form=ModelForm.IR,
    threading=Threading.REENTRANT,
    dynamic_shapes=DynamicShapes.ANY,
    precisions=precisions_of("float32 w8a8 w8a16 w8 w4a16"),
    operations=tuple(
        OperationSupport(type=name, dtypes=ANY, ranks=schema.ranks, limits="computes zeros")
        for name, schema in SCHEMAS.items()
    ),
)


class NullExecution(Execution):
    """Execution that returns zeros."""

    def __init__(self, outputs: Sequence[tuple[tuple[int, ...], Any]]) -> None:
        self._outputs = outputs

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        return [np.zeros(dimensions, dtype) for dimensions, dtype in self._outputs]

    def specialize(self, sizes: Sequence[Any]) -> Execution:
        return NullExecution([(substitute_sizes(dimensions, sizes), dtype) for dimensions, dtype in self._outputs])

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        for output in outputs:
            output.fill(0)
        return outputs


class NullProgram(Program):
    """Program that stores the types of its outputs."""

    def __init__(self, model: Model) -> None:
        types = [model.operands[index].type for index in model.outputs]
        self._outputs = tuple((type_.dimensions, type_.dtype.array_type) for type_ in types)

    def create_execution(self) -> Execution:
        return NullExecution(self._outputs)


class NullContext(Context):
    """Context that supports everything."""

    def supported(self, model: Model) -> Sequence[Verdict]:
        return [SUPPORTED] * len(model.operations)

    def compile(self, model: Model) -> Program:
        verify(model)
        return NullProgram(model)


class NullDevice(Device):
    """Device without limits and options."""

    capability = _CAPABILITY

    def create_context(self, options: OptionValues) -> Context:
        return NullContext()


class NullDriver(Driver):
    """Driver of one device."""

    def open(self, device_id: str) -> Device:
        if device_id not in ("", "0"):
            raise DeviceNotFoundError(f"the null driver has one device, null:0, got null:{device_id}")
        return NullDevice()

    def devices(self) -> Sequence[DeviceInfo]:
        return (
            DeviceInfo(name="null", vendor="nnadapter", type=DeviceType.ACCELERATOR, sub_type="zeros", version="1.0"),
        )
