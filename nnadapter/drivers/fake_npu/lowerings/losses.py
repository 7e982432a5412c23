"""Lowerings of losses."""

from __future__ import annotations

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.ir.model import ABSENT, Operation


def lower_likelihood_loss(emitter: Emitter, operation: Operation) -> None:
    """NEGATIVE_LOG_LIKELIHOOD_LOSS."""
    _emit(emitter, operation, emitter.tensor(operation.inputs[0]))


def lower_cross_entropy_loss(emitter: Emitter, operation: Operation) -> None:
    """SOFTMAX_CROSS_ENTROPY_LOSS: the logarithm of softmax, then the likelihood."""
    scores, result = emitter.tensor(operation.inputs[0]), emitter.result_type(operation.outputs[1])
    (logarithms,) = emitter.emit("log_softmax", (scores,), (result,), {"axis": 1})
    emitter.assign(operation.outputs[1], logarithms)
    _emit(emitter, operation, logarithms)


def _emit(emitter: Emitter, operation: Operation, logarithms: int) -> None:
    rest = [emitter.tensor(operand) for operand in operation.inputs[1:] if operand != ABSENT]
    parameters = {name: operation.attributes[name] for name in ("reduction", "ignore_index")}
    results = (emitter.result_type(operation.outputs[0]),)
    (loss,) = emitter.emit("negative_log_likelihood", (logarithms, *rest), results, parameters)
    emitter.assign(operation.outputs[0], loss)
