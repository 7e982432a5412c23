"""PyTorch networks in torch.compile, compared with PyTorch: four small ones, all with `-m sweep`."""

from __future__ import annotations

import copy

import pytest
import torch

import nnadapter as nna
from benchmarks.models.pytorch_models import models
from benchmarks.pytorch import relative_error, tensors_of

FEW = ("perceptron", "autoencoder", "U-Net", "encoder layer")
PARTS = 4
"""Limits each part to a few minutes."""
TOLERANCE = 1e-5
"""Relative to the largest expected value; otherwise a result must be about as near to float64 as PyTorch's."""
pytestmark = pytest.mark.filterwarnings("ignore")  # from the networks and from PyTorch's exporter


@pytest.fixture(autouse=True)
def captures_recurrence():
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def wrong(names):
    found = {name: fault(*models()[name]()) for name in names}
    return {name: what for name, what in found.items() if what}


def fault(module, inputs):
    torch._dynamo.reset()
    run = torch.compile(module, backend=nna.torch.nnadapter, options={"devices": ["fake_npu"], "fallback": "allow"})
    with torch.no_grad():
        expected = tensors_of(module(**inputs))
        try:
            result = tensors_of(run(**inputs))
            error = relative_error(result, expected)
        except Exception as failure:  # noqa: BLE001  any exception means that the network does not run
            return f"{type(failure).__name__}: {failure}"
    if not error <= TOLERANCE:
        own, ours = (relative_error(each, in_float64(module, inputs)) for each in (expected, result))
        if not ours <= 3 * own:
            return f"off by {error}, {ours} from float64, where PyTorch itself is {own} off"
    return "" if sum(graph.delegated for graph in nna.torch.report(run).graphs) else "nothing went to a session"


def in_float64(module, inputs):
    given = {name: each.double() if each.is_floating_point() else each for name, each in inputs.items()}
    with torch.no_grad():
        return tensors_of(copy.deepcopy(module).double()(**given))


def test_selected_networks():
    assert wrong(FEW) == {}


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(PARTS))
def test_all_networks(part):
    pytest.importorskip("transformers", reason="most of the networks are architectures of transformers")
    assert wrong(list(models())[part::PARTS]) == {}
