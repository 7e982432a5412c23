"""Whether a provider starts with its options, and takes anything: found with the smallest of graphs."""

from __future__ import annotations

import onnx
from onnx import helper

from nnadapter.drivers.execution_providers.assignment import read_assignment
from nnadapter.drivers.execution_providers.backing import Backing
from nnadapter.drivers.onnxruntime.errors import brief
from nnadapter.errors import InvalidOptionError


def takes_addition(backing: Backing) -> bool:
    """Return whether the provider takes a float32 addition; every accelerator has one.

    A provider that fails when it is asked for a graph's nodes is left out by ONNX Runtime, which only logs why.

    Raises:
        InvalidOptionError: the provider does not start.
    """
    try:
        assignment = read_assignment(backing.open(_addition()), backing.provider)
    except Exception as error:
        given = ", ".join(f"{name}={value}" for name, value in backing.options.items()) or "none"
        raise InvalidOptionError(
            f"{backing.provider} does not start: {brief(error)}; change its options, got {given}"
        ) from error
    return bool(assignment.taken)


def _addition() -> bytes:
    a, b, c = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4, 4, 4]) for name in "abc")
    node = helper.make_node("Add", ["a", "b"], ["c"], name="nnadapter:0:0")
    graph = helper.make_graph([node], "probe", [a, b], [c])
    contents: bytes = helper.make_model(
        graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]
    ).SerializeToString()
    return contents
