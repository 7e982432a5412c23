"""Reported memory of programs, compared with the system's count."""

from __future__ import annotations

import sys

import pytest

from benchmarks.plan_memory import plan_bytes_in_process


@pytest.mark.sweep
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what the process holds")
@pytest.mark.parametrize("device", ["openvino", "cpu"])
def test_reported_memory_equals_the_system_count(device):
    (few_counted, few_held), (many_counted, many_held) = plan_bytes_in_process(device, "perceptron, 64 rows", (2, 8))
    assert many_held - few_held > 50e6
    assert many_counted - few_counted == pytest.approx(many_held - few_held, rel=0.25)
