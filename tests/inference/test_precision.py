"""`Options(precision=...)`: precisions of a session, the engines' defaults, and the choice by the first run."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.errors import InvalidOptionError
from nnadapter.session import bench as bench_module
from nnadapter.session.precision_choice import agreement
from tests import rounding_driver
from tests.drivers.test_lanes import FEED, MODEL

DIFFERENCE = onnx.parser.parse_model(
    """<ir_version: 10, opset_import: ["" : 17]>
    difference (float[4,4] x, float[4,4] y) => (float[4,4] z) { z = Sub(x, y) }"""
)
FAR = {name: FEED["x"] * scale + 1000 for name, scale in (("x", 1), ("y", 0))}
"""Inputs whose difference is lost in bfloat16."""
ADVICE = "rounding computes in float32; its own default on this machine is bfloat16, which is faster and less accurate"


def session(precision, devices="rounding", model=MODEL, **options):
    return nna.InferenceSession(model, devices=devices, options=nna.Options(precision=precision, **options))


def expected_of(model, feed=FEED):
    (result,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    return result


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        (None, "float32"),
        ("float32", "float32"),
        ("bfloat16", "bfloat16"),
        ("float16", "float16"),
        ("device", "bfloat16"),
    ],
)
def test_devices_compute_in_the_precision(precision, dtype):
    with session(precision) as opened:
        (result,) = opened.run(None, FEED)
        assert opened.report().precisions == {"rounding": dtype, "cpu": "float32"}
    rounded = rounding_driver.ROUNDED[dtype]
    np.testing.assert_array_equal(result, result.astype(rounded).astype(np.float32))
    np.testing.assert_allclose(result, expected_of(MODEL), atol=1e-6 if dtype == "float32" else 0.05)


def test_every_device_that_has_it_computes_in_it():
    with session("float16", ["fake_npu", "rounding", "null"]) as opened:
        assert opened.report().precisions == {
            "fake_npu": "float16", "rounding": "float16", "null": "float32", "cpu": "float32"
        }  # fmt: skip


def test_lanes_and_options_take_precedence():
    with session("bfloat16", ["rounding@float16", "rounding", "fake_npu"]) as opened:
        precisions = opened.report().precisions
    assert (precisions["rounding@float16"], precisions["rounding"], precisions["fake_npu"]) == (
        "float16", "bfloat16", "float32"
    )  # fmt: skip
    with session("bfloat16", [("fake_npu", {"precision": "float16"}), "rounding"]) as opened:
        assert opened.report().precisions["fake_npu"] == "float16"


@pytest.mark.parametrize(
    ("precision", "devices", "words"),
    [
        ("bfloat16", "fake_npu", r"no device computes in it \(fake_npu in float32\)"),
        ("bfloat16", "cpu", "no device computes in it"),
        ("w8a8", "fake_npu", "'w8a8', which is for quantized models: use `nnadapter quantize` first"),
        ("half", "fake_npu", "must be one of float32, bfloat16, float16, device, auto, got 'half'"),
    ],
)
def test_invalid_precisions(precision, devices, words):
    with pytest.raises(InvalidOptionError, match=words):
        session(precision, devices)


def test_a_compiled_file_keeps_its_precision(tmp_path):
    file = tmp_path / "model.nna"
    nna.compile(MODEL, file, devices="fake_npu", options={"precision": "float16"})
    with nna.InferenceSession(file) as opened:
        (result,) = opened.run(None, FEED)
        assert opened.report().precisions["fake_npu"] == "float16"
    with session("float16", "fake_npu") as opened:
        np.testing.assert_array_equal(result, opened.run(None, FEED)[0])
    with pytest.raises(InvalidOptionError, match="precision decides the precision of nodes, which is fixed"):
        nna.InferenceSession(file, options={"precision": "float16"})
    with pytest.raises(InvalidOptionError, match="'auto' is decided by the first run"):
        nna.compile(MODEL, file, devices="fake_npu", options={"precision": "auto"})


def test_precisions_have_cache_entries_of_their_own(tmp_path):
    results = {}
    for precision in (None, "float16", "device", None, "float16"):
        with session(precision, "fake_npu", cache_dir=tmp_path) as opened:
            (result,) = opened.run(None, FEED)
            notes = opened.report().notes
        np.testing.assert_array_equal(results.setdefault(precision, result), result)
    assert "the plan was cached by an earlier session" in notes
    assert np.abs(results[None] - results["float16"]).max() > 0
    with pytest.raises(InvalidOptionError, match="no device computes in it"):
        session("bfloat16", "fake_npu", cache_dir=tmp_path)


@pytest.mark.parametrize("precision", ["device", "auto"])
def test_default_precisions_are_cached(precision, tmp_path):
    for is_cached in (False, True):
        with session(precision, cache_dir=tmp_path) as opened:
            opened.run(None, FEED)
            report = opened.report()
        assert report.precisions["rounding"] == "bfloat16"
        assert any("the plan was cached" in note for note in report.notes) == is_cached


def test_default_precisions_are_compiled(tmp_path):
    nna.compile(MODEL, tmp_path / "model.nna", devices="rounding", options={"precision": "device"})
    with nna.InferenceSession(tmp_path / "model.nna") as opened:
        (result,) = opened.run(None, FEED)
    np.testing.assert_array_equal(result, result.astype(rounding_driver.ROUNDED["bfloat16"]).astype(np.float32))


def test_a_lower_default_is_reported():
    with session(None) as opened:
        opened.run(None, FEED)
        report = opened.report()
        assert report.lower_defaults == {"rounding": "bfloat16"}
    for form in (str(report), report.to_markdown(), report.to_html()):
        assert "its own default on this machine is bfloat16" in " ".join(form.split())
    assert nna.partition_report(MODEL, "rounding").precision_remarks == (f"{ADVICE}: --precision device",)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "device"])
def test_a_requested_precision_is_not_commented(precision):
    with session(precision) as opened:
        assert opened.report().precision_remarks == ()
    with session(None, "rounding@float32") as opened:
        assert opened.report().precision_remarks == ()


def test_auto_keeps_the_default_that_agrees():
    with session("auto") as opened:
        assert "auto: the first run compares" in str(opened.report())
        (result,) = opened.run(["z"], FEED)
        report = opened.report()
        assert report.precisions["rounding"] == "bfloat16"
        expected, (choice,) = expected_of(MODEL), report.precision_remarks
    decibels = 10 * math.log10(np.sum(expected**2.0) / np.sum((result - expected) ** 2.0))
    assert f"output 'z' agrees with float32 to {decibels:.1f} dB on the first feed, at least 30" in choice


def test_auto_returns_to_float32():
    rounding_driver.CONTEXTS.clear()
    with session("auto", model=DIFFERENCE) as opened:
        (result,) = opened.run(None, FAR)
        (again,) = opened.run(None, FAR)
        report = opened.report()
    assert rounding_driver.CONTEXTS == ["bfloat16", "float32"]
    assert report.precisions["rounding"] == "float32" and "auto chose float32, because output 'z'" in str(report)
    np.testing.assert_array_equal(result, expected_of(DIFFERENCE, FAR))
    np.testing.assert_array_equal(again, result)


def test_auto_without_a_lower_default_compares_nothing():
    with session("auto", "fake_npu") as opened:
        opened.run(None, FEED)
        assert opened.report().precision_remarks == ()


def test_auto_stays_undecided_after_a_bad_feed():
    with session("auto") as opened:
        with pytest.raises(nna.errors.InvalidInputError):
            opened.run(None, {"x": FEED["x"]})
        assert "auto: the first run compares" in opened.report().precision_choice
        opened.run(None, FEED)
        assert "auto chose" in opened.report().precision_choice


def test_auto_computes_bound_values_in_float32():
    with session("auto", model=DIFFERENCE) as opened:
        binding = opened.io_binding()
        for name, array in FAR.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("z")
        opened.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], expected_of(DIFFERENCE, FAR))
        assert "values were bound before the first run" in opened.report().precision_choice


def test_auto_contradicts_background():
    with pytest.raises(InvalidOptionError, match="precision 'auto' compares the first outputs"):
        nna.Options(precision="auto", background=True)


@pytest.mark.parametrize(
    ("result", "expected", "decibels"),
    [
        ([1.0, 2.0], [1.0, 2.0], math.inf),
        ([1.0, 2.2], [1.0, 2.0], 10 * math.log10(5 / 0.2**2)),
        ([math.nan, math.inf], [math.nan, math.inf], math.inf),
        ([math.inf, 1.0], [2.0, 1.0], -math.inf),
        ([0.1], [0.0], -math.inf),
        ([], [], math.inf),
        (np.array([1, 2]), np.array([1, 2]), math.inf),
        (np.array([1, 2]), np.array([1, 3]), -math.inf),
        (np.array(["a"]), np.array(["a"]), math.inf),
    ],
)
def test_agreement(result, expected, decibels):
    assert agreement(np.asarray(result), np.asarray(expected)) == pytest.approx(decibels)


def test_agreement_of_sequences_and_shapes():
    one = np.ones(2, np.float32)
    assert agreement([one, 2 * one], [one, one]) == pytest.approx(0)
    assert agreement([one], [one, one]) == agreement(one, np.ones(3, np.float32)) == -math.inf
    assert agreement([], []) == math.inf


@pytest.mark.parametrize("engine", ["openvino"])
def test_bench_times_an_engine_at_its_default_too(engine, monkeypatch):
    opened = []

    def open_peer(model, precision="float32"):
        opened.append(precision)
        return onnxruntime.InferenceSession(model).run

    def part(name):
        parts = {
            "openvino_version": lambda: "1",
            "openvino_baseline": lambda model, **at: lambda feed: open_peer(model, **at)(None, feed),
            "openvino_default_precision": lambda: "bfloat16",
            "paddle_model_as_onnx": lambda model, options: model,
        }
        return parts[name]

    monkeypatch.setattr(bench_module, "optional_part", part)
    report = nna.bench(MODEL, "fake_npu", FEED, against=engine, rounds=1)
    assert [peer.name for peer in report.baselines] == ["openvino", "openvino bfloat16"]
    assert set(opened) == {"float32", "bfloat16"}
    parts_default = {"openvino_default_precision": lambda: "float32"}
    monkeypatch.setattr(bench_module, "optional_part", lambda name: parts_default.get(name) or part(name))
    assert [peer.name for peer in nna.bench(MODEL, "fake_npu", FEED, against=engine, rounds=1).baselines] == [
        "openvino"
    ]
