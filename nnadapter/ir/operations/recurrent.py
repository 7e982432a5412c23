"""Recurrent layers over whole sequences.

Steps T, batch B, features I, directions D, hidden units H, gates G (LSTM 4, GRU 3, RNN 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import OperandType
from nnadapter.ir.operations.row import Row, family, read_table
from nnadapter.ir.schema import Attributes

GATES: Mapping[str, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Number of gates. ONNX orders them input, output, forget, cell (LSTM) or update, reset, hidden (GRU)."""
FUNCTIONS_PER_DIRECTION: Mapping[str, int] = {"LSTM": 3, "GRU": 2, "RNN": 1}
"""Functions per direction in `activations`: for gates (LSTM, GRU), cell (LSTM) and hidden state."""
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "affine": ("alpha", "beta"),
    "elu": ("alpha",),
    "hard_sigmoid": ("alpha", "beta"),
    "leaky_relu": ("alpha",),
    "relu": (),
    "scaled_tanh": ("alpha", "beta"),
    "sigmoid": (),
    "softplus": (),
    "softsign": (),
    "tanh": (),
    "thresholded_relu": ("alpha",),
}

_DIRECTIONS: Mapping[str, int] = {"forward": 1, "reverse": 1, "bidirectional": 2}
row = family(cost="recurrent")


def _rule(
    type_: str,
    first: OperandType,
    *others: OperandType | None,
    direction: str,
    activations: str,
    **attributes: object,
) -> tuple[OperandType, ...]:
    steps, batch, features = first.dimensions
    recurrent = others[1]
    assert recurrent is not None, "weights are required"
    if recurrent.rank != 3:
        raise InvalidModelError(f"recurrent_weights has dimensions {list(recurrent.dimensions)}, expected three")
    hidden, directions = recurrent.dimensions[2], _DIRECTIONS[direction]
    gates = GATES[type_] * hidden
    _check_functions(type_, directions, activations.split(), attributes)
    state = (directions, batch, hidden)
    expected = {
        "weights": (directions, gates, features),
        "recurrent_weights": (directions, gates, hidden),
        "bias": (directions, 2 * gates),
        "sequence_lengths": (batch,),
        "initial_hidden": state,
        "initial_cell": state,
        "peepholes": (directions, 3 * hidden),
    }
    for (name, dimensions), operand_type in zip(expected.items(), others, strict=False):
        if operand_type is not None and operand_type.dimensions != dimensions:
            raise InvalidModelError(
                f"{name} has dimensions {list(operand_type.dimensions)}, expected {list(dimensions)} for input "
                f"{list(first.dimensions)} and {hidden} hidden units"
            )
    states = (OperandType(first.dtype, state),) * (2 if type_ == "LSTM" else 1)
    return OperandType(first.dtype, (steps, *state)), *states


def _check_functions(type_: str, directions: int, names: Sequence[str], attributes: Mapping[str, Any]) -> None:
    count = FUNCTIONS_PER_DIRECTION[type_] * directions
    if len(names) != count or any(name not in PARAMETERS for name in names):
        raise InvalidModelError(
            f"activations is {' '.join(names)!r}, expected {count} names out of {', '.join(PARAMETERS)}"
        )
    for parameter in ("alpha", "beta"):
        values = attributes[f"activation_{parameter}"]
        needed = any(parameter in PARAMETERS[name] for name in names)
        if len(values) != count and (values or needed):
            raise InvalidModelError(f"activation_{parameter} has {len(values)} values, expected {count}")


def function_names(attributes: Attributes) -> tuple[str, ...]:
    """Return the names in the attribute `activations`."""
    return tuple(str(attributes["activations"]).split())


def _flops(
    type_: str,
    outputs: Sequence[OperandType],
    first: OperandType,
    weights: OperandType,
    recurrent: OperandType,
    *others: OperandType | None,
    **attributes: object,
) -> int:
    # two products and a bias per gate, then the gate functions and their combination
    features, hidden = first.dimensions[2], recurrent.dimensions[2]
    per_unit = {"LSTM": 10, "GRU": 7, "RNN": 1}[type_]
    return outputs[0].size * (GATES[type_] * (2 * features + 2 * hidden + 2) + per_unit)


_ROWS = """\
LSTM | , initial_cell?: float as input, peepholes?: float as input | sigmoid tanh tanh | \
, input_forget: bool = False | output, hidden, cell | \
NNAPI UNIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_LSTM; ONNX LSTM-22 with layout 0
GRU | | sigmoid tanh | , linear_before_reset: bool = False | output, hidden | ONNX GRU-22 with layout 0
RNN | | tanh | | output, hidden | \
NNAPI UNIDIRECTIONAL_SEQUENCE_RNN and BIDIRECTIONAL_SEQUENCE_RNN; ONNX RNN-22 with layout 0
"""

ROWS: tuple[Row, ...] = tuple(
    row(
        f"{type_}(input[3]: float, weights: float as input, recurrent_weights: float as input, bias?: float as input, "
        f"sequence_lengths?: int32, initial_hidden?: float as input{inputs}; "
        f"direction: string(forward|reverse|bidirectional) = forward, activations: string = {functions}, "
        f"activation_alpha: floats = (), activation_beta: floats = (), clip: float = inf{more} -> {outputs}",
        partial(_rule, type_),
        partial(_flops, type_),
        source,
    )
    for type_, inputs, functions, more, outputs, source in read_table(_ROWS)
)
