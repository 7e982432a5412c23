"""Options(verify="once"): finds a node that a device computes wrongly and moves it."""

from __future__ import annotations

import shlex
import warnings
from random import Random

import numpy as np
import pytest
from click.testing import CliRunner

import nnadapter as nna
from nnadapter.accuracy import check_step, checks
from nnadapter.cli import main
from nnadapter.engine import CachedPlanSource
from nnadapter.errors import AccuracyError, ExecutionError, FallbackWarning, InvalidOptionError
from nnadapter.store import stored_bans
from tests import planted_driver
from tests.inference.layers.random_graphs import COLUMNS, ROWS, GraphMaker
from tests.models import HEAD, numbers, parse, run_whole

TEXT = f"""{HEAD} g (float[N, 8] x) => (float[N, 8] y) {{
    [first] a = Relu(x)
    [second] b = Neg(a)
    [third] c = Exp(b)
    [fourth] d = Add(a, c)
    [fifth] e = Softmax(d)
    [sixth] y = Mul(e, x)
}}"""
FEED = {"x": numbers(4, 8)}
LONG = [pytest.param(seed, marks=pytest.mark.sweep) for seed in range(6, 100)]


def session(model=None, device="planted", options=None, **planted):
    devices = (device, planted) if planted else device
    return nna.InferenceSession(parse(TEXT) if model is None else model, devices=devices, options=options)


def verifying(**options):
    return nna.Options(verify="once", **{"cache_dir": False, **options})


def close(got, expected):
    return all(np.allclose(result, other, rtol=5e-3, atol=1e-4) for result, other in zip(got, expected, strict=True))


def device_of(tested, name):
    return next(node.device for node in tested.report().nodes if node.name == name)


def test_wrong_node_falls_back_to_the_cpu():
    with session(options=verifying(), wrong=["fourth"]) as tested:
        with pytest.warns(FallbackWarning, match="device 'planted' computes 'fourth' wrongly: 'd' is off") as caught:
            got = tested.run(None, FEED)
        assert len(caught) == 1
        (incident,) = tested.provenance.incidents
        assert (incident.stage, incident.nodes, incident.kind) == ("accuracy", ("fourth",), "AccuracyError")
        assert [incident.stage for incident in tested.report().incidents] == ["accuracy"]
        assert close(got, run_whole(parse(TEXT), FEED))
        assert device_of(tested, "fourth") == "cpu" and device_of(tested, "fifth") == "planted"
        for rows in (4, 6, 9):
            feed = {"x": numbers(rows, 8)}
            assert close(tested.run(None, feed), run_whole(parse(TEXT), feed))
        (refusal,) = (node for node in tested.report().nodes if node.name == "fourth")
        assert "wrong_result" in str(refusal)


def test_fallback_policies_allow_and_forbid():
    with session(options=verifying(fallback={"accuracy": "allow"}), wrong=["fourth"]) as tested:
        assert close(tested.run(None, FEED), run_whole(parse(TEXT), FEED))
    with session(options=verifying(fallback={"accuracy": "forbid"}), wrong=["fourth"]) as tested:
        for _ in range(2):
            with pytest.raises(AccuracyError, match="fourth") as raised:
                tested.run(None, FEED)
        error = raised.value
        assert (error.device, error.segment, tuple(error.nodes)) == ("planted", 0, ("fourth",)) and error.deviation > 10


