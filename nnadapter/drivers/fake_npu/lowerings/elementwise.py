"""Lowerings of elementwise operations, and of others whose operands kernels take as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isinf
from typing import Any

import numpy as np

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.graph import Activation
from nnadapter.ir.model import ABSENT, Operation
from nnadapter.ir.operations import schema_of
from nnadapter.ir.operations.recurrent import PARAMETERS, function_names
from nnadapter.ir.operations.row import floats

Lower = Callable[[Emitter, Operation], None]
"""Writes the instructions of one operation and sets its outputs."""


def activation_of(operation: Operation) -> Activation | None:
    """The activation that the operation's fuse code names, or None."""
    code: Any = operation.attributes["fuse_code"]
    if code == "none":
        return None
    parameters: Any = operation.attributes["fuse_parameters"]
    return Activation(code, tuple(parameters))


def direct(kernel: str, *parameters: str) -> Lower:
    """One instruction with the operation's inputs that are there, outputs, and the named attributes as they are."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        values = {name: operation.attributes[name] for name in parameters}
        activation = activation_of(operation) if "fuse_code" in operation.attributes else None
        emitter.emit_operation(operation, kernel, values, activation)

    return lower


def unary(function: str, *arguments: str) -> Lower:
    """A row of the function table, its arguments being the named attributes."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        _emit_unary(emitter, operation, function, *(float(_number(operation, name)) for name in arguments))

    return lower


def _number(operation: Operation, name: str) -> float:
    value: Any = operation.attributes[name]
    return float(value)


def _emit_unary(emitter: Emitter, operation: Operation, function: str, *arguments: float) -> None:
    parameters = {"function": function, "arguments": arguments}
    emitter.emit_operation(operation, "unary", parameters, inputs=(emitter.tensor(operation.inputs[0]),))


def lower_assign(emitter: Emitter, operation: Operation) -> None:
    """The same tensor under another name."""
    emitter.assign(operation.outputs[0], emitter.tensor(operation.inputs[0]))


def rounding(function: str) -> Lower:
    """FLOOR, CEIL, ROUND: nothing to do for integers."""
    lower_float = unary(function)

    def lower(emitter: Emitter, operation: Operation) -> None:
        is_float = emitter.model.operands[operation.inputs[0]].type.dtype.is_floating
        (lower_float if is_float else lower_assign)(emitter, operation)

    return lower


def lower_clip(emitter: Emitter, operation: Operation) -> None:
    """CLIP; one that starts at 0 and has no end is a relu."""
    minimum, maximum = _number(operation, "min"), _number(operation, "max")
    if minimum == 0 and isinf(maximum) and maximum > 0:
        _emit_unary(emitter, operation, "relu")
    else:
        _emit_unary(emitter, operation, "clip", minimum, maximum)


def lower_gelu(emitter: Emitter, operation: Operation) -> None:
    """GELU, exact or by tanh."""
    _emit_unary(emitter, operation, "gelu" if operation.attributes["approximate"] == "none" else "gelu_tanh")


def lower_cast(emitter: Emitter, operation: Operation) -> None:
    """CAST; nothing to do where the device's cells stay the same."""
    source = emitter.tensor(operation.inputs[0])
    wanted = emitter.result_type(operation.outputs[0])
    same = emitter.type_of(source) == wanted
    emitter.assign(operation.outputs[0], source if same else emitter.emit("cast", (source,), (wanted,))[0])


def lower_modulo(emitter: Emitter, operation: Operation) -> None:
    """MOD, with the sign of the divisor or, as in C's fmod, of the dividend."""
    direct("float_modulo" if operation.attributes["fmod"] else "modulo")(emitter, operation)


def lower_power(emitter: Emitter, operation: Operation) -> None:
    """POW; squares and square roots have instructions of their own."""
    base, exponent = operation.inputs
    known = _single_exponent(emitter, base, exponent)
    if known == 2:
        emitter.emit_operation(operation, "multiply", inputs=(emitter.tensor(base),) * 2)
    elif known == 0.5:
        _emit_unary(emitter, operation, "sqrt")
    else:
        direct("power")(emitter, operation)


def _single_exponent(emitter: Emitter, base: int, exponent: int) -> float | None:
    """The exponent, if it is one known number that leaves a floating-point base's dimensions as they are."""
    base_type, type_ = emitter.model.operands[base].type, emitter.model.operands[exponent].type
    if not (emitter.is_constant(exponent) and base_type.dtype.is_floating):
        return None
    return float(np.ravel(emitter.constant(exponent))[0]) if type_.size == 1 and type_.rank <= base_type.rank else None


def lower_sum(emitter: Emitter, operation: Operation) -> None:
    """SUM of any number of tensors."""
    kernels = {1: lower_assign, 2: direct("add")}
    kernels.get(len(operation.inputs), direct("sum"))(emitter, operation)


def with_filter(kernel: str, *more: str) -> Lower:
    """Lower to one instruction with the roles of its inputs, the geometry of its filter, and the attributes `more`."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        parameters = {name: operation.attributes[name] for name in ("strides", "dilations", "pads", "group", *more)}
        parameters["kernel_shape"] = emitter.model.operands[operation.inputs[1]].type.dimensions[2:]
        _emit(emitter, operation, kernel, parameters)

    return lower


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
