"""Lowerings of operations that make tensors from next to nothing, and of casts of bits."""

from __future__ import annotations

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
