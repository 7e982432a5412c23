"""What policy `measured` times, and under which conditions."""

from __future__ import annotations

import gc

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

import nnadapter as nna
from nnadapter.drivers.onnxruntime.sessions import open_session, pool_permit
from tests.models import numbers
from tests.watching import watched

DEVICE = ("fake_npu", {"clock": "simulated", "switched_off": "Sin"})


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NNADAPTER_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def one_pool():
    """One thread pool for all sessions; which of them got it, those of whole models (they spin) and the others."""
    gc.collect()
    permits = list(iter(pool_permit, None))
    permits.pop()
    with watched(open_session, lambda given, _: (given["spins"], given["has_pool"])) as opened:
        yield opened
    permits.clear()


def test_the_model_as_a_whole_is_timed_with_its_threads(one_pool):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
    g (float[1, 64, 64, 64] x) => (float[1, 64, 64, 64] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        b = Sin (a)
        y = Conv <pads = [1, 1, 1, 1]> (b, w)
    }""")
    weights = np.random.default_rng(1).random((64, 64, 3, 3), np.float32) - 0.5
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    cheapest = nna.partition_report(model, DEVICE, options={"policy": "latency"}).cost.candidates[0].name
    assert cheapest != "all on cpu"  # so it was not first by itself
    with nna.InferenceSession(model, devices=DEVICE, options=nna.Options(policy="measured")) as session:
        session.run(None, {"x": numbers(1, 64, 64, 64)})
        names = {each.name for each in session.report().cost.candidates}
    assert names >= {"all on cpu", "everything supported"}
    assert one_pool[0] == (True, True)
    assert (False, False) in one_pool
