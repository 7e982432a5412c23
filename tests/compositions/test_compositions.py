"""Random compositions on the CPU, with fake_npu and on openvino equal onnx's reference evaluator."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.compositions.checking import check_range

_COUNT = int(os.environ.get("NNADAPTER_COMPOSITIONS", "20000"))
_SEED = int(os.environ.get("NNADAPTER_COMPOSITIONS_SEED", "0"))


@pytest.mark.parametrize(
    ("device", "count"), [pytest.param("cpu", 200, marks=pytest.mark.sweep), ("fake_npu", 40), ("openvino", 15)]
)
def test_compositions_equal_the_reference_evaluator(device, count):
    assert check_range(device, 0, count) == {}


@pytest.mark.sweep
@pytest.mark.parametrize("device", ["cpu", "fake_npu", "openvino"])
def test_many_compositions_equal_the_reference_evaluator(device):
    assert _check_all(device, _SEED, _COUNT, dynamic=False) == {}


@pytest.mark.sweep
def test_many_dynamic_compositions_equal_the_reference_evaluator():
    assert _check_all("openvino", _SEED, _COUNT // 4, dynamic=True) == {}


def _check_all(device, first, count, *, dynamic):
    """Check compositions in several processes at once, each with some hundreds of them."""
    starts = range(first, first + count, 500)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = pool.map(
            lambda start: check_range(device, start, min(500, first + count - start), dynamic=dynamic), starts
        )
        return {seed: text for part in parts for seed, text in part.items()}
