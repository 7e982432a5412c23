"""Ranks that onnx's inference does not tell, though it knows how long a shape is.

A Reshape by a computed shape has as many axes as that has elements. onnx looks at the elements alone; where they are
not known, neither is the rank of what is made, nor of what follows (grids of anchors, as detectors have them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import onnx
from onnx import helper

from nnadapter.onnx.inference import Inference, InitialFacts
from nnadapter.onnx.node import OnnxNode
from partition.dtypes import ELEMENT_TYPE_OF_DTYPE
from partition.graph import Value

_Rank = Callable[[Sequence[Value | None]], int | None]


def ranks_found(
    inference: Inference, nodes: Sequence[OnnxNode], facts: InitialFacts, values: Mapping[str, Value]
) -> Mapping[str, Value]:
    """Return those of `values` whose ranks are told by lengths of shapes, and what follows from them; by name.

    Args:
        inference: of a model.
        nodes: of the model.
        facts: what `values` follow from.
        values: what inference tells.
    """
    rankless = {name for name, value in values.items() if value.shape is None}
    stated, inferred_values = dict(facts.stated), values
    while fresh := {info.name: info for info in _told(nodes, inferred_values, rankless)}:
        stated.update(fresh)
        inferred_values = inference.values(InitialFacts(facts.shapes, facts.constants, facts.nodes, stated))
        rankless = {name for name in rankless if name not in inferred_values or inferred_values[name].shape is None}
    return {
        name: value
        for name, value in inferred_values.items()
        if value.shape is not None and name in values and values[name].shape is None
    }


def _told(nodes: Sequence[OnnxNode], values: Mapping[str, Value], rankless: set[str]) -> Iterator[onnx.ValueInfoProto]:
    """The types of results whose ranks nobody knew."""
    for node in nodes:
        rule = None if node.domain or not rankless.intersection(node.outputs) else _RULES.get(node.op_type)
        rank = None if rule is None else rule([values.get(name) for name in node.inputs])
        if rank is not None and (dtype := values[node.outputs[0]].dtype) in ELEMENT_TYPE_OF_DTYPE:
            yield helper.make_tensor_value_info(node.outputs[0], ELEMENT_TYPE_OF_DTYPE[str(dtype)], [None] * rank)


def _length(value: Value | None) -> int | None:
    """How many elements a vector has."""
    size = value.shape[0] if value is not None and value.shape is not None and len(value.shape) == 1 else None
    return size if isinstance(size, int) else None


def _reshaped(inputs: Sequence[Value | None]) -> int | None:
    return _length(inputs[1]) if len(inputs) > 1 else None  # at first it was an attribute


def _filled(inputs: Sequence[Value | None]) -> int | None:
    return _length(inputs[0])


def _expanded(inputs: Sequence[Value | None]) -> int | None:
    data, length = inputs[0], _length(inputs[1])
    return None if length is None or data is None or data.shape is None else max(length, len(data.shape))


_RULES: Mapping[str, _Rank] = MappingProxyType({"Reshape": _reshaped, "ConstantOfShape": _filled, "Expand": _expanded})
