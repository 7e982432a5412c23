from __future__ import annotations

import numpy as np
import onnx
import pytest

import nnadapter as nna
from nnadapter.drivers.reference import ReferenceContext, ReferenceDriver
from nnadapter.errors import CompilationError, DeviceNotFoundError, ExecutionError
from tests.models import CHAIN, numbers, parse, run_whole

HEAD = '<ir_version: 10, opset_import: ["" : 18, "other" : 1]>'


def model(text):
    return onnx.parser.parse_model(f"{HEAD} g {text}")


def compute(text, *inputs):
    execution = ReferenceContext().compile(model(text)).create_execution()
    return execution.compute(inputs)


def test_reference_device_is_listed():
    row = next(device for device in nna.devices() if device.name == "reference")
    assert row.available and row.type == "cpu" and row.version == onnx.__version__


def test_unknown_sub_device_is_an_error():
    with pytest.raises(DeviceNotFoundError, match="reference:0"):
        ReferenceDriver().open("1")


def test_results_equal_onnxruntime():
    feed = {"x": numbers(2, 3)}
    with nna.InferenceSession(parse(CHAIN), devices="reference", options=nna.Options(fallback="forbid")) as session:
        np.testing.assert_allclose(session.run(None, feed)[0], run_whole(parse(CHAIN), feed)[0], rtol=1e-6)


@pytest.mark.parametrize("spelling", ["Relu", "ai.onnx.Relu"])
def test_both_domain_spellings_are_accepted(spelling):
    reference_model = model("(float[2] x) => (float[2] y) { y = Relu(x) }")
    reference_model.graph.node[0].domain = spelling.rpartition(".")[0]
    assert all(ReferenceContext().supported(reference_model))
    (result,) = ReferenceContext().compile(reference_model).create_execution().compute([np.array([-1, 1], np.float32)])
    np.testing.assert_array_equal(result, [0, 1])


def test_verdicts_are_per_node():
    text = "(float[2] x) => (float[2] y) { a = Relu(x) b = Nonsense(a) c = other.Thing(b) y = Neg(c) }"
    assert [bool(verdict) for verdict in ReferenceContext().supported(model(text))] == [True, False, False, True]
    with pytest.raises(CompilationError, match="Nonsense"):
        ReferenceContext().compile(model(text))


def test_scalars_strings_and_empty_optionals_equal_onnxruntime():
    total, text = compute(
        """(float[2] x, string[2] t) => (float s, string[2] u) {
            s = ReduceSum<keepdims = 0>(x)
            u = Identity(t)
        }""",
        np.array([1, 2], np.float32),
        np.array(["a", "b"]),
    )
    assert type(total) is np.ndarray and total.shape == () and total == 3
    assert text.dtype == object
    assert compute("() => (optional(float[2]) o) { o = Optional<type = float[2]>() }") == [None]


def test_inputs_are_unchanged_and_outputs_belong_to_the_caller():
    array = np.array([1, 2], np.float32)
    (result,) = compute("(float[2] x) => (float[2] y) { y = Identity(x) }", array)
    result[0] = 9
    np.testing.assert_array_equal(array, [1, 2])


def test_errors_are_translated():
    with pytest.raises(ExecutionError, match="reference evaluator failed.*check the inputs"):
        compute("(float[2] x, int64[1] i) => (float[1] y) { y = Gather(x, i) }", numbers(2), np.array([7]))


@pytest.mark.parametrize("trips", [0, 3])
def test_a_loop_without_a_condition(trips):
    text = """(int64 n, float s) => (float t, float[m] rows) {
        t, rows = Loop(n, , s) <body = b (int64 i, bool go, float h) => (bool on, float g, float row) {
            on = Identity(go)
            g = Add(h, h)
            row = Identity(h)
        }>
    }"""
    last, rows = compute(text, np.array(trips), np.array(1, np.float32))
    assert last == 2**trips and rows.dtype == np.float32
    np.testing.assert_array_equal(rows, 2.0 ** np.arange(trips))
