from __future__ import annotations

import os

import numpy as np

from nnadapter.drivers.registry import open_device
from nnadapter.ir import DataType, ModelBuilder, OperandType

DEVICE = os.environ.get("NNADAPTER_XLA_DEVICE", "xla:cpu")
PLACE = (1, 0) if DEVICE == "xla:cpu" else (2, 0)
"""DLPack device of its values: host memory, or that of an NVIDIA GPU."""


def context(**options):
    device = open_device(DEVICE)
    defaults = {option.name: option.default for option in device.capability.options}
    return device.create_context({**defaults, **options})


def model_of(type_, inputs, attributes=None, constants=()):
    """Build a model of one operation: inputs by types and shapes, then constants."""
    builder = ModelBuilder()
    operands = [
        builder.add_input(f"x{position}", OperandType(DataType(dtype), shape))
        for position, (dtype, shape) in enumerate(inputs)
    ]
    operands += [builder.add_constant(f"c{position}", value) for position, value in enumerate(constants)]
    return builder.finish(builder.add_operation(type_, tuple(operands), attributes or {}))


def computed(model, *inputs, **options):
    program = context(**options).compile(model)
    return list(program.create_execution().compute(list(inputs)))


def relu(size=4):
    return model_of("RELU", [("float32", (size,))])


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
