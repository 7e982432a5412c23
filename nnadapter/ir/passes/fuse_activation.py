"""Activations that the operation before them can apply itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnadapter.ir.editing import editing
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import Operation
from nnadapter.ir.pattern import Match, operand, operation
from nnadapter.ir.rewrite import RewriteRule, apply_rules

FUSABLE = ("CONV_2D", "CONV_2D_TRANSPOSE", "FULLY_CONNECTED", "MAT_MUL", "ADD", "SUB", "MUL", "DIV")
"""Operations that have a `fuse_code`."""

_ACTIVATIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "RELU": ("relu", ()),
    "CLIP": ("clip", ("min", "max")),
    "SIGMOID": ("sigmoid", ()),
    "HARD_SIGMOID": ("hard_sigmoid", ("alpha", "beta")),
    "HARD_SWISH": ("hard_swish", ("alpha", "beta")),
    "TANH": ("tanh", ()),
    "LEAKY_RELU": ("leaky_relu", ("alpha",)),
    "GELU": ("gelu", ()),
    "SWISH": ("swish", ()),
}
"""By operation type: the fuse code, and the attributes that are its parameters."""


@editing
def fuse_activation(editor: ModelEditor) -> None:
    """Let an operation with a `fuse_code` apply the activation behind it.

    1. RELU, CLIP, SIGMOID, HARD_SIGMOID, HARD_SWISH, TANH, LEAKY_RELU, GELU and SWISH are fused; their attributes
       become `fuse_parameters`.
    2. Refused: a host whose output something else reads or the model gives back, or that has an activation already;
       integers; a SWISH whose alpha is not 1.
    """
    apply_rules(editor, _ACTIVATION_RULES)


def _fuse_clamp(editor: ModelEditor, match: Match) -> Sequence[int] | None:
    activation, host = editor.operation(match.anchor), editor.operation(match.named["host"])
    code, names = _code(activation)
    if activation.attributes.get("alpha", 1.0) != 1.0 and code == "swish":
        return None
    attributes = {
        **host.attributes,
        "fuse_code": code,
        "fuse_parameters": tuple(activation.attributes[name] for name in names),
    }
    return editor.add_operation(
        host.type,
        host.inputs,
        attributes,  # type: ignore[arg-type]
        origins=(match.named["host"], *match.operations),
    )


def _code(activation: Operation) -> tuple[str, tuple[str, ...]]:
    code, names = _ACTIVATIONS[activation.type]
    return ("gelu_tanh", names) if activation.attributes.get("approximate") == "tanh" else (code, names)


_ACTIVATION_RULES = (
    RewriteRule(
        operation(
            tuple(_ACTIVATIONS),
            operation(FUSABLE, operand("input", when=lambda matched: matched.type.dtype.is_floating), name="host"),
        ),
        _fuse_clamp,
    ),
)
