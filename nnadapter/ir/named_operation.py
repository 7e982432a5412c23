"""Access to an operation's operands and attributes by name, for drivers."""

from __future__ import annotations

from typing import Any

from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Operand
from nnadapter.ir.operations import schema_of
from nnadapter.ir.schema import Attributes, OperationSchema


class NamedOperation:
    """One operation of a model: `operation.filter` is the operand of that role, `operation.strides` the attribute.

    A role is an `Operand`, None if absent, or a tuple if variadic. If a property of this class has the same name, use
    `inputs` or `attributes`. Raises InvalidModelError for an unknown type.
    """

    __slots__ = ("_model", "_operation", "schema")

    def __init__(self, model: Model, operation: Operation) -> None:
        self._model, self._operation = model, operation
        self.schema: OperationSchema = schema_of(operation.type)

    @property
    def type(self) -> str:
        """Name in the schema table, such as `CONV_2D`."""
        return self._operation.type

    @property
    def positions(self) -> tuple[int, ...]:
        """Indices of the inputs in the model, by role; `ABSENT` if absent."""
        inputs, roles = self._operation.inputs, self.schema.inputs
        return inputs + (ABSENT,) * (len(roles) - len(inputs) if not roles[-1].variadic else 0)

    @property
    def inputs(self) -> tuple[Operand | None, ...]:
        """Input operands by role; None if absent."""
        return tuple(None if index == ABSENT else self._model.operands[index] for index in self.positions)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        return tuple(self._model.operands[index] for index in self._operation.outputs)

    @property
    def output(self) -> Operand:
        return self._model.operands[self._operation.outputs[0]]

    @property
    def attributes(self) -> Attributes:
        """Every attribute, by name."""
        return self._operation.attributes

    @property
    def origins(self) -> tuple[str, ...]:
        """Names of the implemented ONNX nodes."""
        return self._operation.origins

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # `copy` asks an instance that has no fields yet
            raise AttributeError(name)
        attributes = self._operation.attributes
        if name in attributes:
            return attributes[name]
        for position, role in enumerate(self.schema.inputs):
            if role.name == name:
                return self.inputs[position:] if role.variadic else self.inputs[position]
        roles = (role.name for role in self.schema.inputs)
        raise AttributeError(f"{self.type} has no {name!r}; it has {', '.join((*roles, *attributes))}")

    def __repr__(self) -> str:
        return f"{self.type} of nodes {list(self.origins)}"
