"""Checks of the caller's indices, lengths and counts before a device accesses memory with them."""

import time

import numpy as np
import onnx.parser
import onnx.reference
import pytest

import nnadapter as nna
from tests.every import for_every
from tests.optional import needs

X, X3 = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(6, dtype=np.float32).reshape(3, 2)
BAD = [-(2**63), -(2**63) + 1, -(2**32), -(2**32) + 1, -(2**31) - 1, -100, -7, 7, 100, 2**31, 2**32, 2**63 - 1]
"""Values out of range in every case; some are in range when truncated to 32 bits."""
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
"""Inputs, nodes, feeds, and a valid index."""


def model(case):
    inputs, nodes, *_ = CASES[case]
    head = '<ir_version: 10, opset_import: ["": 17]>'
    text = f"{head} g ({inputs}) => (float y) <int64 one = {{1}}, int64[1] two = {{2}}> {{ {nodes} }}"
    made = onnx.parser.parse_model(text)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::nnadapter.errors.FallbackWarning")  # openvino takes no ReverseSequence
@for_every(case=CASES, device=["fake_npu", "openvino", "xla:cpu"])
def test_indices_out_of_range_are_input_errors(case, device):
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


def test_error_names_input_value_and_range():
    text = r"input 'i' holds 9, which GatherND .*; expected values from -3 to 2"
    with (
        nna.InferenceSession(model("GatherND"), devices=["fake_npu", "cpu"]) as session,
        pytest.raises(nna.errors.InputValueError, match=text) as caught,
    ):
        session.run(None, {"x": X, "i": np.int64([[0, 9], [1, 0]])})
    assert caught.value.name == "i"


def test_proven_or_checked_indices_stay_on_the_device():
    proven = """<ir_version: 10, opset_import: ["": 17]> g (float[4,9] x, int64[2] i)
      => (float[4,2] y, float[2,9] z) <int64[1] k = {2}> {
      v, j = TopK(x, k)  y = GatherElements<axis=1>(x, j)  z = Gather(x, i) }"""
    with nna.InferenceSession(onnx.parser.parse_model(proven), devices=["fake_npu", "cpu"]) as session:
        x = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
        y, z = session.run(None, {"x": x, "i": np.int64([3, -4])})
        assert [each.device for each in session.report().segments] == ["fake_npu"]
    assert np.array_equal(y, -np.sort(-x, 1)[:, :2]) and np.array_equal(z, x[[3, 0]])


def test_compiled_file_checks_indices(tmp_path):
    nna.compile(model("Gather"), tmp_path / "model.nna", devices=["fake_npu", "cpu"])
    with nna.InferenceSession(tmp_path / "model.nna") as session:
        feeds = {"x": X, "i": np.int64([0, 2**32])}
        with pytest.raises(nna.errors.InputValueError, match=r"input 'i' holds 4294967296"):
            session.run(None, feeds)


def test_region_far_outside_the_image_is_an_error():
    text = """<ir_version: 10, opset_import: ["": 16]> g (float[1,2,8,8] x, float[1,4] r, int64[1] b)
      => (float[1,2,2,2] y) {
      y = RoiAlign<output_height=2, output_width=2>(x, r, b) }"""
    with nna.InferenceSession(onnx.parser.parse_model(text), devices=["fake_npu", "cpu"]) as session:
        feeds = {"x": np.ones((1, 2, 8, 8), np.float32), "b": np.int64([0])}
        for corner in (1e9, -1e20, np.inf, np.nan):
            with pytest.raises(nna.errors.InvalidInputError, match="input 'r' holds"):
                session.run(None, {**feeds, "r": np.float32([[0, 0, corner, 4]])})


def test_verified_first_run_is_checked_too():
    text = """<ir_version: 10, opset_import: ["": 16]> g (float[1,2,8,8] x, float[1,4] r, int64[1] b)
      => (float[1,2,2,2] y) { y = RoiAlign<output_height=2, output_width=2>(x, r, b) }"""
    options = nna.Options(verify="once")
    feeds = {"x": np.ones((1, 2, 8, 8), np.float32), "b": np.int64([0]), "r": np.float32([[0, 0, 5000, 4]])}
    with nna.InferenceSession(onnx.parser.parse_model(text), devices=["fake_npu", "cpu"], options=options) as session:
        for _ in range(2):
            with pytest.raises(nna.errors.InputValueError, match="input 'r' holds"):
                session.run(None, feeds)


def test_input_sizes_are_checked_against_a_table():
    text = """<ir_version: 10, opset_import: ["": 17]> g (float[N] x, float[8,4] w)
      => (float[N,4] y) <int64 zero = {0}, int64 one = {1}> {
      s = Shape(x)  n = Squeeze(s)  r = Range(zero, n, one)  t = Relu(w)  y = Gather(t, r) }"""
    with nna.InferenceSession(onnx.parser.parse_model(text), devices=["fake_npu", "cpu"]) as session:
        w = np.ones((8, 4), np.float32)
        for size in (2, 8, 3):
            assert session.run(None, {"x": np.ones(size, np.float32), "w": w})[0].shape == (size, 4)
        with pytest.raises(nna.errors.InvalidInputError):
            session.run(None, {"x": np.ones(9, np.float32), "w": w})