@pytest.mark.slow
def test_ban_is_cached_and_reproducible(tmp_path):
    options = verifying(cache_dir=tmp_path, fallback="allow")
    with session(options=options, wrong=["fourth"]) as tested:
        tested.run(None, FEED)
    (ban,) = stored_bans(tmp_path)
    (folder,) = (tmp_path / "reproducers").iterdir()
    assert (ban.stage, ban.nodes, ban.reproducer) == ("accuracy", ("fourth",), str(folder))
    command = shlex.split((folder / "command.txt").read_text())
    result = CliRunner().invoke(main, command[1:])
    assert result.exit_code == 1 and "DIFFERS" in result.output
    planted_driver.COMPILED.clear()
    with session(options=options, wrong=["fourth"]) as tested:
        assert close(tested.run(None, FEED), run_whole(parse(TEXT), FEED))
        segments = sum(segment.device == "planted" for segment in tested.report().segments)
    # Cached or new, the plan without the banned node needs no compilation to search for the node.
    assert len(planted_driver.COMPILED) <= segments + 1


def test_correct_device_is_not_searched():
    planted_driver.COMPILED.clear()
    with session(options=verifying()) as tested:
        assert close(tested.run(None, FEED), run_whole(parse(TEXT), FEED))
        assert len(planted_driver.COMPILED) == 1 and not tested.report().notes


def test_nodes_wrong_only_when_fused():
    with session(options=verifying(fallback="allow"), fused=["third", "fourth"]) as tested:
        assert close(tested.run(None, FEED), run_whole(parse(TEXT), FEED))
        assert "cpu" in (device_of(tested, "third"), device_of(tested, "fourth"))


@pytest.mark.parametrize("seed", [*range(6), *LONG])
def test_wrong_node_of_random_graphs_is_found(seed):
    """The wrong node is reported unless its error vanished inside its step."""
    model, random = GraphMaker(seed).model(), Random(seed)
    nodes = nna.partition_report(model, "planted").nodes
    names = [node.name for node in nodes if node.device == "planted" and node.op_type != "ArgMax"]
    name, feed = random.choice(names), {"x": numbers(ROWS, COLUMNS, seed=seed)}
    expected = run_whole(model, feed)
    with session(model) as plain, session(model, wrong=[name]) as wrong:
        right = plain.run(None, feed)
        differs = not close(wrong.run(None, feed), right)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with session(model, options=verifying(), wrong=[name]) as tested:
            got = tested.run(None, feed)
            assert close(got, expected) or not close(right, expected), "but where rounding decides between two values"
            assert (device_of(tested, name) == "cpu") == differs
    assert len([warning for warning in caught if f"'{name}'" in str(warning.message)]) == differs


NAN = np.array([[np.nan, np.inf, -np.inf, 0, 1, 2, 2, -1]], np.float32)
RIGHT = {
    "not a number": ("(float[1, 8] x) => (float[1, 8] y)", "a = Neg(x) b = Add(a, x) y = Mul(b, x)"),
    "ties": (
        "(float[1, 8] x) => (float[1, 3] y, int64[1, 3] z, int64[1, 1] i)",
        "k = Constant<value_ints=[3]>() c = Relu(x) y, z = TopK(c, k) i = ArgMax<axis=1>(c)",
    ),
    "integers": ("(int32[1, 8] x) => (int32[1, 8] y)", "y = Mul(x, x)"),
    "branches": (
        "(float[1, 8] x) => (float[1, 8] y)",
        """s = ReduceMax<keepdims=0>(x) n = Constant<value_float=100.0>() t = Greater(s, n) a = Neg(x)
        y = If(t)<then_branch = one () => (float[1, 8] p) { p = Neg(a) },
                  else_branch = two () => (float[1, 8] q) { q = Exp(a) }>""",
    ),
    "quantized": (
        "(float[1, 8] x) => (float[1, 8] y)",
        """s = Constant<value_float=0.05>() q = QuantizeLinear(x, s) d = DequantizeLinear(q, s) r = Sigmoid(d)
        p = QuantizeLinear(r, s) y = DequantizeLinear(p, s)""",
    ),
}


