"""Options(shadow=N): repeats one run in N on the CPU and bans a device that drifts."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.errors import AccuracyError, FallbackWarning
from tests import drifting_driver
from tests.models import HEAD, numbers, parse, run_whole

TEXT = f"""{HEAD} g (float[4, 8] x) => (float[4, 8] y) {{
    [first] a = Relu(x)
    [second] b = Exp(a)
    [third] c = Softmax(b)
    [fourth] y = Add(c, x)
}}"""
FEED = {"x": numbers(4, 8)}


@pytest.fixture
def drifts():
    yield drifting_driver.DRIFTS
    drifting_driver.DRIFTS.clear()


def session(device="drifting", shadow=4, **options):
    devices = (device, {"node": "second"}) if device == "drifting" else device
    return nna.InferenceSession(
        parse(TEXT), devices=devices, options=nna.Options(shadow=shadow, cache_dir=False, **options)
    )


def test_drifting_device_is_banned(drifts):
    expected = run_whole(parse(TEXT), FEED)[0]
    with session() as tested:
        for _ in range(8):
            tested.run(None, FEED)
        drifts.add("second")
        with pytest.warns(FallbackWarning, match="'drifting' drifts.*off by.*compare MODEL -d drifting --layers"):
            runs = next(run for run in range(100) if tested.run(None, FEED) and _is_aside(tested))
        assert runs < 3 * 4
        assert np.allclose(tested.run(None, FEED)[0], expected, rtol=1e-5, atol=1e-6)
        assert {node.device for node in tested.report().nodes} == {"cpu"}


def _is_aside(tested):
    return all(step.device == "cpu" for step in tested.provenance.steps)


@pytest.mark.parametrize("kind", ["nan", "flipped_bits"])
def test_program_that_becomes_wrong_is_banned(kind):
    """The fallback is correct, but NaN is reason enough to ban the device."""
    script = f'[[fault]]\nkind = "{kind}"\nphase = "run"\nfrom = 3\n'
    expected = run_whole(parse(TEXT), FEED)[0]
    with session(("faulty:fake_npu", {"script": script}), shadow=1) as tested:
        with pytest.warns(FallbackWarning, match="drifts"):
            for _ in range(8):
                tested.run(None, FEED)
        assert _is_aside(tested) and np.allclose(tested.run(None, FEED)[0], expected, rtol=1e-5, atol=1e-6)


def test_drift_raises_if_fallback_is_forbidden(drifts):
    with session(shadow=1, fallback={"accuracy": "forbid"}) as tested:
        tested.run(None, FEED)
        drifts.add("second")
        with pytest.raises(AccuracyError, match="drifts") as raised:
            for _ in range(10):
                tested.run(None, FEED)
        assert raised.value.device == "drifting" and set(raised.value.nodes) == {"first", "second", "third", "fourth"}


@pytest.mark.parametrize("runs", [200, pytest.param(10_000, marks=pytest.mark.sweep)])
@pytest.mark.filterwarnings("error::nnadapter.errors.FallbackWarning")
def test_correct_runs_raise_no_alarm(runs):
    random = np.random.default_rng(0)
    with session("fake_npu", 1) as tested:
        for _ in range(runs):
            tested.run(None, {"x": random.standard_normal((4, 8)).astype(np.float32)})
        assert not tested.report().notes


def test_streams_futures_and_deadlines(drifts):
    """Shadow runs keep the order of results, and do not count toward the deadline."""
    feeds = [{"x": numbers(4, 8, seed=seed)} for seed in range(9)]
    expected = [run_whole(parse(TEXT), feed)[0] for feed in feeds]
    with session("fake_npu", 2, deadline_s=60) as tested:
        got = [results[0] for results in tested.stream(feeds)]
        later = [tested.submit(None, feed) for feed in feeds]
        got += [future.result()[0] for future in later]
    for result, other in zip(got, [*expected, *expected], strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-4, atol=1e-5)


def test_every_nth_run_is_repeated():
    with session("fake_npu", 3) as tested:
        due = [tested._engine.source.checks.is_due() for _ in range(9)]
    assert due == [False, False, True] * 3
