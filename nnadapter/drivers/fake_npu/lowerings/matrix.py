"""Lowerings of matrix products."""

from __future__ import annotations

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.lowerings.elementwise import activation_of, direct
from nnadapter.ir.model import ABSENT, Operation

lower_matmul = direct("matmul", "transpose_x", "transpose_y")
"""MAT_MUL."""


def lower_fully_connected(emitter: Emitter, operation: Operation) -> None:
    """FULLY_CONNECTED; the weight stays [N, K], which a matrix product reads as well as its transpose."""
    inputs = [emitter.tensor(operand) for operand in operation.inputs if operand != ABSENT]
    result = emitter.result_type(operation.outputs[0])
    (output,) = emitter.emit("fully_connected", inputs, (result,), activation=activation_of(operation))
    emitter.assign(operation.outputs[0], output)
