"""Conditions that inputs decide, whatever the inputs' types."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.engine import Fork, branch_conditions, branches
from nnadapter.errors import InputTypeError, InvalidInputError
from nnadapter.onnx.preparation import Conditions
from tests.models import HEAD, parse, run_whole
from tests.running.test_branch_decisions import ALLOW, FEEDS, FLAG, RATE, check, rows, truth


def test_big_endian_inputs_select_the_same_branch():
    model = parse(RATE)
    for rate in (8000, 16000, 5):
        with nna.InferenceSession(model, devices="fake_npu", options=ALLOW) as session:
            (expected,) = run_whole(model, {"x": rows(2), "rate": np.array(rate)})
            for order in (">i8", "<i8", ">i8"):
                (got,) = session.run(None, {"x": rows(2), "rate": np.array(rate, order)})
                np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        f"""{HEAD} g (float[2, 3] x) => (float[2, 3] y) <float zero = {{0}}> {{
            s = ReduceSum<keepdims = 0>(x)
            c = Greater(s, zero)
            y = If(c) <
                then_branch = t () => (float[2, 3] p) {{ p = Exp(x) }},
                else_branch = e () => (float[2, 3] q) {{ q = Neg(x) }}
            >
        }}""",
        f"""{HEAD} g (float[2, 3] x, bool c) => (float[2, 3] y) <int64 times = {{2}}, bool on = {{1}}> {{
            y = Loop(times, on, x) <body = b (int64 i, bool go, float[2, 3] s) => (bool goes, float[2, 3] r) {{
                goes = Identity(go)
                r = If(c) <
                    then_branch = t () => (float[2, 3] p) {{ p = Exp(s) }},
                    else_branch = e () => (float[2, 3] q) {{ q = Neg(s) }}
                >
            }}>
        }}""",
    ],
    ids=["data", "loop"],
)
def test_branches_not_decided_by_inputs_are_kept(text):
    model = parse(text)
    feeds = [{"x": sign * np.abs(rows(2)), "c": truth(sign > 0)} for sign in (1, -1)]
    with nna.InferenceSession(model, devices="fake_npu", options=ALLOW) as session:
        for feed in feeds:
            check(
                session, model, {name: feed[name] for name in ("x", "c") if name in session._engine.source.input_names}
            )
        assert session.report().plans.compiled == 1


def test_input_with_a_default_selects_branches():
    model = parse(FLAG)
    model.graph.initializer.add(name="c", data_type=9, dims=[1], raw_data=b"\1")
    with nna.InferenceSession(model, devices="fake_npu", options=ALLOW) as session:
        for feed in ({"x": rows(2)}, FEEDS[FLAG][1], {"x": rows(2)}, FEEDS[FLAG][0]):
            assert check(session, model, feed) == {"fake_npu"}


def test_condition_may_be_bound_or_a_list():
    model = parse(FLAG)
    with nna.InferenceSession(model, devices="fake_npu", options=ALLOW) as session:
        for value in (True, False, True):
            feed = {"x": rows(2), "c": truth(value, 1)}
            (expected,) = run_whole(model, feed)
            np.testing.assert_allclose(session.run(None, {**feed, "c": [value]})[0], expected, rtol=1e-5)
            for held in (
                onnxruntime.OrtValue.ortvalue_from_numpy(feed["c"]),
                nna.DeviceValue.from_numpy(feed["c"], "fake_npu"),
            ):
                binding = session.io_binding()
                binding.bind_cpu_input("x", feed["x"])
                binding.bind_ortvalue_input("c", held)
                binding.bind_output("y")
                session.run_with_iobinding(binding)
                np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], expected, rtol=1e-5)


def test_invalid_condition_feeds_raise_the_usual_errors():
    with nna.InferenceSession(parse(FLAG), devices="fake_npu", options=ALLOW) as session:
        good = FEEDS[FLAG][0]
        session.run(None, good)
        with pytest.raises(InvalidInputError, match=r"expected \[1\]"):
            session.run(None, {**good, "c": truth(True, 2)})
        with pytest.raises(InputTypeError, match="expected bool"):
            session.run(None, {**good, "c": np.array([1])})


def test_uncomputable_condition_is_an_input_error():
    text = f"""{HEAD} g (float[N, 3] x, int64 at) => (float[N, 3] y) <bool[2] truths = {{1, 0}}> {{
        c = Gather(truths, at)
        y = If(c) <
            then_branch = t () => (float[N, 3] p) {{ p = Exp(x) }},
            else_branch = e () => (float[N, 3] q) {{ q = Neg(x) }}
        >
    }}"""
    model = parse(text)
    with nna.InferenceSession(model, devices="fake_npu", options=ALLOW) as session:
        for at in (0, 1, 0):
            assert check(session, model, {"x": rows(2), "at": np.array(at)}) == {"fake_npu"}
            with pytest.raises(InvalidInputError, match="input 'at' holds 7, which Gather"):
                session.run(None, {"x": rows(2), "at": np.array(7)})


def test_cached_branch_decisions_are_bounded(monkeypatch):
    monkeypatch.setattr(branch_conditions, "_MOST_REMEMBERED", 4)
    names = tuple("abcd")
    conditions = Conditions(names, (), names, b"")

    def forks(truths):
        return Fork(conditions._replace(results=("b",)), lambda after: (truths, after), repr) if truths[0] else truths

    fork = Fork(conditions, forks, repr)
    for _ in range(2):
        for truths in product((True, False), repeat=4):
            feed = dict(zip(names, map(np.array, truths), strict=True))
            assert fork.select(feed) == ((truths, truths[1:2]) if truths[0] else truths)
    told = [each for each in fork._successors.values() if not isinstance(each, Fork)]
    assert len(told) <= 4 and len(fork._known) == 4


@pytest.mark.parametrize(("depth", "device"), [(3, "fake_npu"), (5, "cpu")])
def test_number_of_forks_is_bounded(monkeypatch, depth, device):
    monkeypatch.setattr(branches, "MOST_FORKS", 4)
    body = "r = Exp(x)"
    for at in reversed(range(depth)):
        body = f"""r = If(c{at}) <
            then_branch = t{at} () => (float[N, 3] r) {{ {body} }},
            else_branch = e{at} () => (float[N, 3] q{at}) {{ q{at} = Neg(x) }}
        >"""
    names = [f"c{at}" for at in range(depth)]
    inputs = ", ".join(f"bool {name}" for name in names)
    body = body.replace("r = If", "y = If", 1)
    model = parse(f"{HEAD} g (float[N, 3] x, {inputs}) => (float[N, 3] y) {{ {body} }}")
    with nna.InferenceSession(model, devices="fake_npu", options=ALLOW) as session:
        assert check(session, model, {"x": rows(2), **dict.fromkeys(names, truth(True))}) == {device}
