from __future__ import annotations

import numpy as np

from nnadapter.drivers import Option, Reason, TableDriver, Unsupported, lowers
from nnadapter.ir import DataType, ModelBuilder, OperandType

FLOATS = OperandType(DataType.FLOAT32, (2, 3))


class Small(TableDriver):
    options = (Option(name="largest", default=100, help="Elements of a tensor."),)

    @lowers("RELU", "NEG")
    def elementwise(self, operation):
        if operation.input.type.size > self.option_values["largest"]:
            return Unsupported(Reason.MEMORY_LIMIT, f"{operation.input.name!r} is too large")
        return {"RELU": lambda x: np.maximum(x, 0), "NEG": np.negative}[operation.type]

    @lowers("ADD", fuse_codes=("none", "relu"))
    def add(self, operation):
        return np.add if operation.fuse_code == "none" else lambda x, y: np.maximum(x + y, 0)

    @lowers("ASSIGN")
    def assign(self, operation):
        return lambda x: x

    @lowers("WHERE", types=["float32", "int64"])
    def where(self, operation):
        return np.where

    @lowers("GREATER", results=["bool"])
    def greater(self, operation):
        return np.greater

    @lowers("SPLIT", "CONCAT", ranks=(2, 2))
    def parts(self, operation):
        if operation.type == "SPLIT":
            ends = np.cumsum(operation.split)[:-1]
            return lambda x: np.split(x, ends, operation.axis)
        return lambda *parts: np.concatenate(parts, operation.axis)

    @lowers("FULLY_CONNECTED")
    def fully_connected(self, operation):
        weight = operation.weight.value
        return lambda x, _, bias: x @ weight.T + (0 if bias is None else bias)


def context(driver=Small, **options):
    device = driver().open("")
    values = {option.name: option.default for option in device.capability.options}
    return device.create_context({**values, **options})


def single(type_, *types, attributes=None, constants=(), fuse_code=None):
    builder = ModelBuilder()
    operands = [builder.add_input(f"x{number}", item) for number, item in enumerate(types)]
    operands += [builder.add_constant(f"c{number}", item) for number, item in enumerate(constants)]
    more = {} if fuse_code is None else {"fuse_code": fuse_code}
    return builder.finish(builder.add_operation(type_, operands, {**(attributes or {}), **more}))


def verdict(model, **options):
    (result,) = context(**options).supported(model)
    return result


def compute(model, *inputs, driver=Small):
    execution = context(driver).compile(model).create_execution()
    return execution.compute(inputs)
