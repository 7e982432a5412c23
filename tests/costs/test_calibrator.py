from __future__ import annotations

import functools
import os
import time

import numpy as np
import pytest
from msgspec.structs import replace

from nnadapter.costs import (
    AROUND_A_DEVICE,
    AROUND_THE_HOST,
    ROUNDS,
    OperationClass,
    Stopwatch,
    calibrate,
    calibrated,
    fit,
    networks,
)
from nnadapter.drivers import Profile
from nnadapter.drivers.onnxruntime import most_pools, open_session, pool_permit, program
from nnadapter.errors import InvalidOptionError, NotDelegatedError
from nnadapter.process import machine_description, processors, usable
from tests import metered_driver
from tests.every import few_of
from tests.metered_driver import BYTE, COSTS, LAUNCH, OTHERS, TENSOR

pytestmark = pytest.mark.slow  # programs are timed

OF_CLASS = {"elementwise": OTHERS, "convolution": COSTS["CONV_2D"], "matrix": COSTS["MAT_MUL"],
            "function": COSTS["TANH"], "normalization": COSTS["SOFTMAX"], "reduction": COSTS["REDUCE_MEAN"],
            "movement": COSTS["SPLIT"]}  # fmt: skip


@functools.cache
def measure(**options):
    """Calibrate, once for the same options."""
    return calibrate("metered", options, stopwatch=metered_driver.STOPWATCH, budget_seconds=1e9)


@pytest.mark.parametrize("disturbed", [False, True])
def test_calibration_recovers_the_lines(disturbed):
    result = measure(disturbed=disturbed)
    assert result.launch_seconds == pytest.approx(LAUNCH, rel=0.03)
    assert result.transfer_seconds == pytest.approx(TENSOR, rel=0.03)
    assert result.transfer_seconds_per_byte == pytest.approx(BYTE, rel=0.03, abs=0)
    for name, (once, per_flop, per_byte) in OF_CLASS.items():
        line = result.lines[OperationClass(name)]
        assert line.seconds == pytest.approx(once, rel=0.05, abs=0), name
        assert line.seconds_per_flop == pytest.approx(per_flop, rel=0.05, abs=0), name
        assert line.seconds_per_byte == pytest.approx(per_byte, rel=0.05, abs=0), name
        assert result.lines[OperationClass(name)].error < 0.01
    # FLOPs and bytes of a depthwise convolution are proportional, so FLOPs represent both
    depthwise = result.lines[OperationClass.DEPTHWISE]
    assert depthwise.seconds_per_flop > COSTS["CONV_2D"][1] and depthwise.seconds_per_byte == 0
    assert not result.unmeasured_classes


def test_refused_and_failing_classes_are_reported():
    result = measure(off="CONV_2D", breaks_on="SOFTMAX")
    left = {each.value: reason for each, reason in result.unmeasured_classes.items()}
    convolutions = {"convolution", "narrow", "depthwise", "layout"}
    assert left.keys() == {*convolutions, "normalization", "paired"} and result.unmeasured_classes.keys().isdisjoint(
        result.lines
    )
    assert (
        left["convolution"] == "switched_off: off today" and "RuntimeError: out of registers" in left["normalization"]
    )
    assert "normalization  not measured: it failed: RuntimeError: out of registers" in str(result)


@pytest.mark.sweep
def test_launch_is_measured_without_elementwise_operations():
    result = measure(off="ADD,MUL")
    assert OperationClass.ELEMENTWISE in result.unmeasured_classes
    assert (result.launch_seconds, result.transfer_seconds) == (pytest.approx(LAUNCH + 2 * TENSOR, rel=0.1), 0.0)


def test_device_that_refuses_everything_is_an_error():
    everything = "ADD,SUB,MUL,TANH,SPLIT,REDUCE_MEAN,SOFTMAX,MAT_MUL,CONV_2D,LSTM"
    with pytest.raises(NotDelegatedError, match=r"'metered' can run none .*switched_off: off today"):
        measure(off=everything)


def test_a_simulated_clock_is_not_calibrated():
    with pytest.raises(InvalidOptionError, match="without the simulated clock"):
        calibrate("fake_npu", {"clock": "simulated"})


@pytest.mark.sweep
def test_rounds_end_with_the_budget_and_report_progress():
    told = []
    calibrate("metered", stopwatch=metered_driver.STOPWATCH, budget_seconds=0.0, advance=lambda: told.append(1))
    assert len(told) == 3
    told.clear()
    calibrate("metered", stopwatch=metered_driver.STOPWATCH, budget_seconds=1e9, advance=lambda: told.append(1))
    assert len(told) == ROUNDS


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("processors", "most"),
    few_of(((64, 8), (16, 14), (2, len(networks()))), (64, 8)),
)
def test_number_of_simultaneous_programs_is_limited(processors, most, monkeypatch):
    """Each program may have its own threads. Networks alternate up to that limit, in batches of equal size."""
    monkeypatch.setattr(program, "usable", lambda: processors)
    measure.__wrapped__()
    assert metered_driver.STATE["wholes"] == [0, most]


@pytest.mark.sweep
@pytest.mark.parametrize("others", [pytest.param(0, marks=pytest.mark.sweep), most_pools()])
def test_cpu_programs_use_the_thread_pool_of_sessions(monkeypatch, others):
    permits, has_pool = [pool_permit() for _ in range(others)], []

    def opened(*given, **options):
        if options["spins"]:  # the sole segment
            has_pool.append(options["has_pool"])
        return open_session(*given, **options)

    monkeypatch.setattr(program, "open_session", opened)
    calibrate("cpu", budget_seconds=0.0, stopwatch=Stopwatch(sleep=lambda _: None, turn_seconds=0.0))
    assert has_pool and all(has_pool)
    permits.clear()


