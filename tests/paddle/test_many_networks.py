from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import nnadapter as nna

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "models" / "paddle_networks.py"
REFUSED = {"LSTM, two layers", "SimpleRNN", "deformable convolution", "pooling, adaptive", "svd"}
"""Networks with operations that paddle2onnx lacks or converts incorrectly."""

DOUBTED = {"gather_nd", "scatter"}
"""Networks that Paddle does not run on random inputs."""


@pytest.mark.sweep
def test_each_network_is_correct_or_refused(tmp_path):
    subprocess.run([sys.executable, str(SCRIPT), str(tmp_path / "saved")], check=True, capture_output=True)
    refused, doubted, wrong = set(), set(), {}
    for path in sorted((tmp_path / "saved").iterdir()):
        options = nna.Options(cache_dir=False, fallback="allow")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", nna.errors.ConversionWarning)
                session = nna.InferenceSession(path, devices="fake_npu", options=options)
        except nna.errors.InvalidModelError:
            refused.add(path.name)
            continue
        doubted.update(path.name for each in caught if each.category is nna.errors.ConversionWarning)
        feeds, expected = np.load(path / "feeds.npz"), np.load(path / "results.npz")
        results = session.run(None, {each.name: feeds[each.name] for each in session.get_inputs()})
        for found, wanted in zip(results, expected.values(), strict=True):
            largest = np.abs(np.asarray(wanted, np.float64)).max(initial=0.0)
            off = np.abs(np.asarray(found, np.float64) - np.asarray(wanted, np.float64)).max(initial=0.0)
            if off > 1e-4 * largest:
                wrong[path.name] = off / largest
    assert (refused, doubted, wrong) == (REFUSED, DOUBTED, {})
