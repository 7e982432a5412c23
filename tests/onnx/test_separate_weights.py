"""Large constants, separated from a model and restored with and without onnx."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from nnadapter.onnx import joined, joined_bytes, separated

DTYPES = ["float32", "float16", "float64", "int64", "uint8", "bool"]


def model_of(*tensors: TensorProto) -> onnx.ModelProto:
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    nodes = [helper.make_node("Constant", [], ["y"], value_floats=[1.0])]
    graph = helper.make_graph(nodes, "g", [], [result], tensors)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_separated_model_is_joined_unchanged(dtype):
    rng = np.random.default_rng(0)
    arrays = {
        f"große {shape}": rng.integers(0, 2, shape).astype(dtype) for shape in ((40, 50), (3,), (0, 2000), (2048,))
    }
    model = model_of(*(numpy_helper.from_array(array, name) for name, array in arrays.items()))
    expected = model.SerializeToString(deterministic=True)
    contents, taken = separated(model)
    assert {tensor.name for tensor in taken} >= {"große (40, 50)", "große (2048,)"} and len(contents) < len(expected)
    whole = joined_bytes(contents, {tensor.name: tensor.contents for tensor in taken})
    for again in (joined(contents, taken), onnx.ModelProto.FromString(whole)):
        assert again.SerializeToString(deterministic=True) == expected


def test_model_of_small_constants_is_unchanged():
    contents, taken = separated(model_of(numpy_helper.from_array(np.zeros(3, np.float32), "a")))
    assert not taken and joined_bytes(contents, {}) == contents


def test_truncated_bytes_are_refused_or_shorter():
    contents, taken = separated(model_of(numpy_helper.from_array(np.zeros(3000, np.float32), "a")))
    arrays = {tensor.name: tensor.contents for tensor in taken}
    for length in range(len(contents)):
        with suppress(IndexError):
            assert len(joined_bytes(contents[:length], arrays)) < 13_000
