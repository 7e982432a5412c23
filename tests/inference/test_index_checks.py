"""Indices, lengths and counts from the caller are checked before a device reads memory by them."""

import time

import numpy as np
import onnx.parser
import pytest

import nnadapter as nna
from tests.every import for_every

X, X3 = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(6, dtype=np.float32).reshape(3, 2)
BAD = [-(2**63), -(2**63) + 1, -(2**32), -(2**32) + 1, -(2**31) - 1, -100, -7, 7, 100, 2**31, 2**32, 2**63 - 1]
"""Values beyond every range here; some are in it when they are cut to 32 bits."""
CASES = {
    "Gather": ("float[2,3] x, int64[2] i", "y = Gather(x, i)", {"x": X}, [0, -1]),
    "Gather of any size": ("float[N,3] x, int64[M] i", "t = Relu(x) y = Gather(t, i)", {"x": X}, [0, 1]),
    "Gather behind Reshape": (
        "float[2,3] x, int64[2] i",
        "j = Reshape(i, two) t = Relu(x) y = Gather(t, j)",
        {"x": X},
        [0, 1],
    ),
    "Gather behind Add": (
        "float[2,3] x, int64[2] i",
        "j = Add(i, one) t = Relu(x) y = Gather(t, j)",
        {"x": X},
        [0, -1],
    ),
    "GatherElements": ("float[2,3] x, int64[2,2] i", "y = GatherElements<axis=1>(x, i)", {"x": X}, [[0, 1], [2, -1]]),
    "GatherND": ("float[2,3] x, int64[2,2] i", "y = GatherND(x, i)", {"x": X}, [[0, 1], [1, -1]]),
    "ScatterElements": (
        "float[2,3] x, int64[2,2] i, float[2,2] u",
        "y = ScatterElements<axis=1>(x, i, u)",
        {"x": X, "u": X[:, :2]},
        [[0, 1], [2, 0]],
    ),
    "ScatterND": (
        "float[2,3] x, int64[2,2] i, float[2] u",
        "y = ScatterND(x, i, u)",
        {"x": X, "u": X[0, :2]},
        [[0, 1], [1, 0]],
    ),
    "ReverseSequence": ("float[3,2] x, int64[2] i", "y = ReverseSequence(x, i)", {"x": X3}, [1, 3]),
}
"""Inputs, nodes, feeds, and an index in its range."""


def model(case):
    inputs, nodes, *_ = CASES[case]
    head = '<ir_version: 10, opset_import: ["": 17]>'
    text = f"{head} g ({inputs}) => (float y) <int64 one = {{1}}, int64[1] two = {{2}}> {{ {nodes} }}"
    made = onnx.parser.parse_model(text)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


@pytest.mark.filterwarnings("ignore::nnadapter.errors.FallbackWarning")  # openvino takes no ReverseSequence
@for_every(case=CASES, device=["fake_npu", "openvino", "xla:cpu"])
def test_values_out_of_range_are_errors_of_the_input(case, device):
    *_, feeds, right = CASES[case]
    right = np.int64(right)
    with nna.InferenceSession(model(case), devices=[device, "cpu"]) as session:
        session.run(None, {**feeds, "i": right})
        for at, bad in enumerate(BAD):
            wrong = right.copy()
            wrong.flat[at % wrong.size] = bad
            started = time.perf_counter()
            with pytest.raises(nna.errors.InvalidInputError, match=r"holds .* expected values from|out of|must be"):
                session.run(None, {**feeds, "i": wrong})
            assert time.perf_counter() - started < 1
        session.run(None, {**feeds, "i": right})


def test_an_error_names_the_input_the_value_and_the_range():
    with (
        nna.InferenceSession(model("GatherND"), devices=["fake_npu", "cpu"]) as session,
        pytest.raises(nna.errors.InputValueError, match=r"input 'i' holds 9, which GatherND .*from -3 to 2") as caught,
    ):
        session.run(None, {"x": X, "i": np.int64([[0, 9], [1, 0]])})
    assert caught.value.name == "i"


def test_what_is_proven_or_checked_stays_on_the_device():
    proven = """<ir_version: 10, opset_import: ["": 17]> g (float[4,9] x, int64[2] i)
      => (float[4,2] y, float[2,9] z) <int64[1] k = {2}> {
      v, j = TopK(x, k)  y = GatherElements<axis=1>(x, j)  z = Gather(x, i) }"""
    with nna.InferenceSession(onnx.parser.parse_model(proven), devices=["fake_npu", "cpu"]) as session:
        x = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
        y, z = session.run(None, {"x": x, "i": np.int64([3, -4])})
        assert [each.device for each in session.report().segments] == ["fake_npu"]
    assert np.array_equal(y, -np.sort(-x, 1)[:, :2]) and np.array_equal(z, x[[3, 0]])


def test_a_compiled_file_checks_as_its_session_did(tmp_path):
    nna.compile(model("Gather"), tmp_path / "model.nna", devices=["fake_npu", "cpu"])
    with nna.InferenceSession(tmp_path / "model.nna") as session:
        feeds = {"x": X, "i": np.int64([0, 2**32])}
        with pytest.raises(nna.errors.InputValueError, match=r"input 'i' holds 4294967296"):
            session.run(None, feeds)


def test_a_region_far_outside_of_the_image_is_an_error_at_once():
    text = """<ir_version: 10, opset_import: ["": 16]> g (float[1,2,8,8] x, float[1,4] r, int64[1] b)
      => (float[1,2,2,2] y) {
      y = RoiAlign<output_height=2, output_width=2>(x, r, b) }"""
    with nna.InferenceSession(onnx.parser.parse_model(text), devices=["fake_npu", "cpu"]) as session:
        feeds = {"x": np.ones((1, 2, 8, 8), np.float32), "b": np.int64([0])}
        for corner in (1e9, -1e20, np.inf, np.nan):
            with pytest.raises(nna.errors.InvalidInputError, match="input 'r' holds"):
                session.run(None, {**feeds, "r": np.float32([[0, 0, corner, 4]])})


def test_sizes_of_the_caller_are_checked_against_a_table():
    text = """<ir_version: 10, opset_import: ["": 17]> g (float[N] x, float[8,4] w)
      => (float[N,4] y) <int64 zero = {0}, int64 one = {1}> {
      s = Shape(x)  n = Squeeze(s)  r = Range(zero, n, one)  t = Relu(w)  y = Gather(t, r) }"""
    with nna.InferenceSession(onnx.parser.parse_model(text), devices=["fake_npu", "cpu"]) as session:
        w = np.ones((8, 4), np.float32)
        for size in (2, 8, 3):
            assert session.run(None, {"x": np.ones(size, np.float32), "w": w})[0].shape == (size, 4)
        with pytest.raises(nna.errors.InvalidInputError):
            session.run(None, {"x": np.ones(9, np.float32), "w": w})


def test_indices_that_a_segment_computes_are_not_read_unchecked():
    text = """<ir_version: 10, opset_import: ["": 17]> g (float[2,3] x, int64[2] i) => (float[2,3] y) {
      j = Mul(i, i)  t = Relu(x)  y = Gather(t, j) }"""
    with nna.InferenceSession(onnx.parser.parse_model(text), devices=["xla:cpu", "cpu"]) as session:
        session.run(None, {"x": X, "i": np.int64([0, 1])})
        wrong = np.int64([0, 100])
        with pytest.raises(nna.errors.InvalidInputError):
            session.run(None, {"x": X, "i": wrong})