@needs("jax")
def test_indices_computed_in_a_segment_are_checked():
    text = """<ir_version: 10, opset_import: ["": 17]> g (float[2,3] x, int64[2] i) => (float[2,3] y) {
      j = Mul(i, i)  t = Relu(x)  y = Gather(t, j) }"""
    with nna.InferenceSession(onnx.parser.parse_model(text), devices=["xla:cpu", "cpu"]) as session:
        session.run(None, {"x": X, "i": np.int64([0, 1])})
        wrong = np.int64([0, 100])
        with pytest.raises(nna.errors.InvalidInputError):
            session.run(None, {"x": X, "i": wrong})


PROVEN = {
    "counted from the end": "n = Less(i, zero) s = Add(i, size) j = Where(n, s, i)",
    "cut off": "a = Mul(i, i) b = Max(a, zero) j = Min(b, last)",
    "remainder": "a = Mul(i, i) j = Mod(a, size)",
    "sums of flags": "f = Greater(i, zero) a = Cast<to=7>(f) j = CumSum(a, first)",
    "largest": "a = Cast<to=1>(i) b = Unsqueeze(a, zero) j = ArgMax<axis=1, keepdims=0>(b)",
}


@needs("jax")
@for_every(form=PROVEN)
def test_proven_indices_stay_in_one_segment(form):
    text = f"""<ir_version: 10, opset_import: ["": 17]> g (float[3,4] x, int64[2] i) => (float[M,4] y)
      <int64[1] zero = {{0}}, int64 first = {{0}}, int64 size = {{3}}, int64 last = {{2}}> {{
      {PROVEN[form]}  t = Relu(x)  y = Gather(t, j) }}"""
    model = onnx.parser.parse_model(text)
    with nna.InferenceSession(model, devices=["xla:cpu", "cpu"]) as session:
        x, i = np.arange(12, dtype=np.float32).reshape(3, 4), np.int64([0, 1])
        expected = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x, "i": i})[0]
        assert np.array_equal(session.run(None, {"x": x, "i": i})[0], expected)
        assert [each.device for each in session.report().segments] == ["xla:cpu"]


@needs("jax")
def test_unproven_indices_are_computed_elsewhere_with_a_reason():
    text = """<ir_version: 10, opset_import: ["": 17]> g (float[2,3] x, int64[2] i) => (float[2,3] y) {
      j = Mul(i, i)  t = Relu(x)  y = Gather(t, j) }"""
    with nna.InferenceSession(onnx.parser.parse_model(text), devices=["xla:cpu", "cpu"]) as session:
        nodes = {node.op_type: node for node in session.report().nodes}
    assert {name: node.device for name, node in nodes.items()} == {"Mul": "cpu", "Relu": "xla:cpu", "Gather": "xla:cpu"}
    assert any("indices of Gather" in str(refusal) for refusal in nodes["Mul"].refusals)


@for_every(device=["openvino", "xla:cpu"])
def test_shape_derived_indices_are_checked_per_shape(device):
    text = """<ir_version: 10, opset_import: ["": 17]> g (float[N,3] x) => (float[N,3] y)
      <int64 zero = {0}, int64 one = {1}, int64[1] back = {1}> {
      s = Shape(x)  n = Gather(s, zero)  r = Range(zero, n, one)  m = Mul(n, n)  a = Add(r, m)  b = Sub(a, one)
      i = Unsqueeze(b, back)  t = Relu(x)  y = GatherND(t, i) }"""
    with nna.InferenceSession(onnx.parser.parse_model(text), devices=[device, "cpu"]) as session:
        for rows in (1, 2, 3, 1, 2):
            x = np.ones((rows, 3), np.float32)
            if rows == 1:
                assert session.run(None, {"x": x})[0].shape == (1, 3)
                continue
            with pytest.raises(nna.errors.InputValueError, match="expected values from"):
                session.run(None, {"x": x})


def test_counts_in_feeds_and_bindings_are_bounded():
    text = """<ir_version: 10, opset_import: ["": 17]> g (int64 n) => (float[M] y) <int64[1] at = {0}> {
      s = Unsqueeze(n, at)  y = ConstantOfShape(s) }"""
    for device in ("cpu", "fake_npu"):
        with nna.InferenceSession(onnx.parser.parse_model(text), devices=device) as session:
            assert session.run(None, {"n": np.array(3)})[0].shape == (3,)
            with pytest.raises(
                nna.errors.InputValueError, match="input 'n' makes ConstantOfShape 'y' compute 2147483648"
            ):
                session.run(None, {"n": np.array(2**31)})
            binding = session.io_binding()
            binding.bind_cpu_input("n", np.array(2**31))
            binding.bind_output("y")
            with pytest.raises(nna.errors.InputValueError, match="expected at most"):
                session.run_with_iobinding(binding)


@pytest.mark.parametrize("device", ["cpu", "fake_npu"])
@pytest.mark.parametrize("lengths", [[1, 0], [1, 4], [-1, 5]])
def test_invalid_split_lengths_are_input_errors(device, lengths):
    text = "g (float[3,4] x, int64[2] k) => (float[3,n] y, float[3,m] z) { a = Relu(x) y, z = Split<axis = 1>(a, k) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> {text}')
    with nna.InferenceSession(model, devices=device) as session, pytest.raises(nna.errors.InvalidInputError) as error:
        session.run(None, {"x": np.ones((3, 4), np.float32), "k": np.array(lengths)})
    assert ".cc:" not in str(error.value)
