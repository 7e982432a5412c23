"""Lowerings of operations whose optional inputs the kernels know by their roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.lowerings.elementwise import Lower
from nnadapter.ir.model import ABSENT, Operation
from nnadapter.ir.operations import schema_of
from nnadapter.ir.operations.access import floats
from nnadapter.ir.operations.recurrent import PARAMETERS, function_names


def by_role(kernel: str, *parameters: str) -> Lower:
    """One instruction with the inputs that are there, their roles, and the named attributes as they are."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        _emit(emitter, operation, kernel, {name: operation.attributes[name] for name in parameters})

    return lower


def recurrent(kernel: str, *parameters: str) -> Lower:
    """One instruction for a whole recurrent layer; each of its functions keeps the parameters that it reads."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        values = {name: operation.attributes[name] for name in ("direction", "clip", *parameters)}
        _emit(emitter, operation, kernel, {**values, **_functions(operation)})

    return lower


def _functions(operation: Operation) -> dict[str, Any]:
    names = function_names(operation.attributes)
    parameters: dict[str, Any] = {"functions": names}
    for position, name in enumerate(names):
        parameters[f"arguments_{position}"] = tuple(
            floats(operation.attributes, f"activation_{parameter}")[position] for parameter in PARAMETERS[name]
        )
    return parameters


def _emit(emitter: Emitter, operation: Operation, kernel: str, values: Mapping[str, Any]) -> None:
    tensors_by_role = {
        role.name: emitter.tensor(operand)
        for role, operand in zip(schema_of(operation.type).inputs, operation.inputs, strict=False)
        if operand != ABSENT
    }
    emitter.emit_operation(
        operation, kernel, {"roles": tuple(tensors_by_role), **values}, inputs=tuple(tensors_by_role.values())
    )
