"""Benchmarks of a session against baselines: turns, reported times, and correctness."""

from __future__ import annotations

from itertools import count
from statistics import median

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnadapter as nna
from nnadapter.candidates import random_feed
from nnadapter.costs import Stopwatch
from nnadapter.errors import InvalidOptionError
from nnadapter.session import PEERS, EngineTiming, Spread, peer_of, verdict
from tests.models import CHAIN, HEAD, SANDWICH, numbers, parse, run_whole
from tests.optional import needs


def steady():
    """Return a stopwatch whose clock advances by a second per reading, on an idle machine."""
    ticks = count()
    return Stopwatch(clock=lambda: float(next(ticks)), busy=lambda: 0.0, sleep=lambda seconds: None)


@pytest.mark.parametrize("engine", PEERS)
def test_baseline_engines_compute_the_model(engine):
    model, feed = parse(SANDWICH), {"x": numbers(3, 4)}
    results = peer_of(engine).opened(model.SerializeToString())(feed)
    np.testing.assert_allclose(results[0], run_whole(model, feed)[0], rtol=1e-4, atol=1e-5)


@needs("openvino")
def test_engines_are_timed_in_equally_many_rounds():
    rounds = []
    report = nna.bench(
        parse(SANDWICH), "fake_npu", {"x": numbers(3, 4)}, against=PEERS, rounds=7, stopwatch=steady(),
        advance=lambda: rounds.append(1),
    )  # fmt: skip
    assert [len(each.round_seconds) for each in (report.session, *report.baselines)] == [7, 7, 7] and len(rounds) == 7
    assert [report.ratio_to(peer) for peer in report.baselines] == [Spread(1.0, 1.0, 1.0)] * 2
    assert report.ran_on_devices and report.nodes == {"fake_npu": 5, "cpu": 0}
    assert not any(peer.differing_outputs or peer.failure for peer in report.baselines)


@pytest.mark.parametrize("engine", PEERS)
def test_bfloat16_outputs_compare_as_equal(engine):
    model = parse(f"{HEAD} bits (bfloat16[4] x) => (bfloat16[4] y) {{ y = Identity(x) }}")
    feed = {"x": np.arange(4).astype(ml_dtypes.bfloat16)}
    (peer,) = nna.bench(model, "cpu", feed, against=engine, rounds=1, stopwatch=steady()).baselines
    assert peer.round_seconds and not peer.differing_outputs


def test_outputs_of_engines_are_compared():
    report = nna.bench(parse(CHAIN), "null", rounds=1, stopwatch=steady())
    (peer,) = report.baselines
    assert peer.differing_outputs and f"ort: output {next(iter(peer.differing_outputs))!r} differs" in str(report)


@needs("openvino")
def test_failing_engine_is_reported():
    determinant = parse(f"{HEAD} determinant (float[2, 2] x) => (float y) {{ y = Det(x) }}")
    report = nna.bench(determinant, "cpu", against=PEERS, rounds=1, stopwatch=steady())
    ort, openvino = report.baselines
    assert ort.round_seconds and not openvino.round_seconds and report.ratio_to(openvino) is None
    assert openvino.failure.startswith("OpenVINO did not") and openvino.failure in str(report)
    assert report.to_dict()["baselines"][1]["over"] is None


def test_benchmark_with_fallback_did_not_run_on_devices():
    broken = ("trial", {"fault": "compute"})
    assert not nna.bench(
        parse(CHAIN), broken, options={"fallback": "allow"}, rounds=1, stopwatch=steady()
    ).ran_on_devices


def test_device_without_stored_programs_is_timed_again(monkeypatch, tmp_path):
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        report = nna.bench(parse(CHAIN), "metered", rounds=1, stopwatch=steady())
        assert report.ran_on_devices and not report.failures


def test_compiled_model_is_timed_without_baselines(tmp_path):
    file = tmp_path / "chain.nna"
    nna.compile(parse(CHAIN), file, devices="fake_npu")
    report = nna.bench(file, None, random_feed(parse(CHAIN)), against=(), rounds=1, stopwatch=steady())
    assert report.ran_on_devices and len(report.session.round_seconds) == 1
    with pytest.raises(InvalidOptionError, match="pass feed="):
        nna.bench(file, None, against=())
    with pytest.raises(InvalidOptionError, match="cannot be compared with ort, which cannot run it"):
        nna.bench(file, None)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": 0}, "rounds must be an integer of at least 1, got 0"),
        ({"rounds": 1.5}, "rounds must be an integer of at least 1, got 1.5"),
        ({"against": ("otr",)}, "did you mean 'ort'"),
        ({"against": "otr"}, "no engine 'otr'"),
    ],
)
def test_invalid_arguments_are_refused(settings, words):
    with pytest.raises(InvalidOptionError, match=words):
        nna.bench(parse(CHAIN), "null", **settings)


SECONDS = st.lists(st.floats(1e-6, 10), min_size=1, max_size=30)


@given(SECONDS, st.floats(0.1, 10))
def test_ratio_is_computed_by_round(seconds, factor):
    """The reported ratio is exact however much rounds differ."""
    report = _report(tuple(factor * each for each in seconds), tuple(seconds))
    over = report.ratio_to(report.baselines[0])
    assert over is not None
    np.testing.assert_allclose([over.low, over.middle, over.high], factor, rtol=1e-9)


@given(SECONDS)
def test_spread_contains_its_median(seconds):
    spread = EngineTiming("session", "", round_seconds=tuple(seconds)).spread
    assert spread is not None and spread.middle == median(seconds)
    assert min(seconds) <= spread.low <= spread.middle <= spread.high <= max(seconds)


@pytest.mark.parametrize(
    ("over", "rounds", "words"),
    [
        (Spread(0.4, 0.5, 0.6), 5, "takes 0.50 times as long (0.40 to 0.60 in the middle half of the rounds)"),
        (Spread(0.9, 1.1, 1.2), 5, "no clear difference"),
        (Spread(0.004, 0.005, 0.006), 4, "takes 0.005 times as long, but in only 4 rounds; a verdict needs 5"),
    ],
)
def test_verdict_texts(over, rounds, words):
    assert words in verdict(over, rounds)


def _report(session, peer):
    return nna.BenchReport(
        devices=("cpu",), nodes={}, failures=(), session=EngineTiming("session", "", round_seconds=session),
        baselines=(EngineTiming("ort", "", round_seconds=peer),), report=None,
    )  # fmt: skip
