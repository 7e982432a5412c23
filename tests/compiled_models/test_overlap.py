"""Overlap in plans of compiled files: enqueued steps, waits, parallel steps and failures."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import nnadapter as nna
from nnadapter.drivers import registry
from nnadapter.engine import MESSAGES, VERSION
from nnadapter.errors import FallbackWarning
from nnadapter.store import Container, write_container
from tests import latency_driver
from tests.models import HEAD, numbers, parse, run_whole
from tests.residing_driver import BREAKS, MOST

PRODUCTS = f"""{HEAD} g (float[2, 64] x) => (float[2, 64] y) {{
    a = MatMul(x, u) b = MatMul(a, v) y = MatMul(b, w)
}}"""
TIGHT = ("fake_npu", {"memory_bytes": 40_000})
"""Memory for two of the weights."""
CHAIN = f"""{HEAD} g (float[4, 8] x) => (float[4, 8] y) {{
    a = Relu(x) b = Neg(a) c = Abs(b) y = Add(c, a)
}}"""
JOINED = f"{HEAD} g (float[8, 8] x) => (float[8, 8] y) {{ a = Relu(x) b = Neg(x) y = Sub(a, b) }}"
BRANCHES = [
    ("latency:1", {"operation_ms": 20.0, "only": ["RELU"]}),
    ("latency:2", {"operation_ms": 20.0, "only": ["NEG"]}),
]


def products():
    model = onnx.parser.parse_model(PRODUCTS)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(numbers(64, 64, seed=seed), name) for seed, name in enumerate("uvw")
    )
    return model


@pytest.fixture
def single():
    """Limit segments to one operation; undo changed faults afterwards."""
    MOST["operations"] = 1
    yield
    MOST["operations"] = 1000
    BREAKS.clear()


@pytest.fixture(autouse=True)
def counted():
    latency_driver.OVERLAPS["most"] = 0


def rewritten(path, version, **fields):
    """Return the file with another version and changed fields of its first step."""
    container = Container.open(path)
    parts = [(part.kind, bytes(container.contents(number))) for number, part in enumerate(container.parts)]
    message = MESSAGES.new("CompiledModel")
    message.ParseFromString(parts[-1][1])
    message.version = version
    for name, value in fields.items():
        setattr(message.plans[0].steps[0], name, value)
    parts[-1] = (parts[-1][0], message.SerializeToString())
    write_container(path, lambda writer: [writer.add(*part) for part in parts])


def test_consecutive_steps_are_awaited_once_per_run(tmp_path):
    device, feed = registry.open_device("fake_npu"), {"x": numbers(2, 64)}
    with nna.InferenceSession(products(), devices=[TIGHT]) as session:
        expected = session.run(None, feed)
    nna.compile(products(), tmp_path / "f", devices=[TIGHT])
    with nna.InferenceSession(tmp_path / "f") as session:
        before = device.waits
        for count in range(1, 4):
            np.testing.assert_array_equal(session.run(None, feed)[0], expected[0])
            assert device.waits - before == count
        assert [step.device for step in session.provenance.steps] == ["fake_npu", "fake_npu"]
        assert len(session.report().boundaries.host_waits) == 1


def test_failing_step_falls_back_and_later_steps_rerun(tmp_path, single):
    model, feed = parse(CHAIN), {"x": numbers(4, 8)}
    nna.compile(model, tmp_path / "f", devices=["residing"])
    with nna.InferenceSession(tmp_path / "f") as session:
        BREAKS.add("NEG")
        with pytest.warns(FallbackWarning, match="burnt through"):
            (found,) = session.run(None, feed)
        np.testing.assert_array_equal(found, run_whole(model, feed)[0])
        assert [step.device for step in session.provenance.steps] == ["residing", "cpu", "residing", "residing"]


def test_branches_run_in_parallel(tmp_path):
    model, feed = parse(JOINED), {"x": numbers(8, 8)}
    nna.compile(model, tmp_path / "f", devices=BRANCHES)
    with nna.InferenceSession(tmp_path / "f") as session:
        for _ in range(2):
            np.testing.assert_array_equal(session.run(None, feed)[0], run_whole(model, feed)[0])
        assert latency_driver.OVERLAPS["most"] == 2 and session.report().boundaries.threaded_segments == (0,)


def test_steps_run_sequentially_without_the_second_device(tmp_path):
    model, feed = parse(JOINED), {"x": numbers(8, 8)}
    nna.compile(model, tmp_path / "f", devices=BRANCHES)
    with nna.InferenceSession(tmp_path / "f", devices=["latency:1"]) as session:
        np.testing.assert_array_equal(session.run(None, feed)[0], run_whole(model, feed)[0])
        assert latency_driver.OVERLAPS["most"] == 1
        assert {step.device for step in session.provenance.steps} == {"latency:1", "cpu"}


@pytest.mark.parametrize(("version", "beside"), [(1, False), (VERSION, True)])
def test_files_of_every_version_are_accepted(tmp_path, version, beside):
    model, feed = parse(JOINED), {"x": numbers(8, 8)}
    nna.compile(model, tmp_path / "f", devices=BRANCHES)
    rewritten(tmp_path / "f", version, alongside=beside)
    with nna.InferenceSession(tmp_path / "f") as session:
        np.testing.assert_array_equal(session.run(None, feed)[0], run_whole(model, feed)[0])
        assert latency_driver.OVERLAPS["most"] == 1 + beside
