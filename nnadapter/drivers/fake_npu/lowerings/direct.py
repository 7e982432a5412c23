"""Lowerings to one kernel on unchanged operands, or to no kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.graph import Activation
from nnadapter.ir import ABSENT, Operation, schema_of
from nnadapter.ir.operations.recurrent import PARAMETERS, function_names
from nnadapter.ir.operations.row import floats

Lower = Callable[[Emitter, Operation], None]


def activation_of(operation: Operation) -> Activation | None:
    """Return the fused activation, or None."""
    code: Any = operation.attributes.get("fuse_code", "none")
    parameters: Any = operation.attributes.get("fuse_parameters")
    return None if code == "none" else Activation(code, tuple(parameters))


def direct(kernel: str, *parameters: str) -> Lower:
    """Return a lowering to one instruction with the operation's operands and these attributes."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        values = {name: operation.attributes[name] for name in parameters}
        emitter.emit_operation(operation, kernel, values, activation_of(operation))

    return lower


def unary(function: str, *arguments: str) -> Lower:
    """Return a lowering to the elementwise function `function` with these attributes as arguments."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        attributes: Mapping[str, Any] = operation.attributes
        parameters = {"function": function, "arguments": tuple(float(attributes[name]) for name in arguments)}
        emitter.emit_operation(operation, "unary", parameters)

    return lower


def lower_assign(emitter: Emitter, operation: Operation) -> None:
    """Assign the input to the output without an instruction."""
    emitter.assign(operation.outputs[0], emitter.tensor(operation.inputs[0]))


def chosen_by(attribute: str, lowerings: Mapping[object, Lower]) -> Lower:
    """Return a lowering that dispatches on an attribute."""
    return lambda emitter, operation: lowerings[operation.attributes[attribute]](emitter, operation)


def unless(is_unchanged: Callable[[Emitter, Operation], bool], lower: Lower) -> Lower:
    """Return a lowering that assigns the input to the output if `is_unchanged`, and otherwise calls `lower`."""
    return lambda emitter, operation: (lower_assign if is_unchanged(emitter, operation) else lower)(emitter, operation)


def has_one_input(emitter: Emitter, operation: Operation) -> bool:
    """Check whether an operation has one input."""
    return len(operation.inputs) == 1


def has_integers(emitter: Emitter, operation: Operation) -> bool:
    """Check whether the first input is not floating-point."""
    return not emitter.model.type_at(operation.inputs[0]).dtype.is_floating


def keeps_type(emitter: Emitter, operation: Operation) -> bool:
    """Check whether input and output have the same data type."""
    types = [emitter.model.type_at(operand) for operand in (*operation.inputs, *operation.outputs)]
    return types[0].dtype is types[1].dtype


def lower_cast(emitter: Emitter, operation: Operation) -> None:
    """Lower CAST, without an instruction if both types are equal on the device."""
    source, result = emitter.tensor(operation.inputs[0]), emitter.result_type(operation.outputs[0])
    same = emitter.type_of(source) == result
    emitter.assign(operation.outputs[0], source if same else emitter.emit("cast", (source,), (result,))[0])


def lower_sum(emitter: Emitter, operation: Operation) -> None:
    """Lower SUM of any number of tensors."""
    kernel = direct("add" if len(operation.inputs) == 2 else "sum")
    unless(has_one_input, kernel)(emitter, operation)


def lower_eye(emitter: Emitter, operation: Operation) -> None:
    """Lower EYE_LIKE, which ignores its input's contents."""
    emitter.emit_operation(operation, "diagonal", {"k": operation.attributes["k"]}, inputs=())


def lower_reshape(emitter: Emitter, operation: Operation) -> None:
    """Lower RESHAPE to a view."""
    dimensions = emitter.result_type(operation.outputs[0]).dimensions
    emitter.assign(operation.outputs[0], emitter.view(emitter.tensor(operation.inputs[0]), dimensions))


def lower_transpose(emitter: Emitter, operation: Operation) -> None:
    """Lower TRANSPOSE."""
    perm: Any = operation.attributes["perm"]
    emitter.assign(operation.outputs[0], emitter.transpose(emitter.tensor(operation.inputs[0]), perm))


def lower_expand(emitter: Emitter, operation: Operation) -> None:
    """Lower EXPAND; to a reshape if the result has as many elements as the input."""
    source, result = emitter.tensor(operation.inputs[0]), emitter.result_type(operation.outputs[0])
    (lower_reshape if emitter.type_of(source).size == result.size else direct("expand"))(emitter, operation)


def by_role(kernel: str, *parameters: str) -> Lower:
    """Return a lowering to one instruction with these attributes; its parameter `roles` names the inputs."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        _emit_by_role(emitter, operation, kernel, {name: operation.attributes[name] for name in parameters})

    return lower


def recurrent(kernel: str, *parameters: str) -> Lower:
    """Return a lowering of recurrent layers to one instruction with these attributes and the activation functions."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        attributes = operation.attributes
        values: dict[str, Any] = {name: attributes[name] for name in ("direction", "clip", *parameters)}
        values["functions"] = function_names(attributes)
        for position, name in enumerate(values["functions"]):
            values[f"arguments_{position}"] = tuple(
                floats(attributes, f"activation_{parameter}")[position] for parameter in PARAMETERS[name]
            )
        _emit_by_role(emitter, operation, kernel, values)

    return lower


def _emit_by_role(emitter: Emitter, operation: Operation, kernel: str, values: Mapping[str, Any]) -> None:
    roles = zip(schema_of(operation.type).inputs, operation.inputs, strict=False)
    tensors = {role.name: emitter.tensor(operand) for role, operand in roles if operand != ABSENT}
    emitter.emit_operation(operation, kernel, {"roles": tuple(tensors), **values}, inputs=tuple(tensors.values()))
