"""Cached plans of models with branch decisions: each decision has its own plan."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.engine import CachedPlanSource, plan_cache_writer
from tests.models import HEAD, parse
from tests.running.test_branch_decisions import BEHIND, FEEDS, FLAG, RATE, SHARED, check, rows, truth

IN_VAIN = f"""{HEAD} g (float[N, 3] x, bool c, int64 times) => (float[N, 3] y) {{
    y = If(c) <
        then_branch = t () => (float[N, 3] p) {{
            on = Constant<value = bool {{1}}>()
            p = Loop(times, on, x) <body = b (int64 i, bool go, float[N, 3] s) => (bool goes, float[N, 3] r) {{
                goes = Identity(go)
                r = Tanh(s)
            }}>
        }},
        else_branch = e () => (float[N, 3] q) {{ q = Neg(x) }}
    >
}}"""
"""No device gains anything if c is true."""


@pytest.mark.parametrize("text", [FLAG, RATE, SHARED, BEHIND], ids=["flag", "rate", "shared", "behind"])
def test_plan_of_each_branch_is_cached(tmp_path, text):
    model, options = parse(text), nna.Options(cache_dir=tmp_path / "kept", fallback="allow")
    for turn, feeds in enumerate((FEEDS[text][:1], FEEDS[text][1:], FEEDS[text], FEEDS[text])):
        with nna.InferenceSession(model, devices="fake_npu", options=options) as session:
            assert isinstance(session._engine.source, CachedPlanSource) is (turn > 0)
            for feed in feeds:
                assert check(session, model, feed) == {"fake_npu"}
            if turn > 1:
                # it has all plans of the two previous sessions
                assert isinstance(session._engine.source, CachedPlanSource)


def test_number_of_cached_forks_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_cache_writer, "MOST_FORKS", 2)
    text = f"""{HEAD} g (float[N, 3] x, bool c, bool d) => (float[N, 3] y) {{
        y = If(c) <
            then_branch = t () => (float[N, 3] p) {{ p = If(d) <
                then_branch = tt () => (float[N, 3] r) {{ r = Neg(x) }},
                else_branch = te () => (float[N, 3] s) {{ s = Exp(x) }}
            > }},
            else_branch = e () => (float[N, 3] q) {{ q = If(d) <
                then_branch = et () => (float[N, 3] u) {{ u = Tanh(x) }},
                else_branch = ee () => (float[N, 3] v) {{ v = Sin(x) }}
            > }}
        >
    }}"""
    model, options = parse(text), nna.Options(cache_dir=tmp_path / "kept", fallback="allow")
    for value, is_kept in ((True, False), (True, True), (False, False), (False, True), (True, False), (True, True)):
        with nna.InferenceSession(model, devices="fake_npu", options=options) as session:
            assert check(session, model, {"x": rows(2), "c": truth(value), "d": truth(True)}) == {"fake_npu"}
            assert isinstance(session._engine.source, CachedPlanSource) is is_kept
            if is_kept:
                assert len(session._engine.source._file.message.forks) <= 2


def test_branch_without_gain_does_not_affect_others(tmp_path):
    model, options = parse(IN_VAIN), nna.Options(cache_dir=tmp_path / "kept", fallback="allow")
    in_turn = [
        ((True, 2), "ModelPlanSource", "cpu"),
        ((True, 2), "CachedPlanSource", "cpu"),  # no gain was found, so it is not tried again
        ((False, 2), "goes on", "fake_npu"),
        ((False, 2), "CachedPlanSource", "fake_npu"),
        ((True, 2), "CachedPlanSource", "cpu"),
        ((True, 4), "goes on", "cpu"),
        ((True, 4), "CachedPlanSource", "cpu"),
        ((False, 4), "goes on", "fake_npu"),
        ((True, 2), "CachedPlanSource", "cpu"),
    ]
    for (value, count), engine, device in in_turn:
        with nna.InferenceSession(model, devices="fake_npu", options=options) as session:
            found = type(session._engine.source).__name__
            feed = {"x": rows(count), "c": truth(value), "times": np.array(2)}
            for _ in range(2):
                assert check(session, model, feed) == {device}
            assert (found if type(session._engine.source).__name__ == found else "goes on") == engine
