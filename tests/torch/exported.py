"""Functions trained with forward and backward graphs that PyTorch exports to ONNX and a device runs."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest
import torch
from functorch.compile import make_boxed_func
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.onnx._internal.exporter._registration import ONNXRegistry

import nnadapter as nna
from nnadapter.torch.decompositions import DECOMPOSITIONS

_table = functools.cache(ONNXRegistry.from_torchlib)
"""The exporter's table of operators, which it otherwise builds for each graph in half of its time."""


def compiled(function, device="fake_npu"):
    """Return `function` with forward and backward on a device, and the list that collects their sessions."""
    sessions = []

    def compiler(graph, examples):
        session = _session(graph, examples, device)
        sessions.append(session)
        names = [each.name for each in session.get_inputs()]
        (output,) = (node for node in graph.graph.nodes if node.op == "output")
        is_none = [arg is None for arg in output.args[0]]

        def run(*values):
            results = iter(session.run(None, {n: v.detach().numpy() for n, v in zip(names, values, strict=True)}))
            return [None if none else torch.from_numpy(np.array(next(results))) for none in is_none]

        return make_boxed_func(run)

    torch._dynamo.reset()
    decompositions = {**core_aten_decompositions(), **DECOMPOSITIONS}
    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, decompositions=decompositions)
    return torch.compile(function, backend=backend), sessions


def _session(graph, examples, device):
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), torch.no_grad(), unset_fake_temporarily():
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(_table))
        warnings.simplefilter("ignore")
        program = torch.onnx.export(graph.eval(), tuple(examples), dynamo=True, verbose=False)
    return nna.InferenceSession(program.model_proto.SerializeToString(), devices=[device])


def refused(sessions):
    """Return the op types on the CPU; folded nodes and nodes without elements do not count."""
    return {node.op_type for session in sessions for node in session.report().nodes if node.device == "cpu"}


def gradients(function, leaves, arguments):
    """Return the result of `function`, and the gradients of `leaves` for its weighted sum."""
    result = function(*arguments)
    weights = torch.sin(torch.arange(result.numel(), dtype=torch.float32)).view(result.shape)
    return result, *torch.autograd.grad((result * weights).sum(), leaves)