def test_slow_programs_are_not_measured():
    reason = measure(slow="CONV_2D", times=200_000).unmeasured_classes[OperationClass.CONVOLUTION]
    assert reason == "one run takes longer than 0.5 seconds"


@pytest.mark.sweep
@pytest.mark.parametrize("device", ["cpu", "null"])
def test_real_devices_are_measured_by_the_real_clock(device, request):
    found = (
        request.getfixturevalue("of_the_cpu")
        if device == "cpu"
        else calibrate(device, budget_seconds=0.0, stopwatch=Stopwatch(sleep=lambda _: None, turn_seconds=0.0))
    )
    assert not found.unmeasured_classes
    assert all(line.seconds + line.seconds_per_flop + line.seconds_per_byte >= 0 for line in found.lines.values())


@pytest.mark.sweep
@pytest.mark.parametrize("shares", [False, True])
def test_processors_in_use_are_counted(shares):
    """Processors in use are processor time divided by elapsed time."""
    clock, busy = metered_driver.STOPWATCH.clock, metered_driver.STOPWATCH.busy
    result = calibrate(
        "metered", stopwatch=Stopwatch(clock=clock, busy=clock if shares else busy, sleep=lambda _: None)
    )
    assert result.processors == pytest.approx(1.0 if shares else 0.0)
    assert "of the host are used" in str(result)
    costs = calibrated(result)
    assert costs.processors == result.processors
    assert costs.needs_processors is (shares and usable() <= 2)


@pytest.mark.sweep
@pytest.mark.parametrize("used", few_of((0.0, 1.0, None), 1.0))
def test_processors_used_by_the_device_process_count(used, monkeypatch):
    def seconds_of(process_id):
        assert process_id != os.getpid()
        # includes other processes
        return None if used is None else used * time.perf_counter() / len(processors._WORKERS._running)

    monkeypatch.setattr(processors, "seconds_of_process", seconds_of)
    monkeypatch.setattr("nnadapter.costs.calibrator.seconds_of_process", seconds_of)
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    fast = Stopwatch(sleep=lambda _: None, turn_seconds=0.0)
    result = calibrate("null", {"isolate": True}, budget_seconds=0.0, stopwatch=fast)
    assert result.processors == (None if used is None else pytest.approx(used, rel=0.01))


@pytest.mark.sweep
@pytest.mark.parametrize(("left", "alone"), few_of(((2.0, 0.6), (1.0, 1.2), (0.1, 1.2)), (2.0, 0.6), (1.0, 1.2)))
def test_processor_demand_is_corrected_for_other_programs(left, alone, monkeypatch):
    clock = metered_driver.STOPWATCH.clock
    slow = functools.partial(Stopwatch, clock=clock, busy=lambda: 0.6 * clock(), sleep=lambda _: None)
    monkeypatch.setattr("nnadapter.costs.calibrator.Stopwatch", slow)
    monkeypatch.setattr("nnadapter.costs.calibrator.processors_unused_by_others", lambda *_: left)
    monkeypatch.setattr("nnadapter.costs.calibrator.usable", lambda: 2)
    assert calibrate("metered").processors == pytest.approx(alone)


@pytest.mark.sweep
def test_calibration_preserves_declared_boundary():
    declared = Profile(
        peak_flops=1.0, bandwidth=1.0, launch_seconds=1.0, transfer_seconds=1.0, transfer_bandwidth=1.0,
        boundary_dtypes=frozenset({"float32"}), channels_last=True, peak_of_dtype={"int8": 5.0},
    )  # fmt: skip
    costs = calibrated(measure(), declared)
    assert costs.profile.launch_seconds == pytest.approx(LAUNCH + AROUND_A_DEVICE, rel=0.03)
    assert 1 / costs.profile.transfer_bandwidth == pytest.approx(BYTE, rel=0.03, abs=0)
    assert costs.profile.boundary_dtypes == declared.boundary_dtypes and costs.profile.channels_last
    assert costs.profile.peak_of_dtype == {}


def test_run_costs_include_session_overhead():
    result = measure()
    on_device, on_host = calibrated(result), calibrated(replace(result, device="cpu"))
    assert on_device.sole_launch_seconds == pytest.approx(result.sole_launch_seconds + AROUND_A_DEVICE, abs=1e-9)
    assert on_host.sole_launch_seconds == result.sole_launch_seconds  # only the call of ONNX Runtime
    for costs, around in ((on_device, AROUND_A_DEVICE), (on_host, AROUND_THE_HOST)):
        assert costs.profile.launch_seconds == pytest.approx(result.launch_seconds + around, abs=1e-9)


def test_coefficients_are_never_negative():
    rows = np.array([[1.0, size] for size in (1, 2, 4, 8)])
    result = fit(rows, [8.0, 4.0, 2.0, 1.0])
    assert (result >= 0).all()
    np.testing.assert_allclose(fit(rows, 3.0 + 2.0 * rows[:, 1]), [3.0, 2.0])
    assert not fit(rows, [0.0] * 4).any()


@pytest.mark.sweep
def test_calibration_records_machine_and_isolation():
    fast = Stopwatch(sleep=lambda _: None, turn_seconds=0.0)
    results = [calibrate("null", options, budget_seconds=0.0, stopwatch=fast) for options in ({}, {"isolate": True})]
    assert [each.options for each in results] == [{}, {"isolate": True}]
    assert {each.machine for each in results} == {machine_description()}
    assert not any(each.crowded for each in results), "a stopwatch of one's own says nothing of this machine"
