"""A model prepared, with what converters and kernels know of operators."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nnadapter.converters.registry import has_converter
from nnadapter.converters.validity import contradiction
from nnadapter.onnx.operators import NO_RULES, Operators, Rules
from nnadapter.onnx.preparation import prepare as preparation
from nnadapter.onnx.preparation.prepare import Prepared

if TYPE_CHECKING:
    import onnx

OPERATORS = Operators(has_converter, contradiction)
"""What converters know; kernels are those of a session's devices."""


def prepare(model: onnx.ModelProto, rules: Rules = NO_RULES) -> Prepared:
    """Return `model` with what does not depend on input shapes done; see `nnadapter.onnx.preparation.prepare`.

    Args:
        model: the model.
        rules: types of the results of ops that onnx knows nothing of.

    Raises:
        InvalidModelError: the graph contradicts itself, or an equation of Einsum is none.
    """
    return preparation.prepare(model, replace(OPERATORS, rules=rules))
