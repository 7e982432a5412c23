"""Ops of which onnx's inference knows nothing, and whose first result has the type of their first input."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import onnx

from nnadapter.onnx.building import copied
from nnadapter.onnx.nodes import opsets_of, plain_domain

LIKE_INPUT = frozenset(
    [
        "Affine",
        "GroupNormalization",
        "ImageScaler",
        "LayerNormalization",
        "MeanVarianceNormalization",
        "ParametricSoftplus",
        "Scale",
        "ScaledTanh",
        "SimplifiedLayerNormalization",
        "ThresholdedRelu",
    ]
)
"""At some opsets at least, in ONNX's own domain."""
_HAS_INFERENCE: Mapping[str, float] = {"LayerNormalization": 17, "ThresholdedRelu": 10}
"""Those that it knows from some version on: before, only ONNX Runtime has them."""


def is_like_input(op_type: str, version: int) -> bool:
    """Whether inference knows nothing of an op of ONNX's own domain at a version, and its result is like its input."""
    return op_type in LIKE_INPUT and version < _HAS_INFERENCE.get(op_type, inf)


def stand_in(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a node that inference knows for one whose result is like its input."""
    return onnx.NodeProto(op_type="Identity", input=node.input[:1], output=node.output[:1])


def with_stand_ins(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with stand-ins for such nodes; the same model where there are none."""
    nodes = model.graph.node
    if all(node.op_type not in LIKE_INPUT for node in nodes):
        return model
    opset = opsets_of(model.opset_import).get("", 0)
    made = copied(model)
    for node in made.graph.node:
        if not plain_domain(node.domain) and is_like_input(node.op_type, opset):
            node.CopyFrom(stand_in(node))
    return made
