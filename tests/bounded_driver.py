"""A test driver with dynamic dimensions from two to eight; records what it compiles."""

from __future__ import annotations

from nnadapter.drivers import (
    SUPPORTED,
    Capability,
    Context,
    Device,
    DimensionBounds,
    Driver,
    DynamicShapes,
    Execution,
    ModelForm,
    Program,
    Threading,
)
from nnadapter.ir.definition import by_definition
from nnadapter.ir.structure import SymbolicModel

COMPILED: list[list[list[int | None]]] = []
"""Input dimensions of each compiled model; None for dynamic ones."""


class BoundedExecution(Execution):
    def __init__(self, model):
        self.model = model

    def specialize(self, sizes):
        return BoundedExecution(SymbolicModel(self.model).specialize(sizes))

    def compute(self, inputs):
        assert not self.model.has_dynamic_shapes, "a run of an open model is told sizes"
        assert [array.shape for array in inputs] == [self.model.type_at(each).dimensions for each in self.model.inputs]
        return by_definition(self.model, inputs)


class BoundedProgram(Program):
    def __init__(self, model):
        self.model = model

    def create_execution(self):
        return BoundedExecution(self.model)


class BoundedContext(Context):
    def supported(self, model):
        return [SUPPORTED] * len(model.operations)

    def compile(self, model):
        dimensions = [model.type_at(each).dimensions for each in model.inputs]
        COMPILED.append([[size if type(size) is int else None for size in each] for each in dimensions])
        return BoundedProgram(model)


class BoundedDevice(Device):
    @property
    def capability(self):
        return Capability(
            form=ModelForm.IR,
            threading=Threading.REENTRANT,
            dynamic_shapes=DynamicShapes.BOUNDED,
            dimension_bounds=DimensionBounds(smallest=2, largest=8, largest_elements=50),
        )

    def create_context(self, options):
        return BoundedContext()


class BoundedDriver(Driver):
    def open(self, device_id):
        return BoundedDevice()
