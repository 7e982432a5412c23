"""The backend interface of ONNX."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.backend.base import Backend, BackendRep

import nnadapter as nna
from nnadapter.errors import DeviceNotFoundError, InvalidInputError, InvalidOptionError, NNAdapterError
from tests.models import CHAIN, numbers, parse, run_whole

X = numbers(2, 3)


def test_module_and_class_are_backends():
    assert issubclass(nna.backend.Backend, Backend)
    assert isinstance(nna.backend.prepare(parse(CHAIN)), BackendRep)


@pytest.mark.parametrize(
    ("text", "device", "known"),
    [
        (CHAIN, "CPU", True),
        (CHAIN, "missing", False),
        ('<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Nope(x) }', "CPU", False),
        ('<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Sin(x, x) }', "CPU", False),
    ],
)
def test_unknown_devices_and_invalid_models_are_incompatible(text, device, known):
    assert nna.backend.is_compatible(onnx.parser.parse_model(text), device) is known


def test_model_is_incompatible_if_fallback_is_forbidden():
    devices = ("fake_npu", {"switched_off": "EXP"})
    assert nna.backend.is_compatible(parse(CHAIN), devices=devices)
    assert not nna.backend.is_compatible(parse(CHAIN), devices=devices, options={"fallback": "forbid"})


@pytest.mark.parametrize(
    ("device", "used"),
    [
        ("CPU", "cpu"),
        ("cpu", "cpu"),
        ("fake_npu", "fake_npu"),
        ("fake_npu, cpu", "fake_npu"),
        ("reference", "reference"),
    ],
)
def test_devices_are_chosen_by_name(device, used):
    prepared = nna.backend.prepare(parse(CHAIN), device)
    (result,) = prepared.run([X])
    np.testing.assert_allclose(result, run_whole(parse(CHAIN), {"x": X})[0], rtol=1e-6)
    assert {step.device for step in prepared.session.provenance.steps} == {used}


def test_cpu_is_the_default_of_the_process(monkeypatch):
    monkeypatch.setenv("NNADAPTER_DEVICES", "fake_npu")
    assert nna.backend.prepare(parse(CHAIN)).session.devices == ("fake_npu", "cpu")


@pytest.mark.parametrize(
    ("device", "known"),
    [("CPU", True), ("CPU:0", True), ("fake_npu,cpu", True), ("CUDA", False), ("missing", False), (3, False)],
)
def test_supports_device_for_known_names(device, known):
    assert nna.backend.supports_device(device) is known


def test_unknown_device_is_an_error():
    with pytest.raises(DeviceNotFoundError, match="CUDA"):
        nna.backend.prepare(parse(CHAIN), "CUDA")


@pytest.mark.parametrize("device", [3, None, ["cpu"]])
def test_device_must_be_a_string(device):
    with pytest.raises(InvalidOptionError, match="selected by its name, got"):
        nna.backend.prepare(parse(CHAIN), device)


@pytest.mark.parametrize("inputs", [[X], (X,), X, {"x": X}])
def test_inputs_as_list_tuple_array_or_mapping(inputs):
    expected = run_whole(parse(CHAIN), {"x": X})[0]
    np.testing.assert_array_equal(nna.backend.run_model(parse(CHAIN), inputs)[0], expected)


def test_too_many_inputs_are_an_error():
    with pytest.raises(InvalidInputError, match="1 inputs, got 2"):
        nna.backend.prepare(parse(CHAIN)).run([X, X])


@pytest.mark.parametrize("device", ["CPU", "fake_npu"])
def test_run_node_with_an_absent_input(device):
    node = onnx.helper.make_node("Clip", ["x", "", "high"], ["y"])
    high = np.array(0.5, np.float32)
    (result,) = nna.backend.run_node(node, [X, high], device)
    np.testing.assert_array_equal(result, np.minimum(X, high))
    info = [(X.dtype, X.shape)]
    (same,) = nna.backend.run_node(node, [X, high], device, info, opset_version=13)
    np.testing.assert_array_equal(same, result)


def test_run_node_with_strings():
    node = onnx.helper.make_node("StringConcat", ["a", "b"], ["c"])
    given = [np.array(["x", "y"], object), np.array(["1", "2"], object)]
    assert nna.backend.run_node(node, given)[0].tolist() == ["x1", "y2"]


def test_run_node_of_another_domain():
    node = onnx.helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_int64s=[1, 2], values_floats=[0.5, 0.75]
    )
    np.testing.assert_array_equal(nna.backend.run_node(node, [np.array([2, 1])])[0], np.float32([0.75, 0.5]))


def test_run_node_of_the_newest_ml_version():
    leaf = onnx.numpy_helper.from_array(np.float32([1.5, 2.5]), "leaves")
    node = onnx.helper.make_node(
        "TreeEnsemble",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=1,
        tree_roots=[0],
        nodes_modes=onnx.numpy_helper.from_array(np.uint8([0])),
        nodes_featureids=[0],
        nodes_splits=onnx.numpy_helper.from_array(np.float32([0])),
        nodes_truenodeids=[0],
        nodes_trueleafs=[1],
        nodes_falsenodeids=[1],
        nodes_falseleafs=[1],
        leaf_targetids=[0, 0],
        leaf_weights=leaf,
    )
    result = nna.backend.run_node(node, [np.float32([[-1], [1]])])[0]
    np.testing.assert_array_equal(result, np.float32([[1.5], [2.5]]))


@pytest.mark.parametrize("given", [[3.0], 3.0, [np.float64(3)], {"x": 3.0}])
def test_run_node_converts_numbers_to_arrays(given):
    (result,) = nna.backend.run_node(onnx.helper.make_node("Neg", ["x"], ["y"]), given)
    assert result == -3 and result.dtype == np.float64


def test_run_node_with_a_sequence():
    node = onnx.helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)
    np.testing.assert_array_equal(nna.backend.run_node(node, [[X, X[:1]]])[0], np.concatenate([X, X[:1]]))


def test_run_node_with_a_repeated_input():
    (result,) = nna.backend.run_node(onnx.helper.make_node("Add", ["x", "x"], ["y"]), [X, X.copy()])
    np.testing.assert_array_equal(result, X + X)


@pytest.mark.parametrize(
    ("reads", "given", "why"),
    [
        ("ab", [X], "2 inputs.*got 1 of them"),
        ("ab", [X, X, X], "2 inputs.*got 3 of them"),
        ("aa", [X, X + 1], "reads 'a' twice"),
        ("aa", [X, [1.0]], "reads 'a' twice"),
        ("ab", {"a": X}, "'a', 'b'"),
        ("ab", {"a": X, "b": X, "z": X}, "'z'"),
        ("ab", [X, [[1.0], [2.0, 3.0]]], "'b' is not an array"),
    ],
)
def test_inputs_that_do_not_match_are_refused(reads, given, why):
    with pytest.raises(InvalidInputError, match=why):
        nna.backend.run_node(onnx.helper.make_node("Add", [*reads], ["y"]), given)


@pytest.mark.parametrize("info", [[], [(X.dtype, X.shape)] * 2])
def test_wrong_number_of_outputs_info_is_refused(info):
    with pytest.raises(InvalidInputError, match=r"outputs, \['y'\]"):
        nna.backend.run_node(onnx.helper.make_node("Neg", ["x"], ["y"]), [X], outputs_info=info)


@pytest.mark.parametrize("node", [("Nope", ["x"], ["y"], ""), ("Neg", ["x"], ["y"], "other.domain")])
def test_unknown_node_is_an_error(node):
    with pytest.raises(NNAdapterError):
        nna.backend.run_node(onnx.helper.make_node(node[0], node[1], node[2], domain=node[3]), [X])
