"""Faulty drivers: results are right nevertheless, and the report describes the failure."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.errors import (
    CompilationError,
    DeviceUnavailableError,
    DriverWarning,
    ExecutionError,
    FallbackWarning,
    InvalidInputError,
    NotDelegatedError,
)
from tests.models import CHAIN, SANDWICH, numbers, parse, run_whole

X = numbers(2, 3)


def expected():
    return run_whole(parse(CHAIN), {"x": X})[0]


@pytest.mark.parametrize(
    "fault", ["compute", "compute_unprintable", "compute_left", "count", "shape", "dtype", "execution"]
)
def test_failing_run_warns_and_returns_right_results(fault):
    with nna.InferenceSession(parse(CHAIN), devices=("trial", {"fault": fault})) as session:
        with pytest.warns(FallbackWarning, match="'trial' failed while it ran segment 0"):
            result = session.run(None, {"x": X})[0]
        np.testing.assert_allclose(result, expected(), rtol=1e-6)
        assert session.provenance.fell_back and session.provenance.steps[0].device == "cpu"
        again = session.run(None, {"x": X})[0]  # warned about once
        np.testing.assert_allclose(again, expected(), rtol=1e-6)
        report = session.report()
        assert report.segments[0].failures and report.notes


@pytest.mark.parametrize("fault", ["compute", "count"])
def test_failing_run_with_forbidden_fallback_raises_execution_error(fault):
    options = nna.Options(fallback="forbid")
    with nna.InferenceSession(parse(CHAIN), devices=("trial", {"fault": fault}), options=options) as session:
        with pytest.raises(ExecutionError, match="'trial'.*segment 0") as caught:
            session.run(None, {"x": X})
        assert caught.value.device == "trial" and caught.value.segment == 0 and len(caught.value.nodes) == 4


def test_failed_run_clears_the_previous_provenance():
    """Otherwise a service would log another run's provenance with the error."""
    failing = {"script": '[[fault]]\nkind = "fail"\nphase = "run"\nfrom = 2'}
    options = nna.Options(fallback="forbid")
    with nna.InferenceSession(parse(CHAIN), devices=("faulty:fake_npu", failing), options=options) as session:
        assert session.provenance is None
        session.run(None, {"x": X})
        assert session.provenance.steps
        with pytest.raises(ExecutionError):
            session.run(None, {"x": X})
        assert session.provenance is None and session.report().incidents
        with pytest.raises(InvalidInputError):
            session.run(None, {"x": X, "nothing": X})
        assert session.provenance is None


def test_failing_compile_warns_and_returns_right_results():
    with pytest.warns(
        FallbackWarning, match="'trial' accepted segment 0 .* failed to compile.*internal compiler error 7"
    ):
        session = nna.InferenceSession(parse(CHAIN), devices=("trial", {"fault": "compile"}))
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), rtol=1e-6)
    report = session.report()
    assert report.coverage.nodes == 0 and "internal compiler error 7" in report.notes[0]
    assert {refusal.reason for node in report.nodes for refusal in node.refusals} == {"compile_failed"}
    session.close()


def test_only_the_uncompilable_segment_leaves_the_device():
    devices = ("trial", {"only": ["RELU", "NEG", "ADD"], "fails_on": "NEG"})
    with nna.InferenceSession(parse(SANDWICH), devices=devices) as session:
        x = numbers(3, 4)
        with pytest.warns(FallbackWarning, match="failed to compile"):
            result = session.run(None, {"x": x})[0]
        np.testing.assert_allclose(result, run_whole(parse(SANDWICH), {"x": x})[0], rtol=1e-5)
        assert [segment.device for segment in session.report().segments] == ["trial", "cpu", "trial"]


def test_failing_compile_with_forbidden_fallback_raises_compilation_error():
    with pytest.raises(CompilationError, match="'trial' accepted segment 0") as caught:
        nna.InferenceSession(
            parse(CHAIN), devices=("trial", {"fault": "compile"}), options=nna.Options(fallback="forbid")
        )
    assert caught.value.device == "trial" and caught.value.segment == 0 and len(caught.value.nodes) == 4


@pytest.mark.parametrize("fault", ["compile_unprintable", "compile_blames"])
def test_uninformative_compile_failure_falls_back(fault):
    with pytest.warns(FallbackWarning, match="'trial' accepted segment 0 .* failed to compile"):
        session = nna.InferenceSession(parse(CHAIN), devices=("trial", {"fault": fault}))
    with session:
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), rtol=1e-6)


REFUSES = [
    "supported", "supported_short", "supported_type", "supported_fields", "supported_unprintable", "admit",
    "admit_fields",
]  # fmt: skip


