"""Models with growing sizes: two plans, compared with ONNX Runtime at every size."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx.checker
import onnx.parser
import pytest
from onnx import numpy_helper

import nnadapter as nna
from nnadapter import limits
from nnadapter.drivers import Reason
from nnadapter.drivers.openvino import ModelAnalysis, judge_dynamic, program
from nnadapter.errors import ExecutionError, InvalidModelError, NNAdapterError
from tests.drivers.openvino.harness import computed, context, model_of, read_only
from tests.models import numbers, parse, run_whole

CACHED = """<ir_version: 10, opset_import: ["" : 17]> g
(float[b, t, 8] x, float[b, 2, p, 4] k0, float[b, 2, p, 4] v0) =>
(float[b, t, 8] y, float[b, 2, n, 4] k, float[b, 2, n, 4] v)
<int64[1] zero = {0}, int64[1] one = {1}, int64[2] heads = {2, 4}, int64[1] eight = {8}, int64 first = {0},
 int64 second = {1}, int64 third = {2}, float low = {-1e9}, float scale = {0.5}> {
    shape = Shape (x)
    b = Gather (shape, first)
    t = Gather (shape, second)
    b1 = Unsqueeze (b, zero)
    t1 = Unsqueeze (t, zero)
    split = Concat <axis = 0> (b1, t1, heads)
    whole = Concat <axis = 0> (b1, t1, eight)
    parted = Reshape (x, split)
    q = Transpose <perm = [0, 2, 1, 3]> (parted)
    k = Concat <axis = 2> (k0, q)
    v = Concat <axis = 2> (v0, q)
    past = Shape (k0)
    p = Gather (past, third)
    n = Add (p, t)
    keys = Range (first, n, second)
    queries = Range (p, n, second)
    row = Unsqueeze (keys, zero)
    column = Unsqueeze (queries, one)
    seen = LessOrEqual (row, column)
    across = Transpose <perm = [0, 1, 3, 2]> (k)
    product = MatMul (q, across)
    scaled = Mul (product, scale)
    masked = Where (seen, scaled, low)
    weights = Softmax <axis = -1> (masked)
    mixed = MatMul (weights, v)
    back = Transpose <perm = [0, 2, 1, 3]> (mixed)
    flat = Reshape (back, whole)
    y = Add (x, flat)
}"""


def test_growing_cache_is_compiled_once():
    model = parse(CACHED)
    rows, cache = 2, [numbers(2, 2, 1, 4, seed=1), numbers(2, 2, 1, 4, seed=2)]
    with nna.InferenceSession(model, devices="openvino") as session:
        for length in (3, 1, 1, 2, 1, 1, 5, 1):
            feed = {"x": numbers(rows, length, 8, seed=length), "k0": cache[0], "v0": cache[1]}
            results = session.run(None, feed)
            for got, expected in zip(results, run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
            cache = results[1:]
        report = session.report()
        assert report.plans.compiled == 1 and not session.provenance.fell_back
        assert {node.device for node in report.nodes if node.state == "runs"} == {"openvino"}


def test_cache_that_starts_empty():
    model = parse(CACHED)
    cache = [np.empty((1, 2, 0, 4), np.float32)] * 2
    with nna.InferenceSession(model, devices="openvino") as session:
        for length in (4, 1, 1, 0, 2, 1, 0, 5):
            if not length:
                cache = [np.empty((1, 2, 0, 4), np.float32)] * 2
                continue
            feed = {"x": numbers(1, length, 8, seed=length), "k0": cache[0], "v0": cache[1]}
            results = session.run(None, feed)
            for got, expected in zip(results, run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
            assert {node.device for node in session.report().nodes if node.state == "runs"} == {"openvino"}
            cache = results[1:]
        assert session.report().plans.compiled == 1 and not session.provenance.fell_back


def with_weights(text, **weights):
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.checker.check_model(model, full_check=True)
    return model


UPWARDS = """<ir_version: 10, opset_import: ["" : 18]> g
(float[b, 2, h, w] x) => (float[b, 4, h, w] y)
<float[4] twice = {1, 1, 2, 2}, int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}> {
    low = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
    lower = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (low)
    higher = Resize <mode = "nearest"> (lower, , twice)
    sum = Add (higher, low)
    high = ConvTranspose <strides = [2, 2], pads = [0, 0, 0, 0]> (sum, up)
    whole = Shape (x)
    size = Slice (whole, two, four)
    kept = Shape <end = 2> (high)
    wanted = Concat <axis = 0> (kept, size)
    fitted = Resize <mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"> (lower, , , wanted)
    y = Concat <axis = 1> (fitted, high)
}"""


def test_upsampling_is_compiled_once_for_many_sizes():
    model = with_weights(UPWARDS, up=numbers(2, 2, 2, 2))
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="forbid")) as session:
        for batch, height, width in ((1, 8, 12), (2, 4, 4), (1, 16, 8), (1, 4, 40), (3, 8, 8)):
            feed = {"x": numbers(batch, 2, height, width, seed=height)}
            for got, expected in zip(session.run(None, feed), run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        assert session.report().plans.compiled == 2


@pytest.mark.sweep
@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_sequences_of_any_length_have_one_plan(op_type, gates):
    text = f"""<ir_version: 10, opset_import: ["" : 18]> g (float[t, b, 3] x) => (float[t, 2, b, 4] y, float[2, b, 4] h)
        {{ y, h = {op_type} <hidden_size = 4, direction = "bidirectional"> (x, w, r) }}"""
    model = with_weights(text, w=numbers(2, 4 * gates, 3), r=numbers(2, 4 * gates, 4))
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="forbid")) as session:
        for length, batch in ((5, 1), (1, 1), (2, 3), (17, 2), (1, 4)):
            feed = {"x": numbers(length, batch, 3, seed=length)}
            for got, expected in zip(session.run(None, feed), run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        assert session.report().plans.compiled == 2


def test_clamped_sizes_have_one_plan():
    model = parse("""<ir_version: 10, opset_import: ["" : 17]> g (float[n, 4] x) => (float[k, 4] y) {
        sizes = Shape (x)
        zero = Constant <value = int64[1] {0}> ()
        three = Constant <value = int64 {3}> ()
        rows = Gather (sizes, zero)
        few = Clip (rows, , three)
        positive = Relu (x)
        y = Slice (positive, zero, few, zero)
    }""")
    with nna.InferenceSession(model, devices="openvino") as session:
        for rows in (5, 2, 3, 1, 9):
            feed = {"x": numbers(rows, 4, seed=rows)}
            np.testing.assert_array_equal(session.run(None, feed)[0], run_whole(model, feed)[0])
        report = session.report()
        assert report.plans.compiled == 2 and [segment.device for segment in report.segments] == ["openvino"]


def test_split_with_a_smaller_last_part():
    text = """<ir_version: 10, opset_import: ["" : 18]> g (float[n, 4] x) => (float[k, 4] y, float[m, 4] z)
        { r = Abs (x)  y, z = Split <num_outputs = 2> (r) }"""
    model = parse(text)
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="forbid")) as session:
        for rows in (4, 6, 5, 7, 2):
            feed = {"x": numbers(rows, 4, seed=rows)}
            for got, expected in zip(session.run(None, feed), run_whole(model, feed), strict=True):
                np.testing.assert_array_equal(got, expected)


POOLED = """<ir_version: 10, opset_import: ["" : 20]> g (float[n, 5, h, w] x) => (float[n, 5, p, q] y)
    { y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], count_include_pad = 1> (x) }"""


def test_program_that_failed_at_some_sizes_is_recompiled():
    """The engine reused memory of the failed run: wrong results, or a crash."""
    model = parse(POOLED)
    compiled = context().compile(model)
    executions = [compiled.create_execution() for _ in range(2)]
    sizes, random = [(4, 5, 6, 6), (1, 5, 4, 3), (2, 5, 8, 4)], np.random.default_rng(0)
    for _ in range(6):
        with pytest.raises(ExecutionError, match="failed while it ran"):
            executions[random.integers(2)].compute([read_only(numbers(3, 5, 2, 2))])
        for number in range(8):
            x = numbers(*sizes[random.integers(3)], seed=number)
            (y,) = executions[random.integers(2)].compute([read_only(x)])
            np.testing.assert_allclose(y, run_whole(model, {"x": x})[0], rtol=1e-5, atol=1e-6)
    assert compiled.memory_bytes > 0


def test_deserialized_program_serializes_to_the_same_bytes():
    """The engine cannot read its own serialization of a deserialized model."""
    model, x = parse(POOLED), numbers(2, 5, 8, 4)
    compiled = context().compile(model)
    for _ in range(3):
        compiled = context().deserialize(compiled.serialize())
        (y,) = compiled.create_execution().compute([read_only(x)])
        np.testing.assert_allclose(y, run_whole(model, {"x": x})[0], rtol=1e-5, atol=1e-6)


def test_threads_continue_while_other_runs_fail():
    model, wrong = parse(POOLED), []
    sizes = [(4, 5, 6, 6), (1, 5, 4, 3), (2, 5, 8, 4)]
    feeds = {size: {"x": numbers(*size)} for size in sizes}
    expected = {size: run_whole(model, feed)[0] for size, feed in feeds.items()}
    compiled = context().compile(model)

    def work(seed):
        execution, random = compiled.create_execution(), np.random.default_rng(seed)
        for _ in range(60):
            size = sizes[random.integers(3)]
            try:
                (y,) = execution.compute(
                    [read_only(numbers(3, 5, 2, 2) if random.random() < 0.1 else feeds[size]["x"])]
                )
            except ExecutionError:
                continue
            if y.shape == expected[size].shape and not np.allclose(y, expected[size], rtol=1e-5, atol=1e-6):
                wrong.append(size)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not wrong


def test_failed_program_that_cannot_be_deserialized_refuses_later_runs(monkeypatch):
    monkeypatch.setattr(program, "turns_by_narrow_tables", lambda compiled: True)
    execution = context().compile(parse(POOLED)).create_execution()
    with pytest.raises(ExecutionError, match="failed while it ran"):
        execution.compute([read_only(numbers(3, 5, 2, 2))])
    for _ in range(3):
        with pytest.raises(ExecutionError, match="failed at other sizes before"):
            execution.compute([read_only(numbers(4, 5, 6, 6))])


def test_failing_run_keeps_later_runs_on_the_device():
    """A server may receive inconsistent sizes between valid ones."""
    model = parse("""<ir_version: 10, opset_import: ["" : 17]> g (float[n, 4] x, float[m, 4] z) => (float[k, 4] y) {
        a = Relu (x)  y = Add (a, z) }""")
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="allow")) as session:
        for rows in (3, 2, 1, 5):
            session.run(None, {"x": numbers(rows, 4), "z": numbers(rows, 4)})
        for _ in range(2):
            with pytest.raises(NNAdapterError):
                session.run(None, {"x": numbers(3, 4), "z": numbers(2, 4)})
            for rows in (4, 2):
                feed = {"x": numbers(rows, 4), "z": numbers(rows, 4, seed=1)}
                np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-6)
                assert not session.provenance.fell_back


def test_groups_of_channels_of_any_size_have_one_plan():
    model = parse("""<ir_version: 9, opset_import: ["" : 21]> g (float[n, 4, h, w] x) => (float[n, 4, p, q] y)
    <float[4] s = {0.5, 1, 1.5, 2}, float[4, 1, 1] k = {1, 2, 3, 4}> {
        a = Relu (x)  b = GroupNormalization <num_groups = 2> (a, s, s)  c = Mul (b, k)  y = Sigmoid (c)
    }""")
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="forbid")) as session:
        for size in ((1, 4, 4, 4), (2, 4, 5, 6), (3, 4, 2, 3), (1, 4, 1, 1), (4, 4, 8, 8)):
            feed = {"x": numbers(*size)}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-4, atol=1e-4)
        assert session.report().plans.compiled == 2


COUNTED = """<ir_version: 10, opset_import: ["" : 20]> g (float[n, 5, h, w] x) => (float[n, 5, p, q] y)
    { r = Relu (x)  y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (r) }"""


@pytest.mark.parametrize("text", [POOLED, COUNTED], ids=["windows that are none", "windows that count"])
@pytest.mark.parametrize("first", [0, 3])
def test_sizes_that_fail_in_the_engine_do_not_affect_others(text, first):
    model, random = parse(text), np.random.default_rng(0)
    sizes = [(4, 5, 6, 6), (1, 5, 4, 3), (2, 5, 8, 4), (1, 5, 2, 5)]
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="allow")) as session:
        for size in (sizes[first], *(sizes[random.integers(4)] for _ in range(80))):
            feed = {"x": numbers(*size)}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-5, atol=1e-5)
        assert session.report().incidents == ()
        assert session.report().plans.served_shapes_text.startswith("one plan for all input shapes")


def test_invalid_sizes_do_not_affect_others():
    model = parse(POOLED.replace("[3, 3], strides = [2, 2]", "[5, 5]"))
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="allow")) as session:
        for size in ((1, 5, 8, 8), (2, 5, 9, 7), (1, 5, 2, 2), (1, 5, 10, 10)):
            feed = {"x": numbers(*size)}
            if 2 in size[2:]:
                with pytest.raises(InvalidModelError, match="failed on the CPU"):
                    session.run(None, feed)
                continue
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-5, atol=1e-5)
            assert {node.device for node in session.report().nodes} == {"openvino"}


def test_results_belong_to_the_caller():
    with nna.InferenceSession(parse(CACHED), devices="openvino") as session:
        feeds = [
            {"x": numbers(1, length, 8, seed=length), "k0": numbers(1, 2, 3, 4), "v0": numbers(1, 2, 3, 4)}
            for length in (1, 2, 3)
        ]
        first_results = [session.run(None, feed) for feed in feeds]
        copies = [[array.copy() for array in results] for results in first_results]
        for feed in feeds:
            session.run(None, feed)
        for results, copied in zip(first_results, copies, strict=True):
            for array, copy in zip(results, copied, strict=True):
                np.testing.assert_array_equal(array, copy)


def test_program_with_dynamic_shapes_is_cached():
    opened, model = (
        context(),
        model_of("(float[n, 4] x) => (float[n, 4] y, float[4, n] z) { y = Relu (x) z = Transpose (y) }"),
    )
    blob = opened.compile(model).serialize()
    execution = opened.deserialize(blob).create_execution()
    for rows in (2, 5, 1):
        x = numbers(rows, 4)
        y, z = execution.compute([read_only(x)])
        np.testing.assert_array_equal(y, np.maximum(x, 0))
        np.testing.assert_array_equal(z, y.T)


@pytest.mark.parametrize(
    ("text", "reason", "detail"),
    [
        (
            "(float[n, c, 4] x, float[m] s) => (float[n, c, 4] y) { y = PRelu (x, s) }",
            "dynamic_shape",
            "before the run",
        ),
        ("(float16[n, 4] x) => (float16[n, 4] y) { y = Softsign (x) }", "unsupported_dtype", "crash the engine"),
        ("(float[n, 4] x, float[4] w) => (float[n] y) { y = MatMul (x, w) }", "unsupported_attribute", "a vector"),
        (
            "(float[n, 1] x) => (float[2, n, 1] y) <float[2, 1, 1] w = {1, 2}> { y = MatMul (x, w) }",
            "unsupported_attribute",
            "one matrix by several",
        ),
        (
            "(float[e, n, 1] x) => (float[2, n, 1] y) <float[2, 1, 1] w = {1, 2}> { y = MatMul (x, w) }",
            "unsupported_attribute",
            "one matrix by several",
        ),
        (
            "(float[n, c, m] x) => (float[n, c, m] y) { y = LRN <size = 3> (x) }",
            "unsupported_operation",
            "static shapes",
        ),
        ("(int32[n, m] x) => (int32[n, m] y) { y = Trilu (x) }", "unsupported_dtype", "int32"),
        (
            "(float[n, 2] x) => (float[m, 2] y, float[k, 2] z) { y, z = Split <num_outputs = 2> (x) }",
            "unsupported_attribute",
            "the last is smaller",
        ),
        (
            "(float[t, b, 2] x, int32[b] n) => (float[t, 1, b, 3] y) <float[1, 3, 2] w = {0, 0, 0, 0, 0, 0}, "
            "float[1, 3, 3] r = {0, 0, 0, 0, 0, 0, 0, 0, 0}> { y = RNN <hidden_size = 3> (x, w, r, , n) }",
            "unsupported_attribute",
            "sequence_lens",
        ),
        (
            "(float[b, 1, n] x) => (float[b, 1, m] y) <float[1, 1, 2] w = {0, 0}> "
            '{ y = ConvTranspose <auto_pad = "SAME_UPPER"> (x, w) }',
            "unsupported_attribute",
            "auto_pad",
        ),
        (
            "(float[b, 1, n] x) => (float[b, 1, m] y) <float[3] s = {1, 1, 1.5}> { y = Resize (x, , s) }",
            "dynamic_shape",
            "before the run",
        ),
        (
            "(float[n, c] x) => (uint8[n, c] y) <float[2] s = {0.5, 2}, uint8[2] z = {0, 1}> "
            "{ y = QuantizeLinear (x, s, z) }",
            "unsupported_attribute",
            "per index of a dynamic dimension",  # it would crash the process
        ),
        ("(float x) => (float y) { y = Mystery (x) }", "unsupported_operation", "static shapes only"),
    ],
)
def test_refused_with_dynamic_shapes(text, reason, detail):
    model = model_of(text)
    verdict = judge_dynamic(model.graph.node[0], ModelAnalysis.of(model, 1 << 12))
    assert not verdict and verdict.reason is Reason(reason) and detail in verdict.detail


@pytest.mark.parametrize("axis", [1, -1])
def test_scale_per_channel_with_other_dimensions_dynamic(axis):
    opened, model = (
        context(),
        model_of(
            "(float[n, 2] x) => (uint8[n, 2] y) <float[2] s = {0.5, 2}, uint8[2] z = {0, 1}> "
            f"{{ y = QuantizeLinear <axis = {axis}> (x, s, z) }}"
        ),
    )
    assert opened.admit(model).verdict
    x = np.float32([[1, 8], [2, 3.5], [0, 300]])
    np.testing.assert_array_equal(computed(opened, model, [x])[0], run_whole(model, {"x": x})[0])


@pytest.mark.parametrize(
    ("shape", "weights"),
    [("2, n, 1", "2, 1, 1"), ("b, n, 1", "1, 1, 1"), ("b, h, n, 1", "2, 1, 1"), ("n, 1", "1, 1, 1")],
)
def test_products_with_several_constants(shape, weights):
    """One matrix per item is supported, and so is one matrix for all."""
    table = f"float[{weights}] w = {{{', '.join(map(str, range(2, 2 + int(weights[0]))))}}}"
    opened, model = (
        context(),
        model_of(f"(float[{shape}] x) => (float[a, c, d, e] y) <{table}> {{ y = MatMul (x, w) }}"),
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert opened.admit(model).verdict
    x = numbers(*(int(size) if size.isdigit() else {"b": 3, "h": 2, "n": 4}[size] for size in shape.split(", ")))
    np.testing.assert_allclose(computed(opened, model, [x])[0], run_whole(model, {"x": x})[0], rtol=1e-5)


def test_static_shapes_are_admitted_at_once():
    assert context().admit(model_of("(float16[2, 4] x) => (float16[2, 4] y) { y = Softsign (x) }")).verdict
    assert not context().admit(model_of("(float16[n, 4] x) => (float16[n, 4] y) { y = Softsign (x) }")).verdict


HALVES = """(float16[b, s, 4] x, float16[b, p, 4] past) => (float16[b, s, 4] y, float16[b, t, 4] all)
<float[4] long = {0.5, 1, 1, 2}, float[4, 4] wide = {1, 2, 0, 0, 0, 1, 0, 1, 1, 0, 1, 0, 0, 0, 1, 1}> {
    scale = Cast <to = 10> (long)
    w = Cast <to = 10> (wide)
    n = LayerNormalization (x, scale)
    q = MatMul (n, w)
    all = Concat <axis = 1> (past, n)
    keys = Transpose <perm = [0, 2, 1]> (all)
    scores = MatMul (q, keys)
    shares = Softmax (scores)
    mixed = MatMul (shares, all)
    root = Sqrt (scale)
    gate = Sigmoid (mixed)
    scaled = Div (gate, root)
    y = Add (x, scaled)
}"""


def test_float16_decoder_with_dynamic_shapes():
    text = f'<ir_version: 10, opset_import: ["" : 17]> g {HALVES}'
    model = onnx.parser.parse_model(text)
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="allow")) as session:
        for rows, steps, past in ((1, 5, 0), (1, 1, 5), (1, 1, 6), (2, 3, 0), (2, 1, 3), (2, 4, 9), (1, 1, 0)):
            feed = {"x": numbers(rows, steps, 4), "past": numbers(rows, past, 4, seed=1)}
            feed = {name: array.astype(np.float16) for name, array in feed.items()}
            for got, expected in zip(session.run(None, feed), run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-2, atol=1e-2)
            assert [step.device for step in session.provenance.steps] == ["openvino"]
        assert session.report().plans.compiled <= 3


ATTENTION = """<ir_version: 10, opset_import: ["" : 17]> g (float[b, t, 8] x) => (float[b, t, 8] y)
<int64[1] zero = {0}, int64[2] heads = {2, 4}, int64[1] eight = {8}, int64 first = {0}, int64 second = {1}> {
    shape = Shape (x)
    b = Gather (shape, first)
    t = Gather (shape, second)
    b1 = Unsqueeze (b, zero)
    t1 = Unsqueeze (t, zero)
    split = Concat <axis = 0> (b1, t1, heads)
    whole = Concat <axis = 0> (b1, t1, eight)
    parted = Reshape (x, split)
    q = Transpose <perm = [0, 2, 1, 3]> (parted)
    across = Transpose <perm = [0, 1, 3, 2]> (q)
    product = MatMul (q, across)
    weights = Softmax <axis = -1> (product)
    mixed = MatMul (weights, q)
    back = Transpose <perm = [0, 2, 1, 3]> (mixed)
    y = Reshape (back, whole)
}"""


@pytest.mark.parametrize("lengths", [(2, 3, 4, 5, 2, 6), (3, 2, 4, 5, 2, 6), (2, 2, 3, 2, 4, 5)])
def test_as_many_tokens_as_heads_needs_few_plans(lengths):
    model = parse(ATTENTION)
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="allow")) as session:
        for length in lengths:
            feed = {"x": numbers(2, length, 8, seed=length)}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-4, atol=1e-5)
        plans = session.report().plans
    assert plans.compiled <= 3 and plans.served_shapes_text.startswith("one plan for all input shapes")


CAUSAL = """<ir_version: 10, opset_import: ["" : 17]> g (float[t, 2] x) => (float[t, 2] y, int64[1, k] kept)
<int64 none = {0}, int64 one = {1}, int64[1] zero = {0}, int64[1] first = {1}, float low = {-9}, float high = {0}> {
    shape = Shape (x)
    t = Gather (shape, none)
    places = Range (none, t, one)
    row = Unsqueeze (places, zero)
    column = Unsqueeze (places, first)
    seen = LessOrEqual (row, column)
    mask = Where (seen, high, low)
    turned = Transpose (x)
    product = MatMul (x, turned)
    masked = Add (product, mask)
    weights = Softmax (masked)
    y = MatMul (weights, x)
    sums = ReduceSum <keepdims = 0> (x, first)
    kept = NonZero (sums)
}"""


def test_unfolded_masks_need_one_more_plan(monkeypatch):
    """A plan for lengths with an unfolded mask holds only for such lengths."""
    monkeypatch.setattr(limits, "FOLDED_BYTES_PER_SHAPE", 1 << 12)
    model = parse(CAUSAL)
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="allow")) as session:
        for length in (5, 90, 6, 7, 95, 8, 9, 91):
            feed = {"x": numbers(length, 2, seed=length)}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-4, atol=1e-5)
        plans = session.report().plans
    assert plans.compiled <= 4 and "one more when other nodes remain after folding" in plans.served_shapes_text


def test_nodes_refused_only_per_shape_are_in_the_dynamic_plan():
    text = """<ir_version: 10, opset_import: ["" : 17]> g (int32[b, 2, 8] x) => (int32[b, 2, 8] y)
    <int64[4] parts = {0, 2, 2, 4}, int64[3] whole = {0, 2, 8}> {
        parted = Reshape (x, parts)
        turned = Transpose <perm = [0, 2, 1, 3]> (parted)
        joined = Reshape (turned, whole)
        y = Add (joined, x)
    }"""
    model, generator = parse(text), np.random.default_rng(0)
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="allow")) as session:
        session.run(None, {"x": generator.integers(-9, 9, (7, 2, 8), np.int32)})
        assert {segment.device for segment in session.report().segments} == {"openvino", "cpu"}
        for batch in (1, 2, 3, 4, 5, 6):
            feed = {"x": generator.integers(-9, 9, (batch, 2, 8), np.int32)}
            np.testing.assert_array_equal(session.run(None, feed)[0], run_whole(model, feed)[0])
        report = session.report()
    assert (report.plans.compiled, report.plans.served_shapes_text) == (2, "one plan for all input shapes")
    assert [segment.device for segment in report.segments] == ["openvino"]


def test_attention_with_as_many_heads_as_tokens_at_static_and_dynamic_shapes():
    model = parse(ATTENTION)
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="allow")) as session:
        for batch in (7, 1, 2, 3, 4, 5, 6):
            feed = {"x": numbers(batch, 2, 8, seed=batch)}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-4, atol=1e-5)
            assert [segment.device for segment in session.report().segments] == ["openvino"]
        assert session.report().plans.compiled <= 2


def test_nodes_accepted_only_at_static_shapes_leave_the_dynamic_plan():
    text = """<ir_version: 10, opset_import: ["" : 17]> g (float[b, 2, n] x) => (float[b, 2, m] y) {
        a = Abs (x)  c = Exp (a)  d = Tanh (c)  e = Neg (d)  f = Sqrt (a)
        p = AveragePool <kernel_shape = [2], strides = [2], ceil_mode = 1, count_include_pad = 1> (e)
        g = Abs (p)  h = Exp (g)  i = Tanh (h)  y = Neg (i)
    }"""
    model = parse(text)
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="allow")) as session:
        for batch, length in ((1, 8), (2, 8), (1, 6), (3, 10), (2, 12), (1, 7)):
            feed = {"x": numbers(batch, 2, length, seed=length)}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-4, atol=1e-5)
        report = session.report()
    assert (report.plans.compiled, report.plans.served_shapes_text) == (2, "one plan for all input shapes")
    assert [segment.device for segment in report.segments] == ["openvino", "cpu", "openvino"]


def test_indices_bounded_by_several_dynamic_sizes():
    """No single size bounds the positions that NonZero returns for a matrix."""
    model = parse("""<ir_version: 10, opset_import: ["" : 18]>
    g (float[n, m] mask, float[8, 3] table) => (float[2, k, 3] y) {
        places = NonZero (mask) y = Gather <axis = 0> (table, places)
    }""")
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="allow")) as session:
        for shape in ((2, 3), (3, 2), (4, 4)):
            feed = {"mask": np.ones(shape, np.float32), "table": numbers(8, 3)}
            np.testing.assert_array_equal(session.run(None, feed)[0], run_whole(model, feed)[0])
