"""Operation with its operands and attributes by name, as drivers read it."""

from __future__ import annotations

from typing import Any

from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Operand
from nnadapter.ir.operations import schema_of
from nnadapter.ir.schema import Attributes, OperationSchema


class NamedOperation:
    """One operation of a model: `operation.filter` is the operand of that role, `operation.strides` the attribute.

    A role returns an `Operand`, None if absent, or a tuple if variadic. For names that a property below hides, use
    `inputs`
    and `attributes`.

    Args:
        model: the model that contains the operation.
        operation: one of `model.operations`.

    Raises:
        InvalidModelError: unknown operation type.
    """

    __slots__ = ("_model", "_operation", "schema")

    def __init__(self, model: Model, operation: Operation) -> None:
        self._model, self._operation = model, operation
        self.schema: OperationSchema = schema_of(operation.type)
        """The operation's row of the schema table."""

    @property
    def type(self) -> str:
        """The operation's name in the schema table, such as `CONV_2D`."""
        return self._operation.type

    @property
    def positions(self) -> tuple[int, ...]:
        """Indices of its inputs in the model, one per role; `ABSENT` for an absent one."""
        inputs, roles = self._operation.inputs, self.schema.inputs
        return inputs + (ABSENT,) * (len(roles) - len(inputs) if not roles[-1].variadic else 0)

    @property
    def inputs(self) -> tuple[Operand | None, ...]:
        """The operands that it reads, one per role; None for an absent one."""
        return tuple(None if index == ABSENT else self._model.operands[index] for index in self.positions)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """The operands that it produces."""
        return tuple(self._model.operands[index] for index in self._operation.outputs)

    @property
    def output(self) -> Operand:
        """The first operand that it produces."""
        return self._model.operands[self._operation.outputs[0]]

    @property
    def attributes(self) -> Attributes:
        """Every attribute of the schema, by name."""
        return self._operation.attributes

    @property
    def origins(self) -> tuple[str, ...]:
        """Names of the ONNX nodes that it implements."""
        return self._operation.origins

    def __getattr__(self, name: str) -> Any:
        """Return the operand or operands of a role, or the value of an attribute."""
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
