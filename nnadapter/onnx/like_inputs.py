"""Ops of which onnx's inference knows nothing, and whose first result has the type of their first input."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import onnx

from nnadapter.onnx.building import copied
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.further_schemas import MICROSOFT
from nnadapter.onnx.nodes import opsets_of

_OWN = frozenset(
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
"""Of ONNX's own domain, at some opsets at least."""
_OF_MICROSOFT = frozenset(("MoE", "QMoE"))
"""Of ONNX Runtime's own domain: nobody says more of them."""
LIKE_INPUT = _OWN | _OF_MICROSOFT
"""Names of all, of which most models have none."""
_HAS_INFERENCE: Mapping[str, float] = {"LayerNormalization": 17, "ThresholdedRelu": 10}
"""Those that it knows from some version on: before, only ONNX Runtime has them."""


def is_like_input(domain: str, op_type: str, version: int) -> bool:
    """Whether inference knows nothing of an op at a version, and its result is like its input."""
    if plain_domain(domain):
        return domain == MICROSOFT and op_type in _OF_MICROSOFT
    return op_type in _OWN and version < _HAS_INFERENCE.get(op_type, inf)


def stand_in(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a node that inference knows for one whose result is like its input."""
    return onnx.NodeProto(op_type="Identity", input=node.input[:1], output=node.output[:1])


def with_stand_ins(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with stand-ins for such nodes; the same model where there are none."""
    nodes = model.graph.node
    if all(node.op_type not in LIKE_INPUT for node in nodes):
        return model
    opset = opsets_of(model.opset_import).get("", 0)
    model_copy = copied(model)
    for node in model_copy.graph.node:
        if is_like_input(node.domain, node.op_type, opset):
            node.CopyFrom(stand_in(node))
    return model_copy