@pytest.mark.parametrize("fault", REFUSES)
def test_driver_failure_during_verdicts_is_a_refusal(fault):
    with pytest.warns(FallbackWarning, match="driver_error"):
        session = nna.InferenceSession(parse(CHAIN), devices=("trial", {"fault": fault}))
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), rtol=1e-6)
    session.close()
    with pytest.raises(NotDelegatedError, match="driver_error"):
        nna.InferenceSession(parse(CHAIN), devices=("trial", {"fault": fault}), options=nna.Options(fallback="forbid"))


def test_driver_without_context_is_unavailable():
    with pytest.raises(DeviceUnavailableError, match="'trial'.*no such bus"):
        nna.InferenceSession(parse(CHAIN), devices=("trial", {"fault": "context"}), options={"fallback": "forbid"})


def test_allowed_fallback_is_silent_and_reported():
    options = nna.Options(fallback="allow")
    with nna.InferenceSession(parse(CHAIN), devices=("trial", {"fault": "compute"}), options=options) as session:
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), rtol=1e-6)
        assert session.provenance.fell_back and session.report().notes


def test_oversized_segment_is_split():
    with nna.InferenceSession(parse(CHAIN), devices=("trial", {"max_operations": 1})) as session:
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), rtol=1e-6)
        report = session.report()
    assert [segment.device for segment in report.segments] == ["trial"] * 4
    assert not report.exact and report.coverage.nodes == 1


@pytest.mark.parametrize("fault", ["compute_invalid", "compute_cancelled"])
def test_input_errors_of_drivers_are_device_failures(fault):
    session = nna.InferenceSession(parse(CHAIN), devices=("trial", {"fault": fault}))
    with session, pytest.warns(FallbackWarning, match="'trial' failed"):
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), rtol=1e-6)


def test_invalid_driver_results_fall_back():
    with pytest.warns(FallbackWarning, match="NoneType"):
        session = nna.InferenceSession(parse(CHAIN), devices=("trial", {"fault": "admit_none"}))
    session.close()
    with pytest.warns(FallbackWarning, match="expected a Program"):
        session = nna.InferenceSession(parse(CHAIN), devices=("trial", {"fault": "compile_none"}))
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), rtol=1e-6)
    session.close()
    with pytest.warns(FallbackWarning, match="'str' object cannot be interpreted as an integer"):
        session = nna.InferenceSession(parse(CHAIN), devices=("trial", {"fault": "memory"}))
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(), rtol=1e-6)
    session.close()


def test_failing_close_is_only_a_warning():
    x = numbers(3, 4)
    options = nna.Options(max_plans=1)
    session = nna.InferenceSession(parse(SANDWICH), devices=("trial", {"fault": "close"}), options=options)
    session.run(None, {"x": x})
    with pytest.warns(DriverWarning, match="bus error"):
        result = session.run(None, {"x": x[:2]})[0]
    np.testing.assert_allclose(result, run_whole(parse(SANDWICH), {"x": x[:2]})[0], rtol=1e-5)
    with pytest.warns(DriverWarning):
        session.close()


def test_a_substitute_is_closed_with_its_plan():
    session = nna.InferenceSession(parse(CHAIN), devices=("trial", {"fault": "compute"}))
    with pytest.warns(FallbackWarning):
        session.run(None, {"x": X})
    (bound,) = session._engine.source.plans.newest.plan.steps
    program = bound.substitute.pool.program
    session.close()
    assert program._permit is None


@pytest.mark.parametrize("options", [{}, {"only": ["TANH"]}])
def test_idle_device_after_full_coverage_needs_no_warning(options):
    with nna.InferenceSession(parse(CHAIN), devices=("null", ("trial", options))) as session:
        session.run(None, {"x": X})
        assert {step.device for step in session.provenance.steps} == {"null"}


@pytest.mark.parametrize("where", ["create_context", "supported", "admit", "compile", "compute"])
def test_driver_that_raises_system_exit_falls_back(where):
    devices = ("trial", {"ends": where})
    model = parse('<ir_version: 10, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu (x) }')
    feed = {"x": np.array([-1, 2], np.float32)}
    with pytest.warns(nna.errors.FallbackWarning), nna.InferenceSession(model, devices=devices) as session:
        np.testing.assert_array_equal(session.run(None, feed)[0], [0, 2])


def test_idle_device_warns_once_for_all_shapes():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with nna.InferenceSession(parse(SANDWICH), devices=("trial", {"only": ["TANH"]})) as session:
            for rows in (1, 2, 3):
                session.run(None, {"x": numbers(rows, 4)})
    assert [each.category for each in told] == [FallbackWarning]