@pytest.mark.parametrize("kind", RIGHT)
@pytest.mark.parametrize("device", ["fake_npu", ("fake_npu", {"precision": "float16"})], ids=["float32", "float16"])
@pytest.mark.filterwarnings("error::nnadapter.errors.FallbackWarning")
def test_correct_devices_pass(kind, device):
    signature, body = RIGHT[kind]
    model = parse(f"{HEAD} g {signature} {{ {body} }}")
    x = NAN if kind in ("not a number", "ties") else numbers(1, 8)
    feed = {"x": x.astype(np.int32) if kind == "integers" else x}
    with nna.InferenceSession(model, devices=device, options=verifying(shadow=1)) as tested:
        for _ in range(2):
            tested.run(None, feed)


def test_random_results_are_not_compared():
    text = f"{HEAD} g (float[2, 8] x) => (float[2, 8] y, float[2, 8] z) {{ z = Relu(x) y = RandomUniformLike(x) }}"
    with nna.InferenceSession(parse(text), devices="fake_npu", options=verifying()) as tested:
        tested.run(None, {"x": numbers(2, 8)})
        notes = tested.report().notes
        on_device = {node.op_type: node.device for node in tested.report().nodes}["RandomUniformLike"] == "fake_npu"
    assert any("cannot be compared" in note for note in notes) == on_device


def test_incomparable_branch_does_not_exempt_the_other(monkeypatch):
    """Both branches write the same output; a branch that cannot be compared must not exempt the other."""
    text = f"""{HEAD} g (float[2, 8] x, bool c) => (float[2, 8] y) {{
        b = If(c) <then_branch = t () => (float[2, 8] p) {{ p = Neg(x) }},
                   else_branch = e () => (float[2, 8] q) {{ q = Relu(x) }}>
        [last] y = Exp(b)
    }}"""
    x, able = numbers(2, 8), []

    def check(*arguments):
        if not able:
            raise ExecutionError("it has no kernel")
        return check_step(*arguments)

    monkeypatch.setattr(checks, "check_step", check)
    with session(parse(text), options=verifying(fallback="allow"), wrong=["last"]) as tested:
        tested.run(None, {"x": x, "c": np.array(True)})
        assert any("cannot be compared" in note for note in tested.report().notes)
        able.append("it has a kernel for the other branch")
        (y,) = tested.run(None, {"x": x, "c": np.array(False)})
    np.testing.assert_allclose(y, np.exp(np.maximum(x, 0)), rtol=1e-5)


def test_compiled_file_stores_banned_nodes(tmp_path):
    nna.compile(
        parse(TEXT),
        tmp_path / "model.nnac",
        devices=("planted", {"wrong": ["fourth"]}),
        input_shapes={"x": (4, 8)},
        options=verifying(fallback="allow"),
    )
    with nna.InferenceSession(tmp_path / "model.nnac") as tested:
        assert close(tested.run(None, FEED), run_whole(parse(TEXT), FEED))
        assert device_of(tested, "fourth") == "cpu" and device_of(tested, "fifth") == "planted"
    with pytest.raises(InvalidOptionError, match="pass verify to nnadapter.compile"):
        nna.InferenceSession(tmp_path / "model.nnac", options=verifying())


def test_verified_plan_is_cached(tmp_path):
    for hit in (False, True):
        with session(device="fake_npu", options=verifying(cache_dir=tmp_path)) as tested:
            assert close(tested.run(None, FEED), run_whole(parse(TEXT), FEED))
            assert isinstance(tested._engine.source, CachedPlanSource) == hit


def test_compare_reports_the_wrong_node():
    report = nna.compare(parse(TEXT), ("planted", {"wrong": ["fourth"]}), FEED, options=verifying(shadow=1))
    assert not report.agrees


def test_two_threads_get_right_results():
    from concurrent.futures import ThreadPoolExecutor

    with session(options=verifying(fallback="allow"), wrong=["fourth"]) as tested, ThreadPoolExecutor(4) as pool:
        expected = run_whole(parse(TEXT), FEED)
        for got in pool.map(lambda _: tested.run(None, FEED), range(8)):
            assert close(got, expected)
