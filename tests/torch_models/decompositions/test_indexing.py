from __future__ import annotations

import pytest
import torch

from nnadapter.torch.decompositions import DECOMPOSITIONS

ATEN = torch.ops.aten


@pytest.mark.parametrize(
    ("shape", "offset", "axes"),
    [
        ((3, 4), 0, (0, 1)),
        ((3, 4), 1, (0, 1)),
        ((3, 4), -2, (0, 1)),
        ((4, 3), 2, (1, 0)),
        ((2, 4, 3), -1, (0, -1)),
        ((2, 5, 3), 1, (-1, 1)),
        ((1, 1), 0, (0, 1)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_diagonal_scatter(shape, offset, axes, dtype):
    values = torch.randn(shape).to(dtype)
    given = torch.randn(values.diagonal(offset, *axes).shape).to(dtype)
    found = DECOMPOSITIONS[ATEN.diagonal_scatter.default](values, given, offset, *axes)
    expected = torch.diagonal_scatter(values, given, offset, *axes)
    assert torch.equal(found, expected) and found.stride() == expected.stride()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.bool])
def test_indices_of_every_integer_type(dtype):
    values = torch.randn(3, 4)
    indices = [None, torch.tensor([1, 0, 1, 0] if dtype is torch.bool else [2, 0], dtype=dtype)]
    given = torch.tensor(7.0)
    for operator, arguments in ((ATEN.index.Tensor, ()), (ATEN.index_put.default, (given, True))):
        found = DECOMPOSITIONS[operator](values, indices, *arguments)
        if dtype in (torch.int64, torch.bool):
            assert found is NotImplemented
        else:
            assert torch.equal(found, operator(values, [None, indices[1].long()], *arguments))
