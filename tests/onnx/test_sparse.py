from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import nnadapter as nna
from nnadapter.errors import InvalidModelError, ModelFileError
from nnadapter.onnx import with_dense
from tests.models import run_whole

LINEAR, ROWS = [0, 3, 5], [[0, 0], [1, 0], [1, 2]]


def sparse(indices, dtype=np.float32, dimensions=(2, 3), values=(1, 2, 3)):
    parts = numpy_helper.from_array(np.array(values, dtype), "w"), numpy_helper.from_array(np.array(indices), "at")
    tensor = helper.make_sparse_tensor(*parts, list(dimensions))
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, y = (helper.make_tensor_value_info(name, element, [2, 3]) for name in "xy")
    nodes = [helper.make_node("Add", ["x", "w"], ["s"]), helper.make_node("Mul", ["s", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], sparse_initializer=[tensor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def constant(indices):
    """Return the same model with a Constant node instead of the initializer."""
    model = sparse(indices)
    node = helper.make_node("Constant", [], ["w"], sparse_value=model.graph.sparse_initializer[0])
    del model.graph.sparse_initializer[:]
    model.graph.node.insert(0, node)
    return model


def outputs(model, device):
    with nna.InferenceSession(model.SerializeToString(), devices=[device]) as session:
        dtype = helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
        (result,) = session.run(None, {"x": np.ones((2, 3), dtype)})
        assert {step.device for step in session.provenance.steps} == {device}
        return result


@pytest.mark.parametrize("device", ["cpu", "fake_npu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64])
@pytest.mark.parametrize("indices", [LINEAR, ROWS])
def test_sparse_initializers_equal_onnx_runtime(device, dtype, indices):
    model = sparse(indices, dtype)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"x": np.ones((2, 3), dtype)})
    np.testing.assert_array_equal(outputs(model, device), expected)


@pytest.mark.parametrize("indices", [LINEAR, ROWS])
def test_sparse_constants_equal_sparse_initializers(indices):
    expected = run_whole(model := constant(indices), {"x": np.ones((2, 3), np.float32)})[0]
    np.testing.assert_array_equal(outputs(model, "fake_npu"), expected)


def test_model_without_sparse_tensors_is_unchanged():
    model = sparse(LINEAR)
    dense = with_dense(model)
    assert with_dense(dense) is dense and len(model.graph.sparse_initializer) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": [0, 3, 6]}, "indices beyond its shape"),
        ({"indices": [0, -1, 5]}, "indices beyond its shape"),
        ({"indices": [[0, 0], [2, 0], [1, 2]]}, "indices beyond its shape"),
        ({"indices": [0, 3]}, r"3 values, but indices of shape \(2,\)"),
        ({"indices": [[0], [3], [5]]}, r"3 values, but indices of shape \(3, 1\)"),
        ({"indices": LINEAR, "dimensions": (2**40, 3)}, "takes 13194139533312 bytes"),
        ({"indices": LINEAR, "dimensions": (-2, 3)}, "int64 indices, expected"),
        ({"indices": LINEAR, "values": [[1], [2], [3]]}, "values of shape"),
    ],
)
def test_inconsistent_sparse_tensors_are_refused(changes, message):
    model = sparse(**changes)
    with pytest.raises(InvalidModelError, match=f"sparse tensor 'w' .*{message}.*export the model without"):
        with_dense(model)
    with pytest.raises(InvalidModelError):
        nna.InferenceSession(model.SerializeToString(), devices=["fake_npu"])


def test_sparse_values_in_external_data(tmp_path):
    model = sparse(LINEAR)
    values = model.graph.sparse_initializer[0].values
    (tmp_path / "values").write_bytes(values.raw_data)
    values.ClearField("raw_data")
    values.data_location = onnx.TensorProto.EXTERNAL
    values.external_data.add(key="location", value="values")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with nna.InferenceSession(tmp_path / "m.onnx", devices=["fake_npu"]) as session:
        (result,) = session.run(None, {"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(result, [[2, 0, 0], [6, 0, 12]])
    (tmp_path / "values").write_bytes(b"short")
    with pytest.raises(ModelFileError, match="'values'"):
        nna.InferenceSession(tmp_path / "m.onnx", devices=["fake_npu"])
