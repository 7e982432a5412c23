"""Activations that an operation can apply to its own output: the table of fuse codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import OperandType
from nnadapter.ir.operations.access import floats, string
from nnadapter.ir.operations.row import Types
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, FlopsRule, ShapeRule

FUSE_CODES: Mapping[str, tuple[tuple[str, ...], int]] = {
    "none": ((), 0),
    "relu": ((), 1),
    "clip": (("min", "max"), 2),
    "sigmoid": ((), 4),
    "hard_sigmoid": (("alpha", "beta"), 4),
    "hard_swish": (("alpha", "beta"), 5),
    "tanh": ((), 1),
    "leaky_relu": (("alpha",), 2),
    "gelu": ((), 5),
    "gelu_tanh": ((), 9),
    "swish": ((), 5),
}
"""By code: the names of its `fuse_parameters`, and its arithmetic steps per element, those of the operation itself.

Source: NNAPI FuseCode, extended by the activations that today's networks use.
"""

FUSE_ATTRIBUTES = (
    Attribute("fuse_code", AttributeKind.STRING, "none", tuple(FUSE_CODES)),
    Attribute("fuse_parameters", AttributeKind.FLOATS, ()),
)
"""The two attributes that every fusable operation has."""

_EXACT_ON_INTEGERS = frozenset({"none", "relu", "clip"})


def fusable(rule: ShapeRule) -> ShapeRule:
    """Return the shape rule, extended by the check of the fuse code and its parameters."""

    def infer(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
        result = rule(types, attributes)
        if attributes["fuse_code"] != "none" or attributes["fuse_parameters"]:
            _check(attributes, result[0])
        return result

    return infer


def fused(rule: FlopsRule) -> FlopsRule:
    """Return the FLOP formula, extended by the activation's steps, so that fusing does not change a model's FLOPs."""

    def flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
        _, steps = FUSE_CODES[string(attributes, "fuse_code")]
        return rule(types, outputs, attributes) + steps * outputs[0].size

    return flops


def _check(attributes: Attributes, output: OperandType) -> None:
    code = string(attributes, "fuse_code")
    parameters = floats(attributes, "fuse_parameters")
    names, _ = FUSE_CODES[code]
    if len(parameters) != len(names):
        raise InvalidModelError(
            f"fuse_parameters has {len(parameters)} values {list(parameters)}, "
            f"expected {len(names)} ({', '.join(names) or 'none'}) for fuse_code {code!r}"
        )
    if code not in _EXACT_ON_INTEGERS and not output.dtype.is_floating:
        raise InvalidModelError(f"fuse_code is {code!r} on {output.dtype.value}, expected a floating-point output")
