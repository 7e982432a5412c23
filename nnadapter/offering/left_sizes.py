"""Sizes of what nodes make that have no form in adapter IR, by those of what they read.

Of an `If` or a `Scan` they are what inference says of its graphs, with a name in the place of each size that is traced.
What is not in the table has the sizes that inference says otherwise, which hold for the shapes in hand alone.
Source: ONNX's operators of ai.onnx.ml; ONNX Runtime's of com.microsoft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Array
from nnadapter.ir.tracing import Traced, current
from nnadapter.onnx.building import info_of
from nnadapter.onnx.further_schemas import MICROSOFT
from nnadapter.onnx.inference import Inference
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.values import value_of
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
    rule, first = _RULES.get((node.domain, node.op_type)), _FIRST_RULES.get((node.domain, node.op_type))
    if (rule is None and first is None) or node.contradiction:
        return {}
    read = [dimensions_of(name) if name else None for name in node.inputs]
    made = dict[str, Sizes]()
    for position, name in enumerate(node.outputs):
        inferred, said = values[name].shape if name in values else None, rule if position or first is None else first
        sizes = None if inferred is None or said is None else said(node, read, inferred)
        if sizes is not None and agree(sizes, inferred):
            made[name] = sizes
    return made


def runs_graphs(node: OnnxNode) -> bool:
    """Whether the sizes of what a node makes are those of graphs that it runs: see `sizes_by_names`."""
    return not node.domain and node.op_type in _RUNNING_GRAPHS and not node.contradiction


def resizes(node: OnnxNode) -> bool:
    """Whether its converter knows the sizes of what a node makes, also where it refuses the node."""
    return (
        not node.domain and node.op_type == "Resize" and node.since_version > _OLDER_RESIZE and not node.contradiction
    )


def sizes_by_names(
    inference: Inference,
    index: int,
    dimensions_of: Callable[[str], Sizes | None],
    values: Mapping[str, Value],
    constants: Mapping[str, Array],
) -> dict[str, Sizes]:
    """Dimensions of the results of a node of which nothing but inference knows them, by name.

    What differs between the branches of an `If` is left out, as inference gives it no name that it was told.

    Args:
        inference: of the model.
        index: the node's position in it.
        dimensions_of: of what it reads; None where they are not known.
        values: what inference says at the shapes in hand; what contradicts it is left out.
        constants: what is the same whatever the shapes.
    """
    names = dict[str, Any]()
    told = {
        name: info_of(replace(values[name], shape=_named(dimensions_of(name), names)))
        for name in inference.read_by(index)
        if name in values and name not in constants
    }
    try:
        inferred = inference.types_of_one(index, told, constants, states_inside=False)
    except InvalidModelError:  # of these names, it may be: the shapes in hand have no such contradiction
        return {}
    known = {name: _traced(value_of(info).shape, names) for name, info in inferred.items() if name in values}
    return {name: sizes for name, sizes in known.items() if sizes is not None and agree(sizes, values[name].shape)}


def _traced(shape: Sizes | None, names: Mapping[str, Any]) -> Sizes | None:
    """Dimensions of which those that have names are the sizes that were called so; None where one is another."""
    sizes = None if shape is None else tuple(names.get(size) if isinstance(size, str) else size for size in shape)
    return None if sizes is None or any(size is None for size in sizes) else sizes


def _named(sizes: Sizes | None, names: dict[str, Any]) -> tuple[int | str, ...] | None:
    """Dimensions with names, each of which is noted, in the place of sizes that are traced."""
    if sizes is None:
        return None
    named = list[int | str]()
    for size in sizes:
        if isinstance(size, Traced):
            first = size.trace.alike(size.number)
            named.append(f"{_NAME}{first}")
            names.setdefault(f"{_NAME}{first}", size)
        else:
            named.append(int(size))
    return tuple(named)


def agree(sizes: Sizes, inferred: Sizes | None) -> bool:
    """Whether inference says nothing else at the shapes in hand; it names what it does not know."""
    return (
        inferred is not None
        and len(sizes) == len(inferred)
        and all(not isinstance(said, int) or size == said for size, said in zip(current(sizes), inferred, strict=True))
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
    return (size, *rest) if inferred and all(isinstance(dimension, int) for dimension in rest) else None


def _sampled(node: OnnxNode, read: Sequence[Sizes | None], inferred: Sizes) -> Sizes | None:
    return (read[0][0], node.integer("sample_size", 1)) if read[0] else None


def _attended(node: OnnxNode, read: Sequence[Sizes | None], inferred: Sizes) -> Sizes | None:
    """As queries, which may have keys and values behind them in one input."""
    if not read[0] or node.input(1):
        return read[0]
    heads = node.integer("num_heads", 1)
    return (*read[0][:-1], read[0][-1] * heads // (heads + 2 * node.integer("kv_num_heads", 1)))


_MACHINE_LEARNING = "ai.onnx.ml"
_RUNNING_GRAPHS = frozenset(("If", "Scan"))
_OLDER_RESIZE = 10
"""The version that is converted by another rule."""
_NAME = "traced size "
"""What no model calls a dimension."""
_FIRST_RULES: Mapping[tuple[str, str], _Rule] = {(MICROSOFT, "GroupQueryAttention"): _attended}
"""Of the first result alone."""
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
    **dict.fromkeys(
        [("", op_type) for op_type in ("Bernoulli", "RandomNormalLike", "RandomUniformLike")], _as_the_first
    ),
    # With training_mode, in which it drops.
    ("", "Dropout"): _as_the_first,
    ("", "Multinomial"): _sampled,
    (_MACHINE_LEARNING, "ArrayFeatureExtractor"): _picked,
    (_MACHINE_LEARNING, "LinearRegressor"): _targets_of_rows,
    (_MACHINE_LEARNING, "OneHotEncoder"): _one_hot,
    (_MACHINE_LEARNING, "SVMRegressor"): _targets_of_rows,
}
