"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnadapter.exporting.writer import NodeWriter, exporter
from nnadapter.ir.operand import DataType
from nnadapter.ir.operations.recurrent import PARAMETERS

_NAMES: Mapping[str, str] = {
    "affine": "Affine",
    "elu": "Elu",
    "hard_sigmoid": "HardSigmoid",
    "leaky_relu": "LeakyRelu",
    "relu": "Relu",
    "scaled_tanh": "ScaledTanh",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "tanh": "Tanh",
    "thresholded_relu": "ThresholdedRelu",
}
"""ONNX's names of the functions."""
_LENGTHS = 4
"""Where the lengths of sequences stand among the inputs, on both sides."""


@exporter("LSTM", "GRU", "RNN")
def export_recurrent(write: NodeWriter) -> Sequence[str]:
    """LSTM, GRU and RNN. Source: ONNX LSTM-22, GRU-22, RNN-22."""
    of, inputs = write.operation, list(write.inputs)
    if inputs[_LENGTHS]:
        inputs[_LENGTHS] = write.cast(inputs[_LENGTHS], DataType.INT32)
    names = of.activations.split()
    flags = {name: of.attributes[name] for name in ("input_forget", "linear_before_reset") if name in of.attributes}
    return write.nodes(
        of.type,
        inputs,
        len(of.outputs),
        direction=of.direction,
        hidden_size=of.recurrent_weights.type.dimensions[2],
        activations=[_NAMES[name] for name in names],
        activation_alpha=_values(names, "alpha", of.activation_alpha),
        activation_beta=_values(names, "beta", of.activation_beta),
        clip=of.clip if of.clip < float("inf") else None,
        **flags,  # type: ignore[arg-type]
    )


def _values(names: Sequence[str], parameter: str, values: Sequence[float]) -> list[float] | None:
    """Those of functions that have such a parameter: ONNX lists no others."""
    wanted = [value for name, value in zip(names, values, strict=False) if parameter in PARAMETERS[name]]
    return wanted or None
