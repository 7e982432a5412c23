"""An interrupt while the engine works: it is stopped before anything is freed that it works on."""

from __future__ import annotations

import numpy as np
import pytest

from nnadapter.drivers.control import Control
from tests.drivers.openvino.harness import context, fixed, model_of

PRODUCTS = "(float[900,900] x) => (float[900,900] y) { a = MatMul(x, x) b = MatMul(a, x) c = MatMul(b, x) y = Sin(c) }"


def interrupt():
    raise KeyboardInterrupt


def rests(execution):
    try:
        return execution._request.wait_for(0)
    except RuntimeError as error:
        return "was canceled" in str(error)


def test_an_interrupt_stops_the_engine():
    opened = context()
    program = opened.compile(model_of(PRODUCTS))
    execution = program.create_execution()
    x = fixed(np.eye(900, dtype=np.float32))
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            execution.compute_within([x], Control(cancelled=interrupt))
        assert rests(execution), "the engine still works"
    for result in (execution.compute([x]), execution.compute_within([x], Control(cancelled=lambda: False))):
        np.testing.assert_allclose(result[0], np.sin(x), rtol=1e-5, atol=1e-6)
    execution.close()
    program.close()
