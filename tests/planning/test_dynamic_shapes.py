"""One plan for all shapes: ONNX Runtime's results for shapes in any order, or the reason that there is none."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

import nnadapter as nna
from benchmarks.models.language_models import Sizes, cache_names, first_feed, language_model
from nnadapter.candidates import prepare
from nnadapter.errors import FallbackWarning
from nnadapter.planning import Bounds, growing_inputs, nearby
from tests import open_sizes_driver
from tests.models import numbers, parse, run_whole

HEAD = '<ir_version: 10, opset_import: ["" : 17]>'
QUIET = nna.Options(fallback="allow")
CHAIN = f"{HEAD} g (float[n, 4] x) => (float[n, 4] y) {{ a = Relu (x) b = Sin (a) y = Neg (b) }}"
SIZES = f"""{HEAD} g (float[n, t, 6] x, float[n, p, 6] past) => (float[n, q, 2, 3] y, float[n, q, 6] all)
<int64[1] last = {{-1}}, int64[2] tail = {{2, 3}}, int64[1] zero = {{0}}, int64 one = {{1}}, int64 none = {{0}}> {{
    new = Neg (x)
    all = Concat <axis = 1> (past, new)
    shape = Shape (all)
    head = Slice (shape, zero, two)
    wanted = Concat <axis = 0> (head, tail)
    length = Gather (shape, one)
    places = Range (none, length, one)
    row = Unsqueeze (places, zero)
    column = Unsqueeze (row, two)
    weights = Cast <to = 1> (column)
    scaled = Mul (all, weights)
    s = Sin (scaled)
    y = Reshape (s, wanted)
}}""".replace("int64 none = {0}", "int64 none = {0}, int64[1] two = {2}")
"""A growing cache: its length determines a shape and a table."""


@pytest.fixture(autouse=True)
def nothing_compiled():
    open_sizes_driver.COMPILED.clear()


def session(text, name="opensizes", options=QUIET, **device_options):
    return nna.InferenceSession(parse(text), devices=[(name, device_options)], options=options)


def agree(opened, text, feed):
    for got, expected in zip(opened.run(None, feed), run_whole(parse(text), feed), strict=True):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def grown(rows, length, past):
    return {"x": numbers(rows, length, 6), "past": numbers(rows, past, 6, seed=1)}


def sizes(opened):
    return opened.report().plans.served_shapes_text


@pytest.mark.parametrize("refused", [(), ("Sin",), ("Mul", "Reshape"), ("Concat",)])
@pytest.mark.parametrize("seed", range(3))
def test_one_plan_serves_every_shape_of_a_model_with_a_cache(refused, seed):
    source = random.Random(seed)
    with session(SIZES, refused=refused) as opened:
        for _ in range(12):
            agree(opened, SIZES, grown(source.randint(1, 3), source.randint(1, 5), source.randint(1, 9)))
        assert sizes(opened) == "one plan for all input shapes"
        assert opened.report().plans.compiled == 1
        placed = {node.op_type: node.device for node in opened.report().nodes if node.state == "runs"}
        assert {name for name, device in placed.items() if device == "cpu"} == set(refused)


def test_dynamic_plan_inlines_weights_for_devices_without_references():
    weight = numpy_helper.from_array(numbers(128, 128), "w")
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[n, 128] x) => (float[n, 128] y) {{ a = MatMul(x, w) y = Relu(a) }}"
    )
    model.graph.initializer.append(weight)
    with nna.InferenceSession(model, devices="opensizes", options=QUIET) as opened:
        for rows in (3, 1, 2):
            x = numbers(rows, 128)
            np.testing.assert_allclose(
                opened.run(None, {"x": x})[0], run_whole(model, {"x": x})[0], rtol=1e-4, atol=1e-4
            )
        assert sizes(opened).startswith("one plan for all input shapes")


@pytest.mark.parametrize(("order", "kept"), [((3, 3, 1, 2, 9, 3), 2), ((3, 1, 2, 9, 3, 3), 1)])
def test_repeated_first_shapes_keep_their_static_plan(order, kept):
    with session(CHAIN) as opened:
        for rows in order:
            agree(opened, CHAIN, {"x": numbers(rows, 4)})
        plans = opened.report().plans
        assert (plans.in_cache, plans.compiled) == (kept, 2)
        assert sizes(opened) == "one plan for all input shapes" + " but the first" * (kept == 2)
    assert open_sizes_driver.COMPILED == [["Relu", "Sin", "Neg"], ["open", "Relu", "Sin", "Neg"]]


def test_single_plan_is_the_dynamic_one():
    with session(CHAIN, options=nna.Options(fallback="allow", max_plans=1)) as opened:
        for rows in (3, 3, 5, 3, 3, 5):
            agree(opened, CHAIN, {"x": numbers(rows, 4)})
        assert opened.report().plans.compiled == 2


def test_report_describes_the_sizes_of_the_last_run():
    with session(CHAIN) as opened:
        for rows in (3, 5, 2, 8, 5):
            opened.run(None, {"x": numbers(rows, 4)})
            report = opened.report()
            assert report.input_shapes == {"x": (rows, 4)}
            assert report.nodes[0].flops == rows * 4


def test_shapes_can_be_prepared():
    with session(CHAIN) as opened:
        opened.prepare({"x": (3, 4)})
        opened.prepare({"x": (5, 4)})
        agree(opened, CHAIN, {"x": numbers(7, 4)})
        assert (opened.report().plans.in_cache, opened.report().plans.compiled) == (2, 2)


def test_empty_cache_needs_no_additional_plan():
    with session(SIZES) as opened:
        for length, past in ((3, 0), (1, 3), (1, 4), (2, 0), (1, 2), (5, 0)):
            agree(opened, SIZES, grown(1, length, past))
        assert opened.report().plans.compiled == 1


def test_other_empty_tensors_need_an_additional_plan():
    with session(SIZES) as opened:
        for rows in (1, 2, 0, 3, 0):
            agree(opened, SIZES, grown(rows, 2, 3))
        assert opened.report().plans.compiled == 2


@pytest.mark.parametrize(
    ("body", "growing"),
    [
        ("z = Concat <axis = -1> (x, y)", {"x": 1}),
        ("s = Shape (x) z = Concat <axis = 1> (x, y)", {"x": 1}),
        ("z = Concat <axis = 1> (x, x)", {}),
        ("r = Relu (x) z = Concat <axis = 1> (x, y)", {}),
        ("a = Concat <axis = 0> (x, y) z = Concat <axis = 1> (x, y)", {}),
        ("z = Concat <axis = 1> (x, v)", {"x": 1}),
    ],
)
def test_inputs_that_may_be_empty_in_dynamic_plans(body, growing):
    head = "g (float[n, m] x, float[n, k] v) => (float[n, q] z)"
    model = onnx.parser.parse_model(f"{HEAD} {head} {{ y = Neg (v) {body} }}")
    assert growing_inputs(prepare(model, {})) == growing


@pytest.mark.parametrize(
    ("node", "growing"),
    [
        ("com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1> (q, q, q, x, v, n, t)", {"x": 2, "v": 2}),
        ("com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1> (q, q, x, x, v, n, t)", {"v": 2}),
        ("com.microsoft.MultiHeadAttention <num_heads = 2> (q, q, q, , , , x, v)", {"x": 2, "v": 2}),
        ("Attention <q_num_heads = 2, kv_num_heads = 2> (q, q, q, , x, v)", {"x": 2, "v": 2}),
    ],
)
def test_caches_of_attention_may_be_empty_in_dynamic_plans(node, growing):
    head = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]> g '
    inputs = "float[b, s, 8] q, float[b, 2, p, 4] x, float[b, 2, p, 4] v, int32[b] n, int32 t"
    model = onnx.parser.parse_model(f"{head} ({inputs}) => (float[b, s, 8] y) {{ y, a, c = {node} }}")
    assert growing_inputs(prepare(model, {})) == growing


def test_step_runs_on_the_cpu_at_sizes_where_it_fails():
    with session(SIZES, fails_above=6) as opened:
        for past in (1, 2, 7, 3, 9):
            agree(opened, SIZES, grown(1, 1, past))
        assert opened.provenance.fell_back


@pytest.mark.parametrize(
    ("name", "device_options", "reason"),
    [
        ("opensizes:fixed", {}, "compiles for static shapes only"),
        ("opensizes", {"fixed": True}, "does not take segment 0 with dynamic shapes: the options say so"),
        ("opensizes", {"lies": True}, "accepted segment 0 with dynamic shapes and failed to compile it"),
        ("opensizes", {"refused": "Sin", "reason": "memory_limit"}, "may take 'Sin_1' at other sizes"),
    ],
)
def test_static_plans_per_shape_are_explained_in_the_report(name, device_options, reason):
    with session(CHAIN, name, **device_options) as opened:
        for rows in (1, 2, 3, 2):
            agree(opened, CHAIN, {"x": numbers(rows, 4)})
        assert reason in sizes(opened) and sizes(opened).startswith("a plan for every set of input shapes: ")
        assert opened.report().plans.compiled == 3


SLICED = f"""{HEAD} g (float[n, 4] x) => (float[m, 4] y)
<int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] end = {{1000}}> {{
    rest = Slice (x, one, end, zero)
    r = Relu (rest)
    y = Sin (r)
}}"""


@pytest.mark.parametrize("order", [(3, 5, 1, 2, 1, 9), (3, 5, 4, 40, 1, 300), (3, 1, 2, 5), (1, 2, 3, 1)])
def test_empty_inner_value_needs_an_additional_plan(order):
    """`x[1:]` is empty if `x` has one row."""
    open_sizes_driver.COMPILED.clear()
    with session(SLICED) as opened:
        for rows in order:
            agree(opened, SLICED, {"x": numbers(rows, 4)})
    assert open_sizes_driver.COMPILED.count(["open", "Slice", "Relu", "Sin"]) <= 1
    assert ["Slice", "Relu", "Sin"] in open_sizes_driver.COMPILED


JOINED = f"""{HEAD} g (float[n, 4] a, float[m, 4] b) => (float[k, 4] y)
<int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] end = {{1000}}> {{
    c = Neg (a)
    d = Neg (b)
    e = Concat <axis = 0> (c, d)
    rest = Slice (e, two, end, zero)
    y = Relu (rest)
}}"""


def test_known_sizes_may_be_empty_in_combination():
    with session(JOINED) as opened:
        for rows in ((3, 3), (1, 5), (5, 1), (1, 1), (1, 5)):
            agree(opened, JOINED, {"a": numbers(rows[0], 4), "b": numbers(rows[1], 4)})
    whole = ["Neg", "Neg", "Concat", "Slice", "Relu"]
    assert [made == ["open", *whole] for made in open_sizes_driver.COMPILED[:2]] == [False, True]
    assert len(open_sizes_driver.COMPILED) == 3 and open_sizes_driver.COMPILED[2] == whole


def test_concurrent_threads_respect_the_bounds_of_a_new_plan():
    for _ in range(10):
        open_sizes_driver.COMPILED.clear()
        with session(SLICED) as opened, ThreadPoolExecutor(3) as pool:
            agree(opened, SLICED, {"x": numbers(4, 4)})
            barrier = Barrier(3)

            def run(rows, barrier=barrier, opened=opened):
                barrier.wait()
                agree(opened, SLICED, {"x": numbers(rows, 4)})

            list(pool.map(run, (3, 1, 5)))
            opened.run(None, {"x": numbers(1, 4)})
        assert ["Slice", "Relu", "Sin"] in open_sizes_driver.COMPILED[1:]


def test_bounds_widen_with_new_sizes():
    bounds = Bounds({"x": (2, 4)}, {"x": (3, 4)})
    assert [bounds.hold({"x": (rows, 4)}) for rows in (1, 2, 3, 12, 13)] == [False, True, True, True, False]
    wider = bounds.widened({"x": (1, 4)}).widened({"x": (20, 4)})
    assert [wider.hold({"x": (rows, 4)}) for rows in (0, 1, 80, 81)] == [False, True, True, False]


def test_costs_hold_for_nearby_sizes():
    bounds = nearby({"x": (20, 1), "past": (2, 0, 8)})
    alike, others = [(5, 1), (80, 1), (20, 16), (20, 0)], [(4, 1), (81, 1), (20, 17)]
    assert all(bounds.hold({"x": shape, "past": (2, 0, 8)}) for shape in alike)
    assert not any(bounds.hold({"x": shape, "past": (2, 0, 8)}) for shape in others)
    assert bounds.hold({"x": (20, 1), "past": (16, 16, 32)}) and not bounds.hold({"x": (20, 1), "past": (2, 17, 8)})


@pytest.mark.sweep
@pytest.mark.parametrize(
    "policy", ["latency", *(pytest.param(each, marks=pytest.mark.sweep) for each in ("throughput", "measured"))]
)
def test_cost_decisions_hold_for_nearby_sizes(policy):
    """A cache grows by one token per run; each length used to get its own plan."""
    small = Sizes(layers=1, width=16, heads=2, words=20)
    model, names = language_model(small), list(cache_names(small))
    feed, counts = first_feed(small, (1, 2, 3)), []
    devices, options = [("fake_npu", {"clock": "simulated"})], nna.Options(policy=policy)
    with nna.InferenceSession(model, devices=devices, options=options) as opened:
        for _ in range(40):
            logits, *cache = opened.run(None, feed)
            for got, expected in zip((logits, *cache), run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
            counts.append(opened.report().plans.compiled)
            feed = {"ids": np.array([[int(logits[0, -1].argmax())]])}
            feed |= {f"past.{name}": value for name, value in zip(names, cache, strict=True)}
        assert counts[-1] <= 4 and counts[20] == counts[25]
        assert "sizes are far from the ones at which costs were compared" in sizes(opened)


def test_unknown_rank_needs_static_plans():
    model = onnx.parser.parse_model(f"{HEAD} g (float[] x) => (float[] y) {{ a = Relu (x) y = Sin (a) }}")
    with nna.InferenceSession(model, devices="opensizes") as opened:
        for shape in ((2, 3), (2, 3, 4), (5,), (3, 3)):
            x = numbers(*shape)
            np.testing.assert_allclose(opened.run(None, {"x": x})[0], np.sin(np.maximum(x, 0)), rtol=1e-5)
        assert "the rank of input 'x' is unknown" in sizes(opened)


def test_limits_need_static_shapes():
    rules = nna.Rules(limits=nna.Limits(max_segments=1))
    with session(CHAIN, options=nna.Options(fallback="allow", rules=rules)) as opened:
        for rows in (1, 2):
            agree(opened, CHAIN, {"x": numbers(rows, 4)})
        assert "limits of rules depend on sizes" in sizes(opened)


def test_size_output_is_correct_at_every_shape():
    text = f"{HEAD} g (float[n, 4] x) => (float[n, 4] y, int64[2] s) {{ y = Relu (x) s = Shape (y) }}"
    with session(text) as opened:
        for rows in (1, 2, 3):
            agree(opened, text, {"x": numbers(rows, 4)})
        assert sizes(opened) == "one plan for all input shapes"
    with session(text, options=nna.Options(fallback="forbid")) as opened:
        for rows in (1, 2, 3):
            agree(opened, text, {"x": numbers(rows, 4)})
        assert "output 's' depends on input shapes alone" in sizes(opened)


@pytest.mark.parametrize("device", ["fake_npu", "opensizes", "null"])
def test_size_outputs_are_correct_in_compiled_files(tmp_path, device):
    text = f"""{HEAD} g (float[n, m] x) => (float[n, m] y, int64[2] s, float[m] t, float[n] u) {{
        inner = Relu (x)
        y = Sin (inner)
        s = Shape (inner)
        width = Shape <start = 1> (y)
        t = ConstantOfShape (width)
        height = Shape <end = 1> (x)
        ones = ConstantOfShape (height)
        u = Identity (ones)
    }}"""
    model, file = onnx.parser.parse_model(text), tmp_path / "model.nna"
    alone = onnxruntime.InferenceSession(model.SerializeToString())
    nna.compile(model, file, devices=device, options=nna.Options(fallback="allow"))
    with nna.InferenceSession(file) as opened:
        for shape in ((2, 3), (3, 2), (5, 7), (4, 4)):
            x = numbers(*shape)
            _, *made = opened.run(None, {"x": x})
            for mine, theirs in zip(made, alone.run(None, {"x": x})[1:], strict=True):
                np.testing.assert_array_equal(mine, theirs)


def test_size_of_a_value_inside_another_segment():
    text = f"""{HEAD} g (float[n, 4] x, float[m, 4] z) => (float[k] y, float[n, 8] w)
    <int64[1] last = {{-1}}> {{
        inner = Concat <axis = 1> (x, x)
        w = Relu (inner)
        shape = Shape (inner)
        flat = ReduceProd <keepdims = 1> (shape)
        zeros = ConstantOfShape (flat)
        y = Sin (zeros)
    }}"""
    with session(text, refused=("Sin",)) as opened:
        for rows in (1, 2, 3, 5):
            agree(opened, text, {"x": numbers(rows, 4), "z": numbers(2, 4)})


@pytest.mark.parametrize("refused", ["Sin", "Concat"])
def test_segment_returns_value_measured_by_another(refused):
    text = f"""{HEAD} g (float[n, 4] x) => (float[n, 8] y)
    <int64[1] front = {{0}}, int64[1] one = {{1}}, int64[2] back = {{2, 4}}> {{
        e = Exp (x)
        inner = Concat <axis = 1> (e, e)
        w = Relu (inner)
        s = Sin (w)
        shape = Shape (inner)
        rows = Slice (shape, front, one)
        parts = Concat <axis = 0> (rows, back)
        apart = Reshape (s, parts)
        n = Neg (apart)
        y = Reshape (n, shape)
    }}"""
    with session(text, refused=(refused,)) as opened:
        for rows in (1, 2, 3, 5, 2):
            agree(opened, text, {"x": numbers(rows, 4)})
        assert opened.report().plans.compiled == 2 and sizes(opened) == "one plan for all input shapes"


LONGER = f"""{HEAD} g (float[n, 4] x) => (float[n, 4] y)
{{ a = Relu (x) b = Exp (a) c = Sin (b) d = Tanh (c) e = Neg (d) y = Abs (e) }}"""


def test_nodes_refused_with_dynamic_shapes_run_elsewhere():
    with session(LONGER, refused_open=("Sin",)) as opened:
        for rows in (1, 2, 3, 5, 1, 2):
            agree(opened, LONGER, {"x": numbers(rows, 4)})
        report = opened.report()
    assert (report.plans.compiled, report.plans.served_shapes_text) == (2, "one plan for all input shapes")
    assert [node.device for node in report.nodes] == [*["opensizes"] * 2, "cpu", *["opensizes"] * 3]
    assert [each.detail for node in report.nodes for each in node.refusals] == [
        "the device refuses the node with dynamic shapes: the options say so"
    ]
    assert [*map(len, open_sizes_driver.COMPILED)] == [6, 3, 4]  # whole for the first sizes, then in two parts


def test_device_with_many_dynamic_refusals_gets_static_plans():
    with session(LONGER, refused_open=("Sin", "Exp")) as opened:
        for rows in (1, 2, 3):
            agree(opened, LONGER, {"x": numbers(rows, 4)})
        report = opened.report()
    assert (
        report.plans.compiled == 3 and "does not take segment 0 with dynamic shapes" in report.plans.served_shapes_text
    )
    assert {node.device for node in report.nodes} == {"opensizes"}


def test_forbidden_fallback_keeps_the_model_on_its_device():
    with session(LONGER, options=nna.Options(fallback="forbid"), refused_open=("Sin",)) as opened:
        for rows in (1, 2, 3):
            agree(opened, LONGER, {"x": numbers(rows, 4)})
        assert opened.report().plans.compiled == 3


def test_node_without_alternative_device_stays():
    text = LONGER.replace("Sin (b)", "com.acme.Sine (b)").replace('"" : 17', '"" : 17, "com.acme" : 1')
    with session(text, refused_open=("Sine",), replaced="Sine") as opened:
        for rows in (1, 2, 3):
            feed = {"x": numbers(rows, 4)}
            np.testing.assert_allclose(opened.run(None, feed)[0], run_whole(parse(LONGER), feed)[0], rtol=1e-5)
        assert opened.report().plans.compiled == 3


@pytest.mark.parametrize(("cuts", "made"), [(4, 2), (5, 3)])
def test_fragmented_model_gets_static_plans(cuts, made):
    ops = [*["Relu", "Exp", "Neg", "Tanh", "Sin", "Abs"] * cuts, "Neg"]
    names = ["x", *(f"v{number}" for number in range(1, len(ops))), "y"]
    nodes = " ".join(f"{out} = {op} ({read})" for op, read, out in zip(ops, names, names[1:], strict=False))
    text = f"{HEAD} g (float[n, 4] x) => (float[n, 4] y) {{ {nodes} }}"
    with session(text, refused_open=("Sin",)) as opened:
        for rows in (1, 2, 3):
            agree(opened, text, {"x": numbers(rows, 4)})
        assert opened.report().plans.compiled == made


@pytest.mark.parametrize("pinned", [True, False])
def test_pinned_nodes_stay(pinned):
    rules = '[[pin]]\nname = "c"\ndevice = "opensizes"\n' if pinned else None
    model = parse(LONGER)
    for node in model.graph.node:
        node.name = node.output[0]
    options = nna.Options(fallback="allow", rules=rules)
    with nna.InferenceSession(model, devices=[("opensizes", {"refused_open": ("Sin",)})], options=options) as opened:
        for rows in (1, 2, 3):
            opened.run(None, {"x": numbers(rows, 4)})
        assert opened.report().plans.compiled == (3 if pinned else 2)


def test_consecutive_refused_shapes_end_the_search():
    text = f"""{HEAD} g (float[n, t] x) => (float[m, t] y)
    <int64[1] one = {{1}}, int64[1] zero = {{0}}, int64[1] most = {{9999}}> {{
        rest = Slice (x, one, most, zero)
        y = Relu (rest)
    }}"""
    with session(text, "fake_npu") as opened:
        for length in (1, 2, 3, 4, 5, 6):  # with one row, `rest` is empty
            agree(opened, text, {"x": numbers(1, length)})
        assert sizes(opened).startswith("a plan for every set of input shapes: 'rest' has no elements")
        agree(opened, text, {"x": numbers(3, 7)})
        agree(opened, text, {"x": numbers(3, 8)})
        assert opened.report().plans.compiled == 8
        for length in (9, 10, 11):  # the eighth set of shapes tries again
            agree(opened, text, {"x": numbers(3, length)})
        assert opened.report().plans.compiled == 9 and sizes(opened).startswith("one plan for all input shapes")


def test_invalid_shapes_do_not_end_the_search():
    text = f"""{HEAD} g (float[n, t] x) => (float[n, k, 4] y) <int64[3] by = {{0, -1, 4}}>
    {{ a = Relu (x) b = Reshape (a, by) y = Neg (b) }}"""
    with session(text, "fake_npu") as opened:
        for length in (5, 6, 7, 9):
            with pytest.raises(nna.errors.NNAdapterError):
                opened.run(None, {"x": numbers(2, length)})
        for length in range(4, 80, 4):
            agree(opened, text, {"x": numbers(2, length)})
        assert opened.report().plans.compiled <= 9 and sizes(opened).startswith("one plan for all input shapes")


def test_order_of_shapes_does_not_matter():
    expected = {}
    for seed in range(6):
        rows = random.Random(seed).sample((1, 2, 3, 4, 5), 5)
        with session(CHAIN, refused="Sin", reason="unsupported_attribute") as opened:
            for count in rows:
                opened.run(None, {"x": numbers(count, 4)})
                placed = tuple(node.device for node in opened.report().nodes)
                assert expected.setdefault(count, placed) == placed


def test_forbidden_fallback_applies_to_dynamic_plans():
    with (
        pytest.raises(nna.errors.NotDelegatedError),
        session(CHAIN, options=nna.Options(fallback="forbid"), refused="Sin") as opened,
    ):
        opened.run(None, {"x": numbers(1, 4)})
    with session(CHAIN, options=nna.Options(fallback="warn"), fails_above=4) as opened:
        opened.run(None, {"x": numbers(1, 4)})
        with pytest.warns(FallbackWarning, match="too long"):
            agree(opened, CHAIN, {"x": numbers(6, 4)})


def test_fallback_of_adapter_ir_finds_the_onnx_inputs():
    text = f"""{HEAD} g (float[n, t] x, float[n, t] u) => (float[m, k] y)
