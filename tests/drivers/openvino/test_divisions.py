"""IEEE 754 division in models that round, also after deserialization."""

from __future__ import annotations

import numpy as np
import pytest

from tests.drivers.openvino.harness import computed, context, model_of, read_only


@pytest.mark.parametrize("sizes", ["1000", "N"])
@pytest.mark.parametrize("divisor", ["c", "d"])
def test_quotients_of_exactly_one_half_round_right(sizes, divisor):
    model = model_of(f"(float[{sizes}] x, float d) => (float[{sizes}] y) <float c = {{0.078431375}}> "
                     f"{{ q = Div(x, {divisor}) y = Round(q) }}")  # fmt: skip
    step, numbers = np.float32(0.078431375), np.arange(-500, 500).astype(np.float32)
    x = (numbers + np.float32(0.5)) * step
    (y,) = computed(context(), model, [x, step])
    np.testing.assert_array_equal(y, np.round(x / step))
    assert (np.round(x * (1 / step)) != y).any()


def test_deserialized_program():
    model = model_of("(float[1000] x, float d) => (float[1000] q, float[1000] y) { q = Div(x, d) y = Round(q) }")
    x, step = np.random.default_rng(0).standard_normal(1000).astype(np.float32), np.float32(0.3)
    opened = context()
    program = opened.deserialize(opened.compile(model).serialize())
    execution = program.create_execution()
    quotients, _ = execution.compute([read_only(x), read_only(step)])
    np.testing.assert_array_equal(quotients, x / step)
    execution.close()
