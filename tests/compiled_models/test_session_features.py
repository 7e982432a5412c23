"""Session features besides `run`: dynamic-shape files give the same results as sessions of the model."""

from __future__ import annotations

import json
from argparse import Namespace

import numpy as np
import onnxruntime
import pytest

import nnadapter as nna
from benchmarks.models.language_models import Sizes, cache_names, first_feed, language_model
from examples.generate import build_model, generate, words_of
from nnadapter.errors import CancelledError, DeadlineExceededError, InvalidOptionError
from tests.models import numbers, parse, run_whole
from tests.planning.test_dynamic_shapes_in_ir import HEAD, QUIET

DEVICES = ["fake_npu", "openvino", "cpu", "trial", "keeping"]
MODEL = f"""{HEAD} g (float[n, m] x) => (float[n, m] y, float[n, m] z) {{
    a = Relu (x)
    b = Erf (a)
    y = Sigmoid (b)
    z = Add (y, x)
}}"""
SIZES = Sizes(layers=1, width=32, heads=2, words=50, positions=600)
BAN = "[[ban]]\nop_type = 'Erf'\ndevice = '{}'"
FEEDS = [{"x": numbers(rows, columns)} for rows, columns in ((3, 4), (2, 2), (3, 4), (7, 1), (1, 5), (1, 1), (9, 16))]


@pytest.fixture(params=DEVICES)
def both(request, tmp_path):
    """Yield a session of the model and one of its file, with a CPU step between two device steps."""
    if request.param == "openvino":
        pytest.importorskip("openvino")
    rules = None if request.param == "cpu" else BAN.format(request.param)
    options = nna.Options(fallback="allow", rules=rules)
    nna.compile(parse(MODEL), tmp_path / "f", devices=[request.param], options=options)
    with (
        nna.InferenceSession(parse(MODEL), devices=[request.param], options=options) as session,
        nna.InferenceSession(tmp_path / "f", options=QUIET) as loaded,
    ):
        yield session, loaded


def same(left, right):
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_asynchronous_and_streamed_runs(both):
    session, loaded = both
    expected = [session.run(None, feed) for feed in FEEDS]
    steps = [step.device for step in session.provenance.steps]
    loaded.run(None, FEEDS[-1])
    assert [step.device for step in loaded.provenance.steps] == steps and not loaded.provenance.fell_back
    for depth in (1, 2, 4):
        for got, wanted in zip(loaded.stream(FEEDS, depth=depth), expected, strict=True):
            same(got, wanted)
    futures = [loaded.submit(None, feed) for feed in FEEDS]
    for future, wanted in zip(futures, expected, strict=True):
        same(future.result(), wanted)
    done = []
    loaded.run_async(None, FEEDS[0], lambda results, data, error: done.append((results, error)), None)
    loaded.submit(None, FEEDS[0]).result()
    while not done:
        continue
    same(done[0][0], expected[0])


def test_bindings_of_changing_shapes(both):
    device = both[1].devices[0]
    for feed in FEEDS:
        outcomes = []
        for each in both:
            binding = each.io_binding()
            binding.bind_cpu_input("x", feed["x"])
            binding.bind_output("y", device)
            binding.bind_output("z")
            each.run_with_iobinding(binding)
            y, z = binding.get_outputs()
            outcomes.append((y.numpy(), z.numpy(), y.device_name(), np.from_dlpack(z)))
        same(outcomes[0][:2], outcomes[1][:2])
        assert outcomes[0][2] == outcomes[1][2]
        np.testing.assert_array_equal(outcomes[1][1], outcomes[1][3])


def test_device_values_are_accepted(both):
    _, loaded = both
    value = nna.DeviceValue.from_numpy(FEEDS[0]["x"], loaded.devices[0])
    same(loaded.run(None, {"x": value}), loaded.run(None, FEEDS[0]))


@pytest.mark.parametrize("device", ["fake_npu", "openvino", "cpu"])
def test_cache_grows_on_its_device(device, tmp_path):
    chosen = Namespace(layers=2, width=32, tokens=12, prompt="bana ")
    model, prompt = build_model(chosen.layers, chosen.width), words_of(chosen.prompt)
    nna.compile(model, tmp_path / "f", devices=[device])
    with nna.InferenceSession(model, devices=[device]) as session, nna.InferenceSession(tmp_path / "f") as loaded:
        text, _, copied = generate(session, device, prompt, chosen)
        assert (text, copied) == generate(loaded, device, prompt, chosen)[::2]


def test_deadlines_and_cancelled_runs(tmp_path):
    nna.compile(parse(MODEL), tmp_path / "f", devices=["trial"], options=QUIET)
    late = nna.Options(deadline_s=1e-9, fallback="allow")
    with nna.InferenceSession(tmp_path / "f", options=late) as loaded, pytest.raises(DeadlineExceededError):
        loaded.run(None, FEEDS[0])
    stop = onnxruntime.RunOptions()
    stop.terminate = True
    with nna.InferenceSession(tmp_path / "f", options=QUIET) as loaded:
        with pytest.raises(CancelledError):
            loaded.run(None, FEEDS[0], stop)
        for got, wanted in zip(loaded.run(None, FEEDS[1]), run_whole(parse(MODEL), FEEDS[1]), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_traces_contain_plans(tmp_path):
    nna.compile(parse(MODEL), tmp_path / "f", devices=["fake_npu"])
    with nna.InferenceSession(tmp_path / "f", options=nna.Options(trace=tmp_path / "t.json")) as loaded:
        for feed in FEEDS:
            same(loaded.run(None, feed)[1:], [loaded.run(["z"], feed)[0]])
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {"make a plan"} <= {event["name"] for event in events}


def test_session_options_reach_dynamic_segments(tmp_path):
    model = language_model(SIZES)
    nna.compile(model, tmp_path / "f", devices=["cpu"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with nna.InferenceSession(tmp_path / "f", options) as loaded:
        for prompt in ((1, 2, 3), (4,)):
            feed = first_feed(SIZES, prompt)
            for got, wanted in zip(loaded.run(None, feed), run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_cache_inputs_are_ordinary_inputs(tmp_path):
    nna.compile(language_model(SIZES), tmp_path / "f", devices=["fake_npu"])
    with nna.InferenceSession(tmp_path / "f") as loaded:
        assert [each.name for each in loaded.get_inputs()] == ["ids", *(f"past.{name}" for name in cache_names(SIZES))]
        assert loaded.get_inputs()[0].shape == ["batch", "length"]
        feeds = [first_feed(SIZES, prompt) for prompt in ((1,), (1, 2))]
        loaded.prepare([{name: value.shape for name, value in feed.items()} for feed in feeds])
        made = loaded.report().plans.compiled
        loaded.run(None, first_feed(SIZES, (3, 4)))
        assert loaded.report().plans.compiled == made


@pytest.mark.parametrize("chosen", [{"policy": "latency"}, {"rules": BAN.format("fake_npu")}, {"plan": "p.json"}])
def test_options_fixed_at_compilation_are_refused(tmp_path, chosen):
    nna.compile(parse(MODEL), tmp_path / "f", devices=["fake_npu"])
    with pytest.raises(InvalidOptionError, match=f"{next(iter(chosen))}.*fixed in a compiled model.*nnadapter compile"):
        nna.InferenceSession(tmp_path / "f", options=chosen)
