"""A fake_npu that computes some nodes wrongly, for `compare --layers` to find."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nnadapter.drivers import Context, Device, Driver, Option
from nnadapter.drivers.fake_npu import FakeNpuDriver
from nnadapter.ir import Lifetime, Model, Operand, OperandType, Operation
from nnadapter.ir.operand import freeze

COMPILED = []
"""Nodes of each compiled model."""
FUSE_NOTHING = {"fuse_code": "none", "fuse_parameters": ()}


class PlantedContext(Context):
    def __init__(self, context, options):
        self.context, self.options = context, options

    def supported(self, model):
        return self.context.supported(model)

    def admit(self, model):
        return self.context.admit(model)

    def compile(self, model):
        COMPILED.append([name for operation in model.operations for name in operation.origins])
        return self.context.compile(self.spoiled(model))

    def spoiled(self, model):
        there = set(COMPILED[-1])
        wrong = {name for name in self.options["wrong"] if name in there}
        fused = self.options["fused"]
        if fused and there.issuperset(fused) and not shows(model, fused[:-1]):
            wrong.add(fused[-1])
        for name in self.options["slightly"]:
            model = spoil(model, name, 1 + 4e-4, 0)
        for name in sorted(wrong):
            model = spoil(model, name, -1.5, 1)
        return model

    def close(self):
        self.context.close()


def shows(model, names):
    """Return whether a result of one of these nodes is a model output."""
    made = {out for operation in model.operations if {*operation.origins} & {*names} for out in operation.outputs}
    return bool(made & {*model.outputs})


def spoil(model, name, factor, more):
    """Return the model with the first result of a node's last operation scaled and shifted, or inverted."""
    behind = [place for place, operation in enumerate(model.operations) if name in operation.origins]
    if not behind:
        return model
    operation, operands = model.operations[behind[-1]], list(model.operands)
    result = operation.outputs[0]
    type_ = operands[result].type
    made = [replace(operation, outputs=(len(operands), *operation.outputs[1:]))]
    operands.append(Operand(f"right {len(operands)}", type_, Lifetime.TEMPORARY))
    if type_.dtype == "bool":
        made.append(Operation("NOT", (len(operands) - 1,), (result,), {}, operation.origins))
    elif type_.quantization is not None:
        squared = (len(operands) - 1,) * 2
        made.append(Operation("MUL", squared, (result,), FUSE_NOTHING, operation.origins))
    else:
        for type_name, number, out in (("MUL", factor, len(operands) + 1), ("ADD", more, result)):
            value = freeze(np.full((1,) * len(type_.dimensions), number).astype(type_.dtype))
            number_type = OperandType(type_.dtype, value.shape)
            given = len(operands) - 1
            operands.append(Operand(f"number {len(operands)}", number_type, Lifetime.CONSTANT, value))
            if out != result:
                operands.append(Operand(f"multiplied {len(operands)}", type_, Lifetime.TEMPORARY))
            made.append(Operation(type_name, (given, given + 1), (out,), FUSE_NOTHING, operation.origins))
    operations = (*model.operations[: behind[-1]], *made, *model.operations[behind[-1] + 1 :])
    return Model(tuple(operands), operations, model.inputs, model.outputs)


class PlantedDevice(Device):
    def __init__(self):
        self.device = FakeNpuDriver().open("")

    @property
    def capability(self):
        own = self.device.capability
        more = (
            Option(name="wrong", default=(), help="Nodes that are computed wrongly."),
            Option(name="slightly", default=(), help="Nodes that are off by less than the usual tolerance."),
            Option(name="fused", default=(), help="Nodes the last of which is wrong where those before are inside."),
        )
        return replace(own, options=(*own.options, *more))

    def create_context(self, options):
        own = {name: value for name, value in options.items() if name not in ("wrong", "slightly", "fused")}
        return PlantedContext(self.device.create_context(own), options)


class PlantedDriver(Driver):
    def open(self, device_id):
        return PlantedDevice()
