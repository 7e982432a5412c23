"""An operation with its operands and attributes by name, as lowerings of drivers read it."""

from __future__ import annotations

from typing import Any

from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Operand
from nnadapter.ir.operations import schema_of
from nnadapter.ir.schema import Attributes, OperationSchema


class NamedOperation:
    """One operation of a model: `operation.filter` is the operand of that role, `operation.strides` the attribute.

    A role gives an `Operand`, None where an optional one is absent, a tuple where it stands for several. What has the
    name of a property below is found in `inputs` and `attributes`.

    Args:
        model: of which the operation is a part.
        operation: one of `model.operations`.

    Raises:
        InvalidModelError: no such operation is known.
    """

    __slots__ = ("_model", "_operation", "schema")

    def __init__(self, model: Model, operation: Operation) -> None:
        self._model, self._operation = model, operation
        self.schema: OperationSchema = schema_of(operation.type)
        """The operation's row of the schema table."""

    @property
    def type(self) -> str:
        """The operation's name in the schema table: `CONV_2D`."""
        return self._operation.type

    @property
    def positions(self) -> tuple[int, ...]:
        """Where its inputs are in the model: one for every role, `ABSENT` where an optional one is left out."""
        inputs, roles = self._operation.inputs, self.schema.inputs
        return inputs + (ABSENT,) * (len(roles) - len(inputs) if not roles[-1].variadic else 0)

    @property
    def inputs(self) -> tuple[Operand | None, ...]:
        """The operands that it reads, one for every role; None where an optional one is left out."""
        return tuple(None if index == ABSENT else self._model.operands[index] for index in self.positions)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """The operands that it makes."""
        return tuple(self._model.operands[index] for index in self._operation.outputs)

    @property
    def output(self) -> Operand:
        """The first operand that it makes."""
        return self._model.operands[self._operation.outputs[0]]

    @property
    def attributes(self) -> Attributes:
        """Every attribute of the schema, by name."""
        return self._operation.attributes

    @property
    def origins(self) -> tuple[str, ...]:
        """Names of the ONNX nodes that it stands for."""
        return self._operation.origins

    def __getattr__(self, name: str) -> Any:
        """The operands of a role, or the value of an attribute."""
        if name.startswith("_"):  # asked of a copy that is being made, which has nothing yet
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
        """The operation and the nodes that it stands for."""
        return f"{self.type} of nodes {list(self.origins)}"
