"""Recurrent layers over whole sequences.

Sizes: steps T, batch B, features I, directions D (1 or 2), hidden units H, gates G (LSTM 4, GRU 3, RNN 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import FLOATING, DataType, OperandType
from nnadapter.ir.operations.row import Types, floats, present, row, string
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, FlopsRule, OperationSchema, Role, ShapeRule

GATES: Mapping[str, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""How many gates each layer has; their order is ONNX's: input, output, forget, cell; update, reset, hidden."""
FUNCTIONS_PER_DIRECTION: Mapping[str, int] = {"LSTM": 3, "GRU": 2, "RNN": 1}
"""How many names the attribute `activations` holds per direction: gates, cell, hidden; gates, hidden; hidden."""
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
"""The functions that gates may have, and which of `activation_alpha` and `activation_beta` they read."""

_DIRECTIONS: Mapping[str, int] = {"forward": 1, "reverse": 1, "bidirectional": 2}
_ROLES = (
    Role("input", FLOATING),
    Role("weights", FLOATING, same_dtype_as="input"),
    Role("recurrent_weights", FLOATING, same_dtype_as="input"),
    Role("bias", FLOATING, optional=True, same_dtype_as="input"),
    Role("sequence_lengths", frozenset({DataType.INT32}), optional=True),
    Role("initial_hidden", FLOATING, optional=True, same_dtype_as="input"),
)
_CELL_ROLES = (
    Role("initial_cell", FLOATING, optional=True, same_dtype_as="input"),
    Role("peepholes", FLOATING, optional=True, same_dtype_as="input"),
)


def _rule(type_: str) -> ShapeRule:
    def infer(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
        first = present(types, 0)
        steps, batch, features = first.dimensions
        hidden = _hidden_units(types)
        directions = _DIRECTIONS[string(attributes, "direction")]
        gates = GATES[type_] * hidden
        _check_functions(type_, directions, attributes)
        state = (directions, batch, hidden)
        wanted = (
            ("weights", (directions, gates, features)),
            ("recurrent_weights", (directions, gates, hidden)),
            ("bias", (directions, 2 * gates)),
            ("sequence_lengths", (batch,)),
            ("initial_hidden", state),
            ("initial_cell", state),
            ("peepholes", (directions, 3 * hidden)),
        )
        for (name, dimensions), operand_type in zip(wanted, types[1:], strict=False):
            if operand_type is not None and operand_type.dimensions != dimensions:
                raise InvalidModelError(
                    f"{name} has dimensions {list(operand_type.dimensions)}, expected {list(dimensions)} for input "
                    f"{list(first.dimensions)} and {hidden} hidden units"
                )
        sequence = OperandType(first.dtype, (steps, *state))
        return (sequence, *(OperandType(first.dtype, state),) * (2 if type_ == "LSTM" else 1))

    return infer


def _hidden_units(types: Types) -> int:
    recurrent = present(types, 2)
    if recurrent.rank != 3:
        raise InvalidModelError(f"recurrent_weights has dimensions {list(recurrent.dimensions)}, expected three")
    return recurrent.dimensions[2]


def _check_functions(type_: str, directions: int, attributes: Attributes) -> None:
    names = function_names(attributes)
    wanted = FUNCTIONS_PER_DIRECTION[type_] * directions
    if len(names) != wanted or any(name not in PARAMETERS for name in names):
        raise InvalidModelError(
            f"activations is {' '.join(names)!r}, expected {wanted} names out of {', '.join(PARAMETERS)}"
        )
    for parameter in ("alpha", "beta"):
        values = floats(attributes, f"activation_{parameter}")
        needed = any(parameter in PARAMETERS[name] for name in names)
        if len(values) != wanted and (values or needed):
            raise InvalidModelError(f"activation_{parameter} has {len(values)} values, expected {wanted}")


def function_names(attributes: Attributes) -> tuple[str, ...]:
    """The names that the attribute `activations` holds, in their order."""
    return tuple(string(attributes, "activations").split())


def _flops(gates: int, steps_per_unit: int) -> FlopsRule:
    def flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
        # Two products and a bias per gate, then the gates' functions and what joins them.
        features, hidden = present(types, 0).dimensions[2], present(types, 2).dimensions[2]
        return outputs[0].size * (gates * (2 * features + 2 * hidden + 2) + steps_per_unit)

    return flops


def _attributes(functions: str) -> tuple[Attribute, ...]:
    return (
        Attribute("direction", AttributeKind.STRING, "forward", choices=tuple(_DIRECTIONS)),
        Attribute("activations", AttributeKind.STRING, functions),
        Attribute("activation_alpha", AttributeKind.FLOATS, ()),
        Attribute("activation_beta", AttributeKind.FLOATS, ()),
        Attribute("clip", AttributeKind.FLOAT, float("inf")),
    )


ROWS: tuple[OperationSchema, ...] = (
    row(
        "LSTM",
        (*_ROLES, *_CELL_ROLES),
        _rule("LSTM"),
        _flops(GATES["LSTM"], 10),
        "NNAPI UNIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_LSTM; ONNX LSTM-22 with layout 0",
        attributes=(*_attributes("sigmoid tanh tanh"), Attribute("input_forget", AttributeKind.BOOL, False)),
        outputs=("output", "hidden", "cell"),
        ranks=(3, 3),
    ),
    row(
        "GRU",
        _ROLES,
        _rule("GRU"),
        _flops(GATES["GRU"], 7),
        "ONNX GRU-22 with layout 0",
        attributes=(*_attributes("sigmoid tanh"), Attribute("linear_before_reset", AttributeKind.BOOL, False)),
        outputs=("output", "hidden"),
        ranks=(3, 3),
    ),
    row(
        "RNN",
        _ROLES,
        _rule("RNN"),
        _flops(GATES["RNN"], 1),
        "NNAPI UNIDIRECTIONAL_SEQUENCE_RNN and BIDIRECTIONAL_SEQUENCE_RNN; ONNX RNN-22 with layout 0",
        attributes=_attributes("tanh"),
        outputs=("output", "hidden"),
        ranks=(3, 3),
    ),
)
"""The rows of this family.

`activations` holds names separated by spaces, those of the reverse direction last. `clip` limits what functions are
given, except for LSTM's hidden function, as in ONNX Runtime. Behind its `sequence_lengths` a sequence gives zeros and
keeps its states.
"""
