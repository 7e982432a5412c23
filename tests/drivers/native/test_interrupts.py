"""Interrupts must leave no device work that uses freed memory."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from nnadapter.drivers import Control, DeviceTensor
from nnadapter.ir import DataType, ModelBuilder, OperandType
from tests.drivers.native.acme_models import OPTIONS
from tests.interrupting import interrupt

NATIVE = ("nnadapter.drivers.native",)


def execution_of(device, count=20):
    builder = ModelBuilder()
    value = builder.add_input("x", OperandType(DataType.FLOAT32, (2,)))
    for _ in range(count):
        (value,) = builder.add_operation("RELU", (value,))
    return device.create_context(OPTIONS).compile(builder.finish([value])).create_execution()


@pytest.mark.parametrize("how", ["compute_within", "compute_on_device", "enqueue"])
def test_interrupt_at_any_step_frees_no_memory_in_use(device, how):
    calls, x = list[None](), np.ones(2, np.float32)
    control, execution = Control(cancelled=lambda: bool(calls.append(None))), execution_of(device)
    with device.allocate(x.nbytes) as input_memory:
        input_memory.copy_in(x)
        placed, stream = DeviceTensor(input_memory, x.dtype, x.shape), device.create_stream()
        work = {
            "compute_within": partial(execution.compute_within, [x], control),
            "compute_on_device": partial(execution.compute_on_device, [placed], control),
            "enqueue": partial(execution.enqueue, [placed], stream, control),
        }[how]
        for step in range(1, 5000):
            calls.clear()
            used_bytes = device.memory_statistics().used_bytes
            came = interrupt(work, step, NATIVE)
            call_count, has_memory = len(calls), device.memory_statistics().used_bytes > used_bytes
            device.synchronize()
            if came is None:
                break
            assert call_count == len(calls) or (how == "enqueue" and has_memory), f"at step {step}"
            del came  # last, because its frames may hold memory in use
        assert step > 20 and len(calls) >= 20
        stream.close()
