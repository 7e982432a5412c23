"""Calibration error on networks of mixed operations."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime
import pytest

from nnadapter.costs import calibrate, networks, onnx_form
from tests import metered_driver

pytestmark = pytest.mark.slow  # programs are timed


@pytest.mark.parametrize("name", networks())
def test_networks_run_and_keep_numbers_finite(name):
    model = networks()[name]
    given = model.operands[model.inputs[0]]
    session = onnxruntime.InferenceSession(onnx_form(model).SerializeToString())
    (result,) = session.run(None, {session.get_inputs()[0].name: np.ones(given.type.dimensions, np.float32)})
    assert np.isfinite(result).all() and result.std() > 0


@pytest.mark.sweep
def test_device_that_follows_its_lines_has_a_small_error():
    assert calibrate("metered", stopwatch=metered_driver.STOPWATCH, budget_seconds=1e9).off_by < 0.1
    slow = {"slow": "ERF,RELU", "times": 200}
    assert calibrate("metered", slow, stopwatch=metered_driver.STOPWATCH, budget_seconds=1e9).off_by > 0.3


@pytest.mark.sweep
def test_timed_programs_alternate():
    ran = metered_driver.STATE["ran"] = []
    calibrate("metered", stopwatch=metered_driver.STOPWATCH, budget_seconds=1e9)
    rounds = ran[-200:]
    again = sum(one is other for one, other in itertools.pairwise(rounds))
    assert again < len(rounds) / 4, "only the last of a round can be the first of the next"
