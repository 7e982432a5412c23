"""A short form of the benchmark chaos: right results despite many faults."""

from __future__ import annotations

import pytest

from benchmarks.chaos import DEVICES, chaos
from tests.c_compiler import needs_compiler
from tests.optional import needs


@needs("openvino")
@pytest.mark.slow
@needs_compiler
def test_runs_on_three_devices_are_right():
    came = chaos(120, chance=0.5)
    assert came["right"] == came["runs"] == 120
    assert came["devices"] == sorted(f"faulty:{name}" for name in DEVICES)
    assert {"fail", "raise", "device_lost", "wrong_shape", "hang"} <= set(came["faults"])
    assert {"faulty:acme_c ExecutionError", "faulty:openvino DeviceLostError"} <= set(came["incidents"])


@needs("openvino")
@needs_compiler
@pytest.mark.sweep
def test_ten_thousand_runs_are_right():
    came = chaos(10_000, threads=4)
    assert came["right"] == 10_000
