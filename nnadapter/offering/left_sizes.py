"""Sizes of what nodes make that have no form in adapter IR, by those of what they read.

What is not in the table has the sizes that inference says, which hold for the shapes in hand alone.
Source: ONNX's operators of ai.onnx.ml; ONNX Runtime's of com.microsoft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from nnadapter.ir.tracing import current
from nnadapter.onnx.further_schemas import MICROSOFT
from nnadapter.onnx.node import OnnxNode
from partition.graph import Value

Sizes = tuple[Any, ...]
"""Dimensions, traced or not."""
_Rule = Callable[[OnnxNode, Sequence["Sizes | None"], "Sizes"], "Sizes | None"]
"""Node, dimensions of its inputs, those that inference says of a result -> its dimensions; None where it says none."""


def sizes_left(
    node: OnnxNode, dimensions_of: Callable[[str], Sizes | None], values: Mapping[str, Value]
) -> dict[str, Sizes]:
    """Dimensions of the results of a node, by name, as far as a rule says them.

    Args:
        node: one that no converter takes.
        dimensions_of: of what it reads; None where they are not known.
        values: what inference says at the shapes in hand; what contradicts it is left out.
    """
    rule = _RULES.get((node.domain, node.op_type))
    if rule is None or node.contradiction:
        return {}
    read = [dimensions_of(name) if name else None for name in node.inputs]
    made = dict[str, Sizes]()
    for name in filter(None, node.outputs):
        inferred = values[name].shape if name in values else None
        sizes = None if inferred is None else rule(node, read, inferred)
        if sizes is not None and _agree(current(sizes), inferred):
            made[name] = sizes
    return made


def _agree(sizes: Sizes, inferred: Sizes | None) -> bool:
    """Whether inference says nothing else; it names what it does not know."""
    return (
        inferred is not None
        and len(sizes) == len(inferred)
        and all(not isinstance(said, int) or size == said for size, said in zip(sizes, inferred, strict=True))
    )


def _as_the_first(node: OnnxNode, read: Sequence[Sizes | None], inferred: Sizes) -> Sizes | None:
    return read[0]


def _rows_of_the_first(node: OnnxNode, read: Sequence[Sizes | None], inferred: Sizes) -> Sizes | None:
    """A row for each row of the first input; all else is always the same."""
    return _led_by(read[0][0], inferred) if read[0] and len(read[0]) > 1 else None


def _targets_of_rows(node: OnnxNode, read: Sequence[Sizes | None], inferred: Sizes) -> Sizes | None:
    targets = node.integer("targets", 1)  # of an SVMRegressor there is one
    return (read[0][0], targets) if read[0] and len(read[0]) > 1 else None


def _picked(node: OnnxNode, read: Sequence[Sizes | None], inferred: Sizes) -> Sizes | None:
    """Elements of the last axis, by a list of their places."""
    data, places = read
    return (*data[:-1], prod(places)) if data and len(data) > 1 and places is not None else None


def _one_hot(node: OnnxNode, read: Sequence[Sizes | None], inferred: Sizes) -> Sizes | None:
    return None if read[0] is None or not inferred or not isinstance(inferred[-1], int) else (*read[0], inferred[-1])


def _led_by(size: Any, inferred: Sizes) -> Sizes | None:
    rest = inferred[1:]
    return (size, *rest) if inferred and all(isinstance(each, int) for each in rest) else None


_MACHINE_LEARNING = "ai.onnx.ml"
_RULES: Mapping[tuple[str, str], _Rule] = {
    **dict.fromkeys(
        [
            (_MACHINE_LEARNING, op_type)
            for op_type in ("Binarizer", "CategoryMapper", "Imputer", "LabelEncoder", "Normalizer", "Scaler")
        ],
        _as_the_first,
    ),
    **dict.fromkeys([(MICROSOFT, "MoE"), (MICROSOFT, "QMoE")], _as_the_first),
    # Where data decide over what is scattered, as features of pictures among those of words.
    **dict.fromkeys([("", "Scatter"), ("", "ScatterElements"), ("", "ScatterND")], _as_the_first),
    **dict.fromkeys(
        [
            (_MACHINE_LEARNING, op_type)
            for op_type in (
                "LinearClassifier",
                "SVMClassifier",
                "TreeEnsemble",
                "TreeEnsembleClassifier",
                "TreeEnsembleRegressor",
            )
        ],
        _rows_of_the_first,
    ),
    (_MACHINE_LEARNING, "ArrayFeatureExtractor"): _picked,
    (_MACHINE_LEARNING, "LinearRegressor"): _targets_of_rows,
    (_MACHINE_LEARNING, "OneHotEncoder"): _one_hot,
    (_MACHINE_LEARNING, "SVMRegressor"): _targets_of_rows,
}
