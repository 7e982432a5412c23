"""Dynamic-shape plans on devices that compile adapter IR: few plans, and ONNX Runtime's results at each size."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnadapter as nna
from benchmarks.models.language_models import Sizes, cache_names, first_feed, language_model
from nnadapter.errors import FallbackWarning, InvalidInputError
from tests.models import numbers, parse, run_whole
from tests.planning.test_dynamic_shapes import SIZES, grown

HEAD = '<ir_version: 10, opset_import: ["" : 17]>'
QUIET = nna.Options(fallback="allow")
SMALL = Sizes(layers=2, width=32, heads=2, words=50, positions=64)
BROADCAST = f"{HEAD} g (float[n, 4] x, float[m, 4] w) => (float[k, 4] y) {{ a = Add (x, w) y = Mul (a, a) }}"
"""The sum has the type of `x`, and may be computed in place, at some sizes only."""
IMAGES = f"""{HEAD} g (float[n, 3, h, w] x) => (float[n, 8, i, j] y)
<float[8, 3, 3, 3] f = {{{", ".join(str((index % 7) / 7 - 0.5) for index in range(216))}}}> {{
    c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, f)
    r = Relu (c)
    y = MaxPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (r)
}}"""


def session(model, name="fake_npu", options=QUIET, **device_options):
    return nna.InferenceSession(model, devices=[(name, device_options)], options=options)


def agree(opened, model, feed):
    for got, expected in zip(opened.run(None, feed), run_whole(model, feed), strict=True):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert not opened.provenance.fell_back


def decoded(run, sizes, prompt, steps):
    names, feed = list(cache_names(sizes)), first_feed(sizes, prompt)
    for _ in range(steps):
        logits, *cache = run(feed)
        yield logits
        feed = {
            "ids": np.array([[logits[0, -1].argmax()]], np.int64),
            **{f"past.{name}": value for name, value in zip(names, cache, strict=True)},
        }


@pytest.mark.slow
def test_language_model_needs_at_most_three_plans():
    model = language_model(SMALL)
    alone = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with session(model) as opened:
        for prompt in ((1, 2, 3), (4, 5), (6, 7, 8, 9)):
            steps = decoded(lambda feed: opened.run(None, feed), SMALL, prompt, 40)
            expected_steps = decoded(lambda feed: alone.run(None, feed), SMALL, prompt, 40)
            for got, expected in zip(steps, expected_steps, strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        assert opened.report().plans.compiled <= 3
        assert opened.report().coverage.nodes == 1.0


def test_size_dependent_table_needs_one_plan():
    model = parse(SIZES)
    with session(model) as opened:
        for past in (1, 2, 3, 30, 4, 9, 5):
            agree(opened, model, grown(2, 3, past))
        assert opened.report().plans.compiled == 1


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(0, 5)), min_size=2, max_size=6))
def test_results_equal_onnxruntime_in_any_order_of_shapes(orders):
    model = parse(SIZES)
    with session(model) as opened:
        for rows, length, past in orders:
            agree(opened, model, grown(rows, length, past))


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from([1, 2, 5]), st.booleans(), st.booleans()), min_size=2, max_size=6))
def test_equality_of_sizes_needs_another_plan(orders):
    model = parse(BROADCAST)
    with session(model) as opened:
        for rows, one, other in orders:
            agree(opened, model, {"x": numbers(1 if one else rows, 4), "w": numbers(1 if other else rows, 4)})


def test_images_of_any_size_need_few_plans():
    model = parse(IMAGES)
    with session(model) as opened:
        for height, width in ((8, 8), (9, 12), (32, 17), (40, 64), (10, 11), (9, 12)):
            agree(opened, model, {"x": numbers(1, 3, height, width)})
        assert opened.report().plans.compiled <= 3


SHIFTED = f"""{HEAD} g (float[n, m] x) => (float[k, m] y)
<int64[1] one = {{1}}, int64[1] end = {{1000}}, int64[1] axis = {{0}}> {{
    a = Neg (x)
    b = Slice (a, one, end, axis)
    y = Relu (b)
}}"""


def test_static_plan_of_an_exceptional_shape_is_cached():
    model = parse(SHIFTED)
    with session(model) as opened:
        for rows, columns in ((3, 2), (4, 2), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (5, 7), (1, 7), (6, 8)):
            agree(opened, model, {"x": numbers(rows, columns)})
        assert opened.report().plans.served_shapes_text.startswith("one plan for all input shapes")


def test_report_explains_additional_plan():
    model = parse(SIZES)
    with session(model) as opened:
        for rows, length, past in ((2, 3, 4), (2, 3, 5), (2, 3, 6), (1, 3, 5)):
            agree(opened, model, grown(rows, length, past))
        text = opened.report().plans.served_shapes_text
    assert text.startswith("2 plans for all input shapes; one more when ") and " is True instead of False" in text


def test_null_device_returns_the_shapes_of_onnxruntime():
    model = parse(SIZES)
    with session(model, "null") as opened:
        for rows, length, past in ((2, 3, 4), (2, 3, 5), (1, 1, 9), (3, 1, 9)):
            feed = grown(rows, length, past)
            expected = [value.shape for value in run_whole(model, feed)]
            assert [value.shape for value in opened.run(None, feed)] == expected


def test_many_threads_with_different_sizes():
    model = parse(SIZES)
    with session(model) as opened:

        def work(seed):
            chosen = random.Random(seed)
            for _ in range(15):
                agree(opened, model, grown(chosen.choice([2, 3]), chosen.randint(2, 5), chosen.randint(1, 9)))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))


def test_sizes_beyond_device_memory_run_on_the_cpu():
    model = parse(SIZES)
    with session(model, options=nna.Options(), memory_bytes=5_000) as opened:
        agree(opened, model, grown(2, 3, 4))
        agree(opened, model, grown(2, 3, 5))
        feed = grown(2, 3, 900)
        with pytest.warns(FallbackWarning, match="raise the option memory_bytes"):
            got = opened.run(None, feed)
        for one, other in zip(got, run_whole(model, feed), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_trace_adds_no_guard(tmp_path):
    model = parse(SIZES)
    with session(model, options=nna.Options(fallback="allow", trace=str(tmp_path / "trace.json"))) as opened:
        for past in (1, 2, 3, 30):
            agree(opened, model, grown(2, 3, past))
        assert opened.report().plans.compiled == 1


def test_absent_input_is_not_a_size():
    model = parse(f"""{HEAD} g (float[t, n, 2] x) => (float[t, 1, n, 3] y)
