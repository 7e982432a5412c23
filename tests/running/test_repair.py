"""A run on a failing device: repeated, run on the CPU with the same inputs, or on the CPU immediately."""

from __future__ import annotations

import gc
import warnings

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.engine import plan_devices
from nnadapter.errors import (
    DeviceLostError,
    DeviceTimeoutError,
    DriverWarning,
    ExecutionError,
    FallbackWarning,
    OutOfMemoryError,
    TransientError,
)
from tests.models import CHAIN, HEAD, numbers, parse, run_whole
from tests.trial_driver import COUNTS, SCRIPT, SPOILS

X = numbers(2, 3)
BUSY = "the bus is busy"


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    SCRIPT.clear()
    SPOILS.clear()


@pytest.fixture(params=["model", "compiled file"])
def session(request, tmp_path):
    """Return a function that opens sessions on a device with programmed failures."""
    made = []

    def make(fallback="warn", **options):
        source, devices = parse(CHAIN), ("trial", options)
        if request.param == "compiled file":
            nna.compile(source, tmp_path / "file", devices=devices)
            source, devices = tmp_path / "file", None
        made.append(nna.InferenceSession(source, devices=devices, options=nna.Options(fallback=fallback)))
        return made[-1]

    yield make
    for each in made:
        each.close()
    gc.collect()


def right(session, x=X):
    np.testing.assert_allclose(session.run(None, {"x": x})[0], run_whole(parse(CHAIN), {"x": x})[0], rtol=1e-6)
    return session.provenance


def test_transient_failure_is_retried(session):
    running = session()
    right(running)
    SCRIPT.append(TransientError(BUSY))
    with pytest.warns(DriverWarning, match=BUSY) as caught:
        provenance = right(running)
    assert len(caught) == 1 and not issubclass(caught[0].category, FallbackWarning)
    (incident,) = provenance.incidents
    assert (incident.stage, incident.device, incident.kind, incident.segment) == ("run", "trial", "TransientError", 0)
    assert incident.fallback_action == "it was repeated, and succeeded" and len(incident.nodes) == 4
    assert provenance.steps[0].device == "trial" and not provenance.fell_back
    SCRIPT.append(TransientError(BUSY))
    assert len(right(running).incidents) == 1  # and no second warning
    assert right(running).incidents == ()


def test_retry_is_allowed_if_fallback_is_forbidden(session):
    running = session("forbid")
    SCRIPT.append(TransientError(BUSY))
    provenance = right(running)
    assert provenance.steps[0].device == "trial" and len(provenance.incidents) == 1


def test_unused_plans_are_evicted_if_memory_is_full():
    model = parse(f"{HEAD} g (float[N, 3] x) => (float[N, 3] y) {{ y = Relu(x) }}")
    with nna.InferenceSession(model, devices="trial", options=nna.Options(fallback="forbid")) as running:
        for rows in (1, 2, 3):
            running.run(None, {"x": numbers(rows, 3)})
        SCRIPT.extend([OutOfMemoryError("full")] * 2)
        x = numbers(3, 3)
        np.testing.assert_array_equal(running.run(None, {"x": x})[0], np.maximum(x, 0))
        assert running.provenance.steps[0].device == "trial" and not running.provenance.incidents
        assert running.report().plans.in_cache == 1 and not SCRIPT
        SCRIPT.append(OutOfMemoryError("full"))
        with pytest.raises(OutOfMemoryError, match="full"):
            running.run(None, {"x": x})


@pytest.mark.parametrize(
    ("rule", "instead"), [('[[pin]]\ndevice = "trial"', "cpu"), ('[[ban]]\ndevice = "cpu"', "reference")]
)
def test_fallback_ignores_pins_but_respects_cpu_bans(rule, instead):
    SCRIPT.extend([ExecutionError(BUSY)] * 2)
    options = nna.Options(fallback="allow", rules=f'{rule}\nname = "*"\n')
    with nna.InferenceSession(parse(CHAIN), devices="trial", options=options) as session:
        assert [step.device for step in right(session).steps] == [instead]


