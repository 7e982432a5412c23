from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from nnadapter.errors import ExecutionError
from nnadapter.torch.resident_tensors import results_of


def checked(function, *inputs, mode="fake"):
    graph = make_fx(function, tracing_mode=mode)(*inputs).graph
    (output,) = graph.output_node().args
    outputs = [output] if isinstance(output, fx.Node) else list(output)
    return results_of(graph.find_nodes(op="placeholder"), outputs, [False] * len(outputs))


X = torch.ones(2, 3)


def test_expected_results_are_not_copied():
    array = np.ones((2, 3), np.float32)
    (result,) = checked(torch.sin, X)([array], [X])
    assert result.data_ptr() == array.ctypes.data and result.shape == (2, 3)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((3, 2), np.float32), r"result 'sin' is float32\[3, 2\], but PyTorch's graph declares float32\[2, 3\]"),
        (np.ones((2, 3), np.float64), r"is float64\[2, 3\], but PyTorch's graph declares float32\[2, 3\]"),
        (np.ones(6, np.float32), r"is float32\[6\]"),
    ],
)
def test_unexpected_sizes_and_types_are_an_error(array, message):
    with pytest.raises(ExecutionError, match=message):
        checked(torch.sin, X)([array], [X])


def test_dynamic_sizes_follow_the_inputs():
    results = checked(torch.sin, X, mode="symbolic")
    assert results([np.ones((4, 5), np.float32)], [torch.ones(4, 5)])[0].shape == (4, 5)
    with pytest.raises(ExecutionError, match=r"is float32\[4, 5\], but PyTorch's graph declares float32\[.*6\]"):
        results([np.ones((4, 5), np.float32)], [torch.ones(4, 6)])
    with pytest.raises(ExecutionError):
        results([np.ones(4, np.float32)], [torch.ones(4, 5)])


def test_bfloat16_results_are_converted():
    import ml_dtypes

    value = X.bfloat16()
    (result,) = checked(torch.sin, value)([np.ones((2, 3), ml_dtypes.bfloat16)], [value])
    assert result.dtype is torch.bfloat16