<float[1, 12, 2] w = {{{", ".join(["0.1", "-0.2"] * 12)}}}, float[1, 12, 3] r = {{{", ".join(["0.3"] * 36)}}},
 int64 one = {{1}}, int64[1] zero = {{0}}, int64[1] size = {{3}}> {{
    shape = Shape (x)
    rows = Gather (shape, one)
    row = Unsqueeze (rows, zero)
    one_row = Unsqueeze (one, zero)
    state = Concat <axis = 0> (one_row, row, size)
    h = ConstantOfShape (state)
    y = LSTM <hidden_size = 3> (x, w, r, , , h, h)
}}""")
    with session(model) as opened:
        for steps, rows in ((2, 3), (4, 3), (3, 2), (5, 4)):
            agree(opened, model, {"x": numbers(steps, rows, 2)})


def test_static_segment_gets_no_sizes():
    model = parse(f"""{HEAD} g (float[n, 4] x, float[2, 3] w) => (float[n, 4] y, float[2, 3] z) {{
    y = Relu (x)
    a = Neg (w)
    b = Sin (a)
    z = Exp (b)
}}""")
    with session(model, switched_off=("SIN",)) as opened:
        for rows in (1, 2, 3, 5):
            agree(opened, model, {"x": numbers(rows, 4), "w": numbers(2, 3)})
        assert opened.report().plans.compiled == 2


def test_static_cache_needs_one_plan():
    model = parse(f"""{HEAD} g (float[1, 2] x, float[1, 3] past) => (float[1, 5] y) {{
    a = Neg (x)
    y = Concat <axis = 1> (past, a)
}}""")
    with session(model) as opened:
        for seed in range(2):
            agree(opened, model, {"x": numbers(1, 2, seed=seed), "past": numbers(1, 3, seed=seed)})
        assert opened.report().plans.compiled == 1 and not opened.report().plans.served_shapes_text


@pytest.mark.parametrize(
    ("body", "constants"),
    [
        ("y = Slice (x, first, all, axis)", ""),
        ("y = Slice (x, last, all, axis)", ""),
        ("y = Slice (x, none, last, axis)", ""),
        ("y = Slice (x, none, all, axis, two)", ""),
        ("y = Slice (x, last, before, axis, last)", ""),
        ("s = Shape (x) t = Slice (s, axis, two) h = Div (t, two) y = Slice (x, none, h, axis)", ""),
        ("s = Shape (x) t = Slice (s, axis, two) p = Slice (table, none, t, none) y = Mul (x, p)", "float[40] table"),
        (
            "s = Shape (x) t = Slice (s, axis, two) i = Slice (places, none, t, none) p = Gather (table, i) "
            "y = Mul (x, p)",
            "float[40] table, int64[40] places",
        ),
    ],
)
def test_slices_along_dynamic_sizes_add_no_guard(body, constants):
    values = f" = {{{', '.join(map(str, range(40)))}}}"
    more = "".join(f", {each.strip()}{values}" for each in constants.split(",") if each)
    model = parse(f"""{HEAD} g (float[n, t] x) => (float[n, k] z)
