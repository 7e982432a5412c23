"""Types that ONNX Runtime's Python interface does not take, through its memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

import nnadapter as nna
from nnadapter.drivers.onnxruntime.values import _packed, _unpacked
from partition.dtypes import ELEMENT_TYPE_OF_DTYPE

NAMES = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4", "int2", "uint2"]


@pytest.mark.parametrize("name", [*NAMES, "float4_e2m1fn", "float32", "int64"])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 5)])
def test_bytes_are_those_of_onnx(name, shape):
    array = np.random.default_rng(0).integers(-2, 2, shape).astype(np.float32).astype(np.dtype(name))
    packed = _packed(array)
    assert packed.tobytes() == onnx.numpy_helper.from_array(array).raw_data
    again = _unpacked(packed, name, shape)
    assert again.dtype == array.dtype and again.shape == shape
    np.testing.assert_array_equal(again.astype(np.float32), array.astype(np.float32))


@pytest.mark.parametrize("devices", ["cpu", ["fake_npu", "cpu"]])
@pytest.mark.parametrize("name", NAMES)
def test_they_come_back_as_they_went(name, devices):
    element = onnx.helper.tensor_dtype_to_string(ELEMENT_TYPE_OF_DTYPE[name]).rpartition(".")[2].lower()
    nodes = [
        onnx.helper.make_node("Cast", ["x"], ["f"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Cast", ["f"], ["y"], to=ELEMENT_TYPE_OF_DTYPE[name]),
    ]
    values = [onnx.helper.make_tensor_value_info(n, ELEMENT_TYPE_OF_DTYPE[name], ["N"]) for n in ("x", "y")]
    graph = onnx.helper.make_graph(nodes, element, values[:1], values[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)], ir_version=11)
    given = np.array([1, 0, 1, -1 if name[0] != "u" else 1, 0], np.float32).astype(getattr(ml_dtypes, name))
    with nna.InferenceSession(model, devices=devices, options=nna.Options(fallback="allow")) as session:
        (result,) = session.run(None, {"x": given})
    assert result.dtype == given.dtype
    np.testing.assert_array_equal(result.astype(np.float32), given.astype(np.float32))
