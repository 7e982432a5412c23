"""Integer products on processors without instructions for them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import numpy as np
from tests.drivers.openvino.test_integer_bodies import ENDS, check_quantized, quantized_model
for depth in (24, 515):
    for largest in (60, 127):
        for end in ENDS:
            weights = np.full((depth, 16), largest, np.int8)
            weights[:, 1::2] = -largest
            check_quantized(quantized_model(weights, end))
"""


@pytest.mark.sweep
@pytest.mark.parametrize("instructions", ["AVX2", pytest.param("AVX512_CORE", marks=pytest.mark.sweep)])
def test_results_on_older_instruction_sets(instructions):
    """The engine reads the variable once, at start."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": instructions}
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], env=environment, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stderr