def test_failed_retry_falls_back_to_the_cpu(session):
    running = session()
    SCRIPT.extend([TransientError(BUSY), TransientError(BUSY)])
    with pytest.warns(FallbackWarning, match=BUSY):
        provenance = right(running)
    assert provenance.steps[0].device == "cpu" and provenance.fell_back
    assert [each.fallback_action for each in provenance.incidents] == ["it runs on the CPU instead"]


@pytest.mark.parametrize(
    "kind", [DeviceLostError, DeviceTimeoutError, OutOfMemoryError, TransientError, ExecutionError]
)
def test_forbidden_fallback_keeps_error_class_and_names_segment(session, kind):
    running = session({"run": "forbid"})
    SCRIPT.extend([kind("no")] * (2 if kind is TransientError else 1))
    with pytest.raises(kind, match="'trial' failed while it ran segment 0.*no; fallback is forbidden") as caught:
        running.run(None, {"x": X})
    error = caught.value
    assert type(error) is kind
    assert (error.device, error.segment, len(error.nodes), error.phase) == ("trial", 0, 4, "run")
    assert right(running).incidents == ()


@pytest.mark.parametrize("first", [ExecutionError("no"), TransientError(BUSY), DeviceLostError("gone")])
def test_inputs_are_protected_from_driver_writes(session, first):
    SPOILS.append(True)
    running = session("allow")
    x = X.copy()
    SCRIPT.extend([first, ExecutionError("again")])
    assert right(running, x).incidents
    np.testing.assert_array_equal(x, X)
    SCRIPT[:] = [None]
    right(running, x)


def test_each_cause_warns_once_per_session(session):
    running = session()
    SCRIPT.extend([ExecutionError(f"number {number}") for number in range(2)])
    with pytest.warns(FallbackWarning, match="number 0"):
        right(running)
    assert "number 1" in right(running).incidents[0].message


def test_repeatedly_failing_device_is_paused_and_resumed(session, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(plan_devices, "monotonic", lambda: now[0])
    running = session("allow")
    SCRIPT.extend([ExecutionError("no")] * 4)
    for _ in range(3):
        right(running)
    before = COUNTS["compute"]
    for _ in range(5):
        provenance = right(running)
        assert provenance.steps[0].device == "cpu" and "is paused after 3 failures" in provenance.steps[0].failure
    assert COUNTS["compute"] == before and "is paused after 3 failures" in str(running.report())
    now[0] += 1.0
    assert right(running).incidents and COUNTS["compute"] == before + 1  # the fourth failure doubles the pause
    now[0] += 1.5
    assert not right(running).incidents and COUNTS["compute"] == before + 1
    now[0] += 0.5
    assert right(running).steps[0].device == "trial" and COUNTS["compute"] == before + 2
    assert right(running).steps[0].device == "trial" and "rests" not in str(running.report())


def test_no_device_is_paused_if_fallback_is_forbidden(session):
    running = session("forbid")
    for _ in range(5):
        SCRIPT.append(DeviceLostError("gone"))
        with pytest.raises(DeviceLostError):
            running.run(None, {"x": X})
    assert right(running).steps[0].device == "trial"


def test_report_lists_incidents_of_the_session(session):
    running = session("allow")
    for _ in range(2):
        SCRIPT.extend([ExecutionError("no"), None])
        right(running)
        right(running)
    report = running.report()
    assert [each.kind for each in report.incidents] == ["ExecutionError"] * 2
    assert report.incident_counts == {"trial": {"ExecutionError": 2}}
    assert report.to_dict()["incidents"][0]["fallback_action"] == "it runs on the CPU instead"
    assert "failed while it ran segment 0" in str(report)


def test_interrupted_retry_leaves_the_session_usable(session):
    running = session()
    SCRIPT.extend([TransientError(BUSY), KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        running.run(None, {"x": X})
    assert right(running).incidents == ()