<int64[1] first = {{1}}, int64[1] last = {{-1}}, int64[1] none = {{0}}, int64[1] two = {{2}}, int64[1] axis = {{1}},
 int64[1] all = {{9223372036854775807}}, int64[1] before = {{-9223372036854775807}}{more}> {{
    {body}
    z = Relu (y)
}}""")
    with session(model) as opened:
        for length in (9, 5, 7, 12, 30, 6, 21):
            agree(opened, model, {"x": numbers(3, length)})
        assert opened.report().plans.compiled == 2


def test_number_of_plans_is_bounded():
    model = parse(BROADCAST)
    with session(model, options=nna.Options(fallback="allow", max_plans=2)) as opened:
        for rows, others in ((1, 1), (1, 3), (3, 1), (3, 3), (4, 4), (1, 1), (1, 5), (5, 1)) * 2:
            agree(opened, model, {"x": numbers(rows, 4), "w": numbers(others, 4)})
        assert opened.report().plans.in_cache <= 2


def test_sizes_beyond_a_table_are_input_errors():
    feed = first_feed(SMALL, (1,)) | {
        f"past.{name}": numbers(1, SMALL.heads, SMALL.positions, SMALL.depth) for name in cache_names(SMALL)
    }
    with session(language_model(SMALL)) as opened:
        with pytest.raises(InvalidInputError, match="out of bounds"):
            opened.run(None, feed)
        opened.run(None, first_feed(SMALL, (1, 2)))


def test_failing_step_with_shape_derived_inputs_runs_on_the_cpu():
    """The CPU's segment computes shape-derived values itself, so they are not among its inputs."""
    model = parse(f"""{HEAD} g (float[n, 4] x) => (float[n, 4] y) {{
        s = Shape (x)  f = Cast <to = 1> (s)  r = ReduceMax <keepdims = 0> (f)  y = Add (x, r)
    }}""")
    script = '[[fault]]\nkind = "raise"\nphase = "run"\nfrom = 2\n'
    with session(model, "faulty:fake_npu", script=script) as opened:
        for rows in (5, 6, 7, 8):
            feed = {"x": numbers(rows, 4)}
            np.testing.assert_allclose(opened.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-6)
        said = {incident.fallback_action for incident in opened.report().incidents}
        assert said == {"it runs on the CPU instead"}


def test_refusal_of_a_host_computed_node_does_not_limit_plans():
    model = parse(f"""{HEAD} g (float[n, 4] x) => (float[n, 4] y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64[1] axis = {{1}}> {{
        s = Shape (x)  p = Gather (s, zero)  r = Range (zero, p, one)
        u = Unsqueeze (r, axis)  c = Cast <to = 1> (u)  y = Add (x, c)
    }}""")
    with session(model, "opentable") as opened:
        for rows in (5, 6, 7, 8):
            agree(opened, model, {"x": numbers(rows, 4)})
        assert opened.report().plans.compiled == 2, opened.report().plans.served_shapes_text


EXPERTS = """<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[n, 4] x, float[4, 2] r, float[2, 3, 4] up, float[2, 4, 3] down) => (float[n, 4] y) {
    a = Neg (x)
    chosen = MatMul (a, r)
    b = com.microsoft.MoE <k = 1, activation_type = "relu"> (a, chosen, up, , down)
    c = Mul (b, a)
    y = Neg (c)
}"""


def test_nodes_after_unconverted_experts_keep_dynamic_sizes():
    """Conversion knows only that the output type equals the input type."""
    model = onnx.parser.parse_model(EXPERTS)
    weights = {"r": numbers(4, 2), "up": numbers(2, 3, 4, seed=1), "down": numbers(2, 4, 3, seed=2)}
    with session(model) as opened:
        for rows in (2, 3, 7, 1, 5, 4):
            agree(opened, model, {"x": numbers(rows, 4, seed=rows), **weights})
            placed = {node.op_type: node.device for node in opened.report().nodes}
            assert placed == {"Neg": "fake_npu", "MatMul": "fake_npu", "MoE": "cpu", "Mul": "fake_npu"}
        assert opened.report().plans.compiled <= 3
