from __future__ import annotations

import gc

import numpy as np
import torch
from torch import nn

import nnadapter as nna
from nnadapter.drivers.registry import open_device


def compiled(function, device="fake_npu", **options):
    return torch.compile(function, backend=nna.torch.nnadapter, options={"devices": [device], **options})


def network():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 4))


def gradients(model, run, x):
    model.zero_grad()
    run(x).square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def moved(run):
    """Return bytes to the device and back in the last call of each graph."""
    return [(graph.to_device_bytes, graph.to_host_bytes) for graph in nna.torch.report(run).graphs]


def used_bytes():
    """Return the memory in use on fake_npu."""
    gc.collect()
    nna.DeviceValue.from_numpy(np.ones(1), "fake_npu")  # an allocation frees collected values
    return open_device("fake_npu").memory_statistics().used_bytes
