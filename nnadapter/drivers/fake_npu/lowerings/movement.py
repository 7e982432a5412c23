"""Lowerings of operations that generate tensors or move elements."""

from __future__ import annotations

from typing import Any

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.lowerings.elementwise import direct, lower_assign
from nnadapter.ir.model import Operation


def lower_eye(emitter: Emitter, operation: Operation) -> None:
    """EYE_LIKE; nothing of the input is read."""
    emitter.emit_operation(operation, "diagonal", {"k": operation.attributes["k"]}, inputs=())


def lower_bit_shift(emitter: Emitter, operation: Operation) -> None:
    """BIT_SHIFT, to the left or to the right."""
    direct(f"shift_{operation.attributes['direction']}")(emitter, operation)


def lower_bit_cast(emitter: Emitter, operation: Operation) -> None:
    """BIT_CAST; nothing to do where the data type stays."""
    (source,), (output,) = operation.inputs, operation.outputs
    types = emitter.model.operands[source].type, emitter.model.operands[output].type
    (lower_assign if types[0].dtype is types[1].dtype else direct("bit_cast"))(emitter, operation)


def lower_reshape(emitter: Emitter, operation: Operation) -> None:
    """RESHAPE: tensors are contiguous, so it is a view."""
    dimensions = emitter.result_type(operation.outputs[0]).dimensions
    emitter.assign(operation.outputs[0], emitter.view(emitter.tensor(operation.inputs[0]), dimensions))


def lower_transpose(emitter: Emitter, operation: Operation) -> None:
    """TRANSPOSE."""
    perm: Any = operation.attributes["perm"]
    emitter.assign(operation.outputs[0], emitter.transpose(emitter.tensor(operation.inputs[0]), perm))


def lower_expand(emitter: Emitter, operation: Operation) -> None:
    """EXPAND; a view where it only adds axes of size 1."""
    source, result = emitter.tensor(operation.inputs[0]), emitter.result_type(operation.outputs[0])
    if emitter.type_of(source).size == result.size:
        lower_reshape(emitter, operation)
    else:
        direct("expand")(emitter, operation)


def lower_concat(emitter: Emitter, operation: Operation) -> None:
    """CONCAT; one part is the whole."""
    (lower_assign if len(operation.inputs) == 1 else direct("concat", "axis"))(emitter, operation)
