from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import nnadapter as nna
from nnadapter.errors import InvalidModelError, ModelFileError
from nnadapter.onnx import load_model
from tests.models import CHAIN, parse

WHOLE = parse(CHAIN).SerializeToString()


@pytest.mark.parametrize("devices", ["cpu", "null"])
@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 not a model", "is not an ONNX model"),
        (b"plain words, no model", "is not an ONNX model"),
        (WHOLE[: len(WHOLE) // 2], "truncated or damaged"),
        (b"\x08\x0a", "holds no graph"),
        (b"xxxxORTMxxxx", "ONNX Runtime's own format"),
    ],
)
def test_contents_without_a_model_are_refused(devices, contents, words, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(contents)
    for source in (path, str(path), contents):
        with pytest.raises(InvalidModelError, match=words) as caught:
            nna.InferenceSession(source, devices=devices)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("devices", ["cpu", "null"])
def test_unreadable_files_are_refused(devices, tmp_path):
    with pytest.raises(ModelFileError, match="does not exist"):
        nna.InferenceSession(tmp_path / "none.onnx", devices=devices)
    with pytest.raises(ModelFileError, match="cannot be read"):
        nna.InferenceSession(tmp_path, devices=devices)
    for path in ("a\0b", "\ud800"):
        with pytest.raises(ModelFileError, match="cannot be read: .*; check the path"):
            nna.InferenceSession(path, devices=devices)


def saved_with_external_data(folder):
    weights = onnx.numpy_helper.from_array(np.ones((64, 64), "float32"), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 64])],
        [weights],
    )
    path = folder / "model.onnx"
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


@pytest.mark.parametrize("devices", ["cpu", "null"])
def test_external_data(devices, tmp_path):
    path = saved_with_external_data(tmp_path)
    with nna.InferenceSession(path, devices=devices) as session:
        assert session.run(None, {"x": np.ones((2, 64), "float32")})[0].shape == (2, 64)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelFileError, match="'weights.bin'.*'w'"):
        nna.InferenceSession(path, devices=devices)


def constant(name, tensor):
    return helper.make_node("Constant", [], [name], value=tensor)


@pytest.mark.parametrize("place", ["initializer", "attribute", "branch", "function"])
def test_external_data_of_branches_functions_and_attributes(place, tmp_path):
    (tmp_path / "weights.bin").write_bytes(np.arange(4, dtype="float32").tobytes())
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights.bin")
    branch = helper.make_graph([constant("w", tensor)], "b", [], [])
    imports = [helper.make_opsetid("", 17)]
    node = {
        "attribute": constant("w", tensor),
        "branch": helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch),
    }.get(place, helper.make_node("Identity", ["x"], ["y"]))
    graph = helper.make_graph([node], "g", [], [], [tensor] if place == "initializer" else [])
    inside = helper.make_function("own", "F", [], ["w"], [constant("w", tensor)], imports)
    model = helper.make_model(graph, functions=[inside] if place == "function" else [], opset_imports=imports)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    loaded = load_model(tmp_path / "model.onnx").SerializeToString()
    assert np.arange(4, dtype="float32").tobytes() in loaded and b"weights.bin" not in loaded
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelFileError, match="'weights.bin'.*'w'"):
        load_model(tmp_path / "model.onnx")


@pytest.mark.parametrize("devices", ["cpu", "null"])
def test_external_data_without_a_path(devices, tmp_path, monkeypatch):
    path = saved_with_external_data(tmp_path)
    for source in (path.read_bytes(), onnx.load(path, load_external_data=False)):
        with pytest.raises(ModelFileError, match=r"'w'.*give the path"):
            nna.InferenceSession(source, devices=devices)
    monkeypatch.chdir(tmp_path)
    for source in (path.read_bytes(), onnx.load(path, load_external_data=False)):
        with nna.InferenceSession(source, devices=devices) as session:
            assert session.run(None, {"x": np.ones((2, 64), "float32")})[0].shape == (2, 64)


def test_loaded_model_is_a_copy():
    model = parse(CHAIN)
    loaded = load_model(model)
    model.graph.node[0].op_type = "Neg"
    assert loaded.graph.node[0].op_type == "Relu" and loaded is not model


@pytest.mark.parametrize("devices", ["cpu", "null", "fake_npu"])
def test_a_model_without_nodes_runs(devices, tmp_path):
    text = "g (float[N] x, string[1] s) => (string[1] s, float[2] w, float[N] x) <float[2] w = {1, 2}> { }"
    model = parse(f'<ir_version: 10, opset_import: ["" : 17]> {text}')
    feed = {"x": np.float32([3, 4, 5]), "s": np.array(["a"], object)}
    with nna.InferenceSession(model, devices=devices) as session:
        results = [session.run(None, feed), session.submit(None, feed).result()]
        assert str(session.report())
    nna.compile(model, tmp_path / "model.nna", devices=devices, input_shapes={"x": (3,)})
    with nna.InferenceSession(tmp_path / "model.nna") as session:
        results.append(session.run(None, feed))
    assert [[value.tolist() for value in result] for result in results] == [[["a"], [1, 2], [3, 4, 5]]] * 3


@pytest.mark.parametrize("devices", ["cpu", "null"])
def test_a_model_without_nodes_and_outputs(devices):
    model = helper.make_model(helper.make_graph([], "g", [], []), ir_version=10)
    with pytest.raises(InvalidModelError, match="no nodes and no outputs"):
        nna.InferenceSession(model, devices=devices)


@pytest.mark.parametrize("devices", ["cpu", "null"])
@pytest.mark.parametrize(("op_type", "domain"), [("Mystery", ""), ("Mystery", "acme")])
def test_unknown_operators(devices, op_type, domain):
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"], domain=domain, name="strange")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    model = helper.make_model(graph, ir_version=10, opset_imports=imports)
    options = nna.Options(fallback="allow")
    with pytest.raises(nna.errors.NNAdapterError, match=r"Mystery|strange") as caught:
        nna.InferenceSession(model, devices=devices, options=options)
    assert "\n" not in str(caught.value)


def test_sources_of_wrong_type_are_refused():
    with pytest.raises(TypeError, match="int"):
        load_model(3)


@pytest.mark.parametrize("devices", ["cpu", "null"])
def test_model_newer_than_onnxruntime_runs(devices):
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Sin", ["y"], ["z"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [2])],
    )
    newest = onnx.defs.onnx_opset_version()
    model = helper.make_model(graph, ir_version=onnx.IR_VERSION, opset_imports=[helper.make_opsetid("", newest)])
    with nna.InferenceSession(model, devices=devices) as session:
        assert session.run(None, {"x": np.zeros(2, "float32")})[0].tolist() == [0, 0]
