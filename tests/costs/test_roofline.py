from __future__ import annotations

import numpy as np
import pytest

from nnadapter.costs import CLASSES, DeviceCosts, Line, MeasuredWork, OperationClass, Source, UnitWork, roofline
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
def test_roofline_is_the_maximum_of_arithmetic_and_traffic(flops, nbytes, seconds):
    assert roofline(PROFILE, np.array([flops]), np.array([nbytes])) == pytest.approx([seconds])


def test_compute_and_memory_terms_add_in_quadrature():
    line = Line(seconds=1.0, seconds_per_flop=2.0, seconds_per_byte=3.0, error=0.0)
    np.testing.assert_allclose(line.of(np.array([0.0, 4.0]), np.array([0.0, 2.0])), [1.0, 1 + 10])


def test_data_types_have_peaks_and_measured_classes_have_lines():
    classes = [CLASSES.index(each) for each in (OperationClass.MATRIX, OperationClass.MATRIX, OperationClass.REDUCTION)]
    work = UnitWork(
        flops=np.full(3, 8e9), nbytes=np.zeros(3), classes=np.array(classes), dtypes=np.array([0, 1, 1]),
        producer_classes=np.full(3, -1),
    )  # fmt: skip
    dtypes = ("float32", "int8")
    modeled = DeviceCosts(source=Source.MODELED, profile=PROFILE)
    np.testing.assert_allclose(modeled.seconds(work, dtypes), [8.5, 2.5, 2.5])
    lines = {OperationClass.REDUCTION: Line(seconds=0.25, seconds_per_flop=0.0, seconds_per_byte=0.0, error=0.0)}
    measured = DeviceCosts(source=Source.CALIBRATED, profile=PROFILE, lines=lines)
    np.testing.assert_allclose(measured.seconds(work, dtypes), [8.5, 2.5, 0.25])


def test_channels_are_computed_in_whole_blocks():
    line = Line(seconds=1.0, seconds_per_flop=1.0, seconds_per_byte=0.0, error=0.0, block=16)
    flops = np.full(4, 100.0)
    channels = np.array([[16, 32], [24, 32], [0, 20], [0, 0]])
    np.testing.assert_allclose(line.of(flops, np.zeros(4), channels), [101, 1 + 400 / 3, 161, 101])


def test_measured_times_count_near_their_sizes():
    seen = MeasuredWork(flops=1e6, nbytes=1e4, padding=1.0, quotient=4.0, trust=1.0)
    line = Line(seconds=0.0, seconds_per_flop=1.0, seconds_per_byte=0.0, error=0.0, measured_work=(seen,))
    here, near, far = line.of(np.array([1e6, 1.5e6, 1e9]), np.array([1e4, 1e4, 1e7])) / [1e6, 1.5e6, 1e9]
    assert 2.5 < here < 4.0 and 1.5 < near < here and far == pytest.approx(1.0)
