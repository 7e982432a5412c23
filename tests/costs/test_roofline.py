"""Seconds of work, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nnadapter.costs.classes import CLASSES, OperationClass
from nnadapter.costs.device_costs import DeviceCosts, Source
from nnadapter.costs.roofline import Line, roofline
from nnadapter.costs.work import UnitWork
from nnadapter.drivers import Profile

PROFILE = Profile(
    peak_flops=1e9,
    bandwidth=1e8,
    launch_seconds=1e-3,
    transfer_seconds=1e-5,
    transfer_bandwidth=1e7,
    operation_seconds=0.5,
    peak_of_dtype={"int8": 4e9},
)


@pytest.mark.parametrize(
    ("flops", "nbytes", "seconds"),
    [(0, 0, 0.5), (2e9, 0, 2.5), (2e9, 1e8, 2.5), (1e9, 3e8, 3.5), (0, 1e7, 0.6)],
)
def test_the_longer_of_arithmetic_and_traffic_counts(flops, nbytes, seconds):
    assert roofline(PROFILE, np.array([flops]), np.array([nbytes])) == pytest.approx([seconds])


def test_the_sides_of_a_line_are_at_right_angles():
    line = Line(seconds=1.0, seconds_per_flop=2.0, seconds_per_byte=3.0, error=0.0)
    np.testing.assert_allclose(line.of(np.array([0.0, 4.0]), np.array([0.0, 2.0])), [1.0, 1 + 10])


def test_data_types_have_peaks_and_measured_classes_have_lines():
    classes = [CLASSES.index(each) for each in (OperationClass.MATRIX, OperationClass.MATRIX, OperationClass.REDUCTION)]
    work = UnitWork(np.full(3, 8e9), np.zeros(3), np.array(classes), np.array([0, 1, 1]), np.full(3, -1))
    dtypes = ("float32", "int8")
    modeled = DeviceCosts(source=Source.MODELED, profile=PROFILE)
    np.testing.assert_allclose(modeled.seconds(work, dtypes), [8.5, 2.5, 2.5])
    lines = {OperationClass.REDUCTION: Line(seconds=0.25, seconds_per_flop=0.0, seconds_per_byte=0.0, error=0.0)}
    measured = DeviceCosts(source=Source.CALIBRATED, profile=PROFILE, lines=lines)
    np.testing.assert_allclose(measured.seconds(work, dtypes), [8.5, 2.5, 0.25])
