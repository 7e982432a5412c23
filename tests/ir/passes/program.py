"""Shorthand for models, and checks of the contract of a pass."""

import numpy as np

from nnadapter.ir import DataType, ModelBuilder, OperandType
from nnadapter.ir import verify as check_model
from nnadapter.ir.definition import by_definition


class Program:
    """Model under construction: `x = program("RELU", program.x)`; arrays and numbers become constants."""

    def __init__(self, dtype="float32", **inputs):
        self.builder, self.dtype, self.count = ModelBuilder(), dtype, 0
        self.made, self.read = [], set()
        for name, dimensions in inputs.items():
            setattr(self, name, self.builder.add_input(name, OperandType(DataType(dtype), tuple(dimensions))))

    def __call__(self, type_, *inputs, **attributes):
        self.count += 1
        operands = [self._operand(each) for each in inputs]
        made = self.builder.add_operation(
            type_,
            operands,
            attributes,
            outputs=[f"v{self.count}"],
            origins=[f"n{self.count}"],
        )
        self.read.update(operands)
        self.made.extend(made)
        return made[0] if len(made) == 1 else made

    def finish(self, *outputs):
        return self.builder.finish(outputs)

    def dimensions(self, operand):
        return self.builder.type_of(operand).dimensions

    def _operand(self, given):
        if isinstance(given, int):
            return given
        self.count += 1
        value = np.asarray(given) if isinstance(given, np.ndarray) else np.asarray(given, self.dtype)
        return self.builder.add_constant(f"c{self.count}", value)


def chain(*steps):
    program = Program(x=(2, 3))
    x = program.x
    for step in steps:
        x = program(step, x)
    return program.finish(x)


def random(seed, *dimensions):
    return np.random.default_rng(seed).standard_normal(dimensions).astype(np.float32)


def feeds(model, seed=0):
    generator = np.random.default_rng(seed)
    types = [model.operands[index].type for index in model.inputs]
    return [generator.standard_normal(type_.dimensions).astype(type_.dtype.value) for type_ in types]


def types(model):
    return [operation.type for operation in model.operations]


def origins(model):
    return {name for operation in model.operations for name in operation.origins}


def border(model):
    return [(model.operands[i].name, model.operands[i].type) for i in (*model.inputs, *model.outputs)]


def check(function, model, tolerance=2e-5, keeps_origins=True):
    """Apply a pass: the result computes the same, with the same signature and the same nodes as origins."""
    check_model(model)
    before = [(operation.type, operation.inputs) for operation in model.operations]
    after = function(model)
    check_model(after)
    assert [(operation.type, operation.inputs) for operation in model.operations] == before
    assert border(after) == border(model)
    names = [operand.name for operand in after.operands]
    assert len(set(names)) == len(names)
    verify(after)
    if keeps_origins:
        assert origins(after) == origins(model)
    given = feeds(model)
    for got, expected in zip(by_definition(after, given), by_definition(model, given), strict=True):
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    return after


def verify(model):
    """Rebuild the model, which infers every type again, and compare."""
    builder, new = ModelBuilder(), {-1: -1}
    made = {operand for operation in model.operations for operand in operation.outputs}
    for index, operand in enumerate(model.operands):
        if operand.value is not None:
            new[index] = builder.add_constant(operand.name, operand.value, operand.type.quantization)
        elif index not in made:
            new[index] = builder.add_input(operand.name, operand.type)
    for operation in model.operations:
        names = [model.operands[index].name for index in operation.outputs]
        results = builder.add_operation(
            operation.type,
            [new[index] for index in operation.inputs],
            operation.attributes,
            outputs=names,
            quantized=[model.operands[index].type.quantized for index in operation.outputs],
        )
        for index, result in zip(operation.outputs, results, strict=True):
            assert builder.type_of(result) == model.operands[index].type, (operation.type, model.operands[index])
            new[index] = result
