"""Bad indices, lengths and counts in feeds: typed errors or ONNX's results, within a second and without a crash."""

import pytest

from tests.inference.hostile_feeds import CASES, run_in_child

FEW = {
    "cpu": ["TensorScatter", "Reshape", "Range limit", "HannWindow", "DFT length"],
    "openvino": [
        "Gather of any size, computed",
        "GatherND of any size",
        "ScatterND, computed",
        "GroupQueryAttention",
        "RoiAlign regions",
        "TopK",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("device", FEW)
def test_selected_operators(device):
    assert run_in_child(device, FEW[device]) == []


@pytest.mark.sweep
@pytest.mark.parametrize("device", ["cpu", "fake_npu", "openvino", "qnn", "xla:cpu"])
def test_every_operator(device):
    assert run_in_child(device, list(CASES)) == []
