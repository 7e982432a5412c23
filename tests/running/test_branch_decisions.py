"""Models with branch decisions: each decision is planned separately, and results equal ONNX Runtime's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import onnx
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.engine import Repeat, plan_devices
from nnadapter.errors import InvalidModelError
from tests import residing_driver
from tests.models import HEAD, numbers, parse, run_whole
from tests.watching import watched

ALLOW = nna.Options(fallback="allow")
FLAG = f"""{HEAD} g (float[N, 3] x, bool[1] c) => (float[N, 3] y) {{
    a = Relu(x)
    b = If(c) <
        then_branch = t () => (float[N, 3] p) {{ p = Add(a, x) }},
        else_branch = e () => (float[N, 3] q) {{ q = Neg(a) }}
    >
    y = Exp(b)
}}"""
RATE = f"""{HEAD} g (float[N, 3] x, int64 rate) => (float[N, 3] y) <int64 slow = {{8000}}> {{
    is_slow = Equal(rate, slow)
    y = If(is_slow) <
        then_branch = t () => (float[N, 3] p) {{ p = Exp(x) }},
        else_branch = e () => (float[N, 3] q) {{
            fast = Constant<value = int64 {{16000}}>()
            is_fast = Equal(rate, fast)
            q = If(is_fast) <
                then_branch = tt () => (float[N, 3] r) {{ r = Neg(x) }},
                else_branch = ee () => (float[N, 3] s) {{ s = Tanh(x) }}
            >
        }}
    >
}}"""
SHARED = f"""{HEAD} g (float[N, 3] x, bool c, bool d) => (float[N, 3] y, float[N, 3] z, float[N, 3] w) {{
    n = Not(c)
    both = And(c, d)
    y = If(c) <
        then_branch = t () => (float[N, 3] p) <float[3] k = {{1, 2, 3}}> {{ p = Mul(x, k) }},
        else_branch = e () => (float[N, 3] p) <float[3] k = {{4, 5, 6}}> {{ p = Mul(x, k) }}
    >
    z = If(n) <
        then_branch = t2 () => (float[N, 3] p) {{ p = Neg(y) }},
        else_branch = e2 () => (float[N, 3] p) {{
            unread = Neg(y)
            p = Identity(x)
        }}
    >
    w = If(both) <
        then_branch = t3 () => (float[N, 3] p) {{ p = Add(z, x) }},
        else_branch = e3 () => (float[N, 3] q) {{ q = Exp(z) }}
    >
}}"""
SIZES = f"""{HEAD} g (float[N, 3] x) => (float[N, 3] y) <int64 zero = {{0}}, int64 two = {{2}}> {{
    s = Shape(x)
    n = Gather(s, zero)
    many = Greater(n, two)
    y = If(many) <
        then_branch = t () => (float[N, 3] p) {{ p = Exp(x) }},
        else_branch = e () => (float[N, 3] q) {{ q = Neg(x) }}
    >
}}"""
BEHIND = f"""{HEAD} g (float[N, 3] x, int64[2] both) => (float[N, 3] y, int64[2] twice)
<int64 one = {{1}}, int64[1] first = {{0}}> {{
    twice = Add(both, both)
    i = Gather(both, first)
    j = Squeeze(i)
    k = Cast<to = 9>(j)
    s = Size(x)
    y = If(k) <
        then_branch = t () => (float[N, 3] p) {{
            l = Cast<to = 1>(s)
            p = Add(x, l)
        }},
        else_branch = e () => (float[N, 3] q) {{ q = Neg(x) }}
    >
}}"""
FUNCTION = """<ir_version: 10, opset_import: ["" : 17, "own" : 1]>
g (float[N, 3] x, int64 r) => (float[N, 3] y) {
    c = own.is_odd(r)
    y = If(c) <
        then_branch = t () => (float[N, 3] p) { p = Exp(x) },
        else_branch = e () => (float[N, 3] q) { q = Neg(x) }
    >
}
<domain: "own", opset_import: ["" : 17]> is_odd (r) => (odd) {
    two = Constant<value_int = 2>()
    left = Mod(r, two)
    odd = Cast<to = 9>(left)
}"""


def truth(value, *shape):
    return np.full(shape, value)


def rows(count):
    return numbers(count, 3, seed=count)


FEEDS = {
    FLAG: [{"x": rows(2), "c": truth(value, 1)} for value in (True, False)],
    RATE: [{"x": rows(2), "rate": np.array(rate)} for rate in (8000, 16000, 5, 16000, -7)],
    SHARED: [{"x": rows(2), "c": truth(c), "d": truth(d)} for c in (True, False) for d in (True, False)],
    SIZES: [{"x": rows(2)}, {"x": rows(3)}, {"x": rows(1)}],
    BEHIND: [{"x": rows(2), "both": np.array(both)} for both in ((0, 4), (3, 0), (-1, 1))],
    FUNCTION: [{"x": rows(2), "r": np.array(r)} for r in (1, 2, -3)],
}
every_model = pytest.mark.parametrize("text", FEEDS, ids=["flag", "rate", "shared", "sizes", "behind", "function"])


def check(session, model, feed):
    for mine, theirs in zip(session.run(None, feed), run_whole(model, feed), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    return {step.device for step in session.provenance.steps}


def op_types(session):
    return {node.op_type for node in session.report().nodes}


@pytest.mark.slow
@every_model
@pytest.mark.parametrize("device", ["fake_npu", "null", "trial"])
def test_random_orders_of_branches_and_shapes(text, device):
    model, random = parse(text), Random(text)
    feeds = [*FEEDS[text], *({**feed, "x": rows(count)} for feed in FEEDS[text] for count in (1, 4))]
    with nna.InferenceSession(model, devices=device, options=ALLOW) as session:
        for feed in (*feeds, *random.choices(feeds, k=30)):
            if device == "null":
                session.run(None, feed)
            else:
                assert check(session, model, feed) == {device}
            assert "If" not in op_types(session)


@every_model
def test_only_repeats_of_a_branch_are_direct(text):
    model, (one, other) = parse(text), FEEDS[text][:2]
    with nna.InferenceSession(model, devices="fake_npu", options=ALLOW) as session:
        for feed in (one, other, one, other):
            check(session, model, feed)
        with watched(Repeat.run, lambda _, result: result is not None) as direct:
            for feed in (one, one, other, one):
                check(session, model, feed)
    assert direct == [False, True, False, False]


def test_plans_depend_on_branches_not_condition_values():
    model = parse(RATE)
    with nna.InferenceSession(model, devices="fake_npu", options=ALLOW) as session:
        for rate in (8000, 16000, *range(1000)):
            session.run(None, {"x": rows(2), "rate": np.array(rate)})
        assert session.report().plans.compiled == 3
        check(session, model, {"x": rows(2), "rate": np.array(8000)})
        assert session.report().plans.compiled == 3


MOST_CHOICES = 8
"""Limit of model variants that a session plans."""


def test_original_model_runs_beyond_the_limit_of_variants():
    flags = [f"c{number}" for number in range(4)]
    nodes = [
        f"""x{at + 1} = If({flag}) <
            then_branch = t{at} () => (float[N, 3] p{at}) {{ p{at} = Exp(x{at}) }},
            else_branch = e{at} () => (float[N, 3] q{at}) {{ q{at} = Neg(x{at}) }}
        >"""
        for at, flag in enumerate(flags)
    ]
    inputs = ", ".join(f"bool {flag}" for flag in flags)
    model = parse(f"{HEAD} g (float[N, 3] x0, {inputs}) => (float[N, 3] x4) {{ {' '.join(nodes)} }}")
    with nna.InferenceSession(model, devices="fake_npu", options=ALLOW) as session:
        for turn in range(2):
            for bits in range(16):
                feed = {"x0": rows(2), **{flag: truth(bool(bits >> at & 1)) for at, flag in enumerate(flags)}}
                devices = check(session, model, feed)
                assert devices == ({"fake_npu"} if bits < MOST_CHOICES else {"cpu"}), turn
        assert session.report().plans.compiled == MOST_CHOICES + 1


def test_cpu_session_runs_the_original_model():
    model = parse(FLAG)
    with nna.InferenceSession(model, devices="cpu") as session:
        for feed in FEEDS[FLAG]:
            check(session, model, feed)
        assert "If" in op_types(session)


def test_branches_without_device_nodes_are_not_specialized():
    model, device = parse(FLAG), ("fake_npu", {"switched_off": "Add,Neg"})
    with nna.InferenceSession(model, devices=device, options=ALLOW) as session:
        for count in range(1, 9):
            for feed in FEEDS[FLAG]:
                assert "cpu" in check(session, model, {**feed, "x": rows(count)})
        assert "If" in op_types(session)
        assert not any("is true" in text for text in (session.report().plans.served_shapes_text,))
        assert session._engine.source.original_model_shapes == {(True,): None, (False,): None}  # at any shapes


TABLES = f"""{HEAD} g (float[N, 3] x) => (float[N, 3] y, float[N, 3] z) <int64 zero = {{0}}, int64 most = {{4}}> {{
    shape = Shape(x)
    rows = Gather(shape, zero)
    is_long = Greater(rows, most)
    table, other = If(is_long) <
        then_branch = t () => (float[3] p, float[3] o) {{
            p = Constant<value = float[3] {{1, 2, 3}}>()
            o = Constant<value = float[3] {{4, 5, 6}}>()
        }},
        else_branch = e () => (float[3] q, float[3] r) {{
            q = Constant<value = float[3] {{7, 8, 9}}>()
            r = Constant<value = float[3] {{10, 11, 12}}>()
        }}
    >
    y = Mul(x, table)
    z = Add(y, other)
}}"""
"""Tables chosen by input length, as in rotary embeddings for short and long texts."""


@pytest.mark.parametrize("device", ["fake_npu", "openvino"])
def test_constant_branches_are_specialized(device):
    model = parse(TABLES)
    with nna.InferenceSession(model, devices=device, options=ALLOW) as session:
        for rows in (1, 2, 3, 5, 4, 6, 7, 2, 9):
            x = numbers(rows, 3)
            for got, expected in zip(session.run(None, {"x": x}), run_whole(model, {"x": x}), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-5)
            assert [step.device for step in session.provenance.steps] == [device]
        assert session.report().plans.compiled <= 4


def test_rules_of_an_if_apply_to_its_branches():
    model = parse(FLAG)
    for rules, device in (("device = 'cpu'", "cpu"), ("device = 'fake_npu'", "fake_npu")):
        options = nna.Options(fallback="allow", rules=f"[[pin]]\nname = 'If_1'\n{rules}")
        with nna.InferenceSession(model, devices="fake_npu", options=options) as session:
            for feed in FEEDS[FLAG]:
                assert device in check(session, model, feed)
                assert ("If" in op_types(session)) is (device == "cpu")


def test_branches_with_a_shared_plan_are_repeated_directly():
    model, device = parse(FLAG), ("fake_npu", {"switched_off": "Add,Neg"})
    with nna.InferenceSession(model, devices=device, options=ALLOW) as session:
        one, other = FEEDS[FLAG]
        for feed in (one, other):
            check(session, model, feed)
        with watched(Repeat.run, lambda _, result: result is not None) as direct:
            for feed in (other, other, one, one):
                check(session, model, feed)
    assert direct == [True, True, False, True]


def test_invalid_branch_does_not_affect_the_other():
    text = FLAG.replace("q = Neg(a)", "three = Constant<value = int64[1] {3}>() q = Reshape(a, three)")
    model = parse(text)
    with nna.InferenceSession(model, devices="fake_npu", options=ALLOW) as session:
        assert check(session, model, {"x": rows(2), "c": truth(True, 1)}) == {"fake_npu"}
        with pytest.raises(InvalidModelError, match="cannot be reshaped"):
            session.run(None, {"x": rows(2), "c": truth(False, 1)})
        assert check(session, model, {"x": rows(2), "c": truth(True, 1)}) == {"fake_npu"}


@pytest.mark.parametrize("text", [FLAG, SHARED, SIZES], ids=["flag", "shared", "sizes"])
def test_concurrent_threads_select_branches_independently(text):
    model = parse(text)
    feeds = [{**feed, "x": rows(count)} for feed in FEEDS[text] for count in (1, 2, 3, 5)]
    expected = [run_whole(model, feed) for feed in feeds]
    with nna.InferenceSession(model, devices="fake_npu", options=ALLOW) as session:

        def run(seed):
            for number in Random(seed).choices(range(len(feeds)), k=40):
                for mine, theirs in zip(session.run(None, feeds[number]), expected[number], strict=True):
                    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(run, range(4)))


def test_prepare_compiles_plans_for_all_branches():
    model = parse(FLAG)
    with nna.InferenceSession(model, devices="fake_npu", options=ALLOW) as session:
        session.prepare({"x": (2, 3), "c": (1,)})
        assert session.report().plans.compiled == 2
        for feed in FEEDS[FLAG]:
            check(session, model, feed)
        assert session.report().plans.compiled == 2


@pytest.mark.parametrize("options", [{"verify": "once"}, {"shadow": 2}, {"isolate": True}, {"max_plans": 1}], ids=str)
def test_branches_with_verify_shadow_isolate_and_max_plans(options):
    model = parse(FLAG)
    with nna.InferenceSession(model, devices="fake_npu", options=nna.Options(fallback="allow", **options)) as session:
        for feed in (*FEEDS[FLAG], *FEEDS[FLAG]):
            assert check(session, model, feed) == {"fake_npu"}


def test_branches_in_a_traced_session(tmp_path):
    model, options = parse(FLAG), nna.Options(fallback="allow", trace=tmp_path / "trace.json")
    with nna.InferenceSession(model, devices="fake_npu", options=options) as session:
        for feed in (*FEEDS[FLAG], *FEEDS[FLAG]):
            assert check(session, model, feed) == {"fake_npu"}
    assert (tmp_path / "trace.json").exists()


@pytest.mark.slow
def test_branches_with_policy_measured():
    model, options = parse(FLAG), nna.Options(fallback="allow", policy="measured")
    with nna.InferenceSession(model, devices="fake_npu", options=options) as session:
        for _ in range(2):
            check(session, model, FEEDS[FLAG][0])
        assert session.report().plans.compiled == 1


def test_branches_share_weights():
    model = parse(
        f"""{HEAD} g (float[N, 256] x, bool c) => (float[N, 256] y) {{
            w = Identity(x)
            y = If(c) <
                then_branch = t () => (float[N, 256] p) {{ p = MatMul(x, w) }},
                else_branch = e () => (float[N, 256] q) {{
                    n = Neg(x)
                    q = MatMul(n, w)
                }}
            >
        }}"""
    )
    del model.graph.node[0]
    model.graph.initializer.append(onnx.numpy_helper.from_array(numbers(256, 256), "w"))
    with nna.InferenceSession(model, devices="fake_npu", options=ALLOW) as session:
        for value in (True, False):
            feed = {"x": numbers(2, 256), "c": truth(value)}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-4, atol=1e-4)
        arrays = [each.planner.prepared.constants["w"] for each in session._engine.source._models]
    assert len(arrays) == 3 and all(np.shares_memory(array, arrays[0]) for array in arrays)


def _drawn(random, depth, names):
    """Return nodes that compute a value from `names`, through branches that flags decide."""
    lines = []
    for _ in range(random.randrange(1, 3)):
        made = f"v{random.getrandbits(40)}"
        if depth and random.random() < 0.6:
            flag = random.choice(("c0", "c1", "d0", "both"))
            inner = []
            for side in ("then_branch", "else_branch"):
                body, result = _drawn(random, depth - 1, names)
                inner.append(f"{side} = g{random.getrandbits(40)} () => (float[N, 3] {result}) {{ {body} }}")
            lines.append(f"{made} = If({flag}) <{', '.join(inner)}>")
        else:
            op_type = random.choice(("Neg", "Sin", "Relu", "Identity", "Add"))
            read = [random.choice(names) for _ in range(1 + (op_type == "Add"))]
            lines.append(f"{made} = {op_type}({', '.join(read)})")
        names = [*names, made]
    result = f"v{random.getrandbits(40)}"
    return " ".join([*lines, f"{result} = Identity({random.choice(names[-1:] * 3 + names)})"]), result


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_models_with_branches(seed):
    random = Random(seed)
    body, result = _drawn(random, 3, ["x"])
    model = parse(
        f"""{HEAD} g (float[N, 3] x, bool c0, bool[1] c1, int64 d) => (float[N, 3] y) <int64 one = {{1}}> {{
            d0 = Equal(d, one)
            both = And(c0, d0)
            {body}
            y = Identity({result})
        }}"""
    )
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    with nna.InferenceSession(model, devices="fake_npu", options=ALLOW) as session:
        for _ in range(16):
            feed = {
                "x": rows(random.choice((1, 2, 4))),
                "c0": truth(random.random() < 0.5),
                "c1": truth(random.random() < 0.5, 1),
                "d": np.array(random.randrange(3)),
            }
            got, expected = session.run(None, feed), reference.run(None, feed)
            np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-6)


EXPANDED = f"""{HEAD} g (float[N, 3] x) => (float[N, 3] y) <int64 zero = {{0}}, int64 most = {{4}}> {{
    shape = Shape(x)
    rows = Gather(shape, zero)
    is_long = Greater(rows, most)
    table = If(is_long) <
        then_branch = t () => (float[3] p) {{ p = Constant<value = float[3] {{1, 2, 3}}>() }},
        else_branch = e () => (float[3] q) {{ q = Constant<value = float[3] {{7, 8, 9}}>() }}
    >
    a = Mul(x, table)
    y = com.microsoft.QuickGelu<alpha = 1.0>(a)
}}""".replace('["" : 17]', '["" : 17, "com.microsoft" : 1]')
"""An op after the branch that a device takes by its function body."""


@pytest.mark.parametrize("device", ["fake_npu", "openvino"])
def test_compiled_file_selects_branches_before_expanded_functions(tmp_path, device):
    model = onnx.parser.parse_model(EXPANDED)
    nna.compile(model, tmp_path / "model.nna", devices=device, options=ALLOW)
    with nna.InferenceSession(tmp_path / "model.nna") as session:
        for rows in (2, 5, 3, 7):
            x = numbers(rows, 3)
            np.testing.assert_allclose(session.run(None, {"x": x})[0], run_whole(model, {"x": x})[0], rtol=1e-5)


def test_failing_branch_is_paused_independently_of_the_other(monkeypatch):
    monkeypatch.setattr(plan_devices, "monotonic", lambda: 100.0)
    monkeypatch.setattr(residing_driver, "BREAKS", {"ADD"})  # of the first branch
    model, (then, otherwise) = parse(FLAG), FEEDS[FLAG]
    with nna.InferenceSession(model, devices="residing", options=ALLOW) as session:
        failures = []
        for _ in range(plan_devices.IN_A_ROW + 1):
            assert check(session, model, then) == {"cpu"}
            failures.append(session.provenance.steps[0].failure)
            assert check(session, model, otherwise) == {"residing"}
    assert ["is paused" in failure for failure in failures] == [False] * plan_devices.IN_A_ROW + [True]