<int64 one = {{1}}, int64 none = {{0}}> {{
    a = Concat <axis = 1> (x, u)
    b = Sin (a)
    s = Shape (a)
    r = Transpose <perm = [1, 0]> (b)
    c = Reshape (r, s)
    l = Gather (s, one)
    g = Range (none, l, one)
    f = Cast <to = 1> (g)
    d = Add (c, f)
    e = Cos (d)
    y = Exp (e)
}}"""
    with session(text, "fake_npu", switched_off=("SIN", "COS"), memory_bytes=2000) as opened:
        for rows, columns in ((2, 3), (3, 3), (4, 5), (9, 9), (30, 400)):
            agree(opened, text, {"x": numbers(rows, columns), "u": numbers(rows, columns, seed=1)})
        steps = opened.provenance.steps
        assert opened.provenance.fell_back and len(steps) > 1


CHOICE = f"""{HEAD} g (float[n, 4] x, bool[k] twice) => (float[m, 4] y) {{
    y = If (twice) <then_branch = t () => (float[p, 4] a) {{ a = Concat <axis = 0> (x, x) }},
                    else_branch = e () => (float[q, 4] b) {{ b = Neg (x) }}>
}}"""


@pytest.mark.parametrize("devices", ["fake_npu", "null", ["null", "fake_npu"]], ids=str)
def test_nodes_refused_at_all_sizes_need_no_plan_per_shape(devices):
    """The length of y is unknown before the run and does not follow from input sizes."""
    model = parse(CHOICE)
    with nna.InferenceSession(model, devices=devices, options=QUIET) as session:
        for rows in (1, 2, 0, 3, 5, 7):
            feed = {"x": numbers(rows, 4, seed=rows), "twice": np.array([rows % 2 == 1])}
            np.testing.assert_array_equal(session.run(None, feed)[0], run_whole(model, feed)[0])
        plans = session.report().plans
    assert plans.compiled <= 2 and "for all input shapes" in plans.served_shapes_text
