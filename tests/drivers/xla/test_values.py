"""What the conformance kit does not look at closely: conversions, layouts, quantized products, special values."""

from __future__ import annotations

import numpy as np

from nnadapter.ir.definition import by_definition
from tests.drivers.xla.harness import computed


def held_to_the_definition(model, *inputs, tolerance=1e-5):
    for made, expected in zip(computed(model, *inputs), by_definition(model, inputs), strict=True):
        assert made.dtype == expected.dtype
        np.testing.assert_allclose(made.astype(np.float64), expected.astype(np.float64), tolerance, tolerance)
