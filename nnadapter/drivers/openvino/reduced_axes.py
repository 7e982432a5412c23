"""Reductions whose axes are an attribute, for the engine's reader, which has them as an input from opset 13 on.

Below opset 18 ONNX has an attribute there; the reader leaves it out, and reduces all dimensions. Seen with OpenVINO
2026.4.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from nnadapter.onnx.building import copied, initializer_of
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.nodes import opsets_of

_OPS = frozenset(("ReduceL1", "ReduceLogSum", "ReduceLogSumExp"))
_READ_AS_INPUT, _INPUT_SINCE = 13, 18
_AXES = "axes"


def with_axes_as_input(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose reductions say their axes where the reader looks for them; the same one if all do."""
    opset = opsets_of(model.opset_import).get("", _INPUT_SINCE)
    if not (_READ_AS_INPUT <= opset < _INPUT_SINCE and any(map(_states_axes, model.graph.node))):
        return model
    stated = copied(model)
    names = {tensor.name for tensor in model.graph.initializer} | {value.name for value in model.graph.input}
    names.update(name for node in model.graph.node for name in node.output)
    for node in filter(_states_axes, stated.graph.node):
        (attribute,) = (attr for attr in node.attribute if attr.name == _AXES)
        name = f"{node.output[0]}_{_AXES}"
        while name in names:
            name += "_"
        names.add(name)
        stated.graph.initializer.append(initializer_of(name, np.array(helper.get_attribute_value(attribute), np.int64)))
        node.attribute.remove(attribute)
        node.input.append(name)
    return stated


def _states_axes(node: onnx.NodeProto) -> bool:
    is_known = node.op_type in _OPS and not plain_domain(node.domain)
    return is_known and any(attribute.name == _AXES for attribute in node.attribute)
