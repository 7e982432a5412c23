from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

from nnadapter.torch.operators import decomposition_table

WRITTEN = decomposition_table()
aten = torch.ops.aten
OPERATORS = (
    aten.max.default, aten.max.dim, aten.min.default, aten.min.dim, aten.sort.default, aten.sort.stable,
    aten.amax.default, aten.amin.default,
)  # fmt: skip
ARGUMENTS = {
    "max.dim": (1,),
    "min.dim": (0, True),
    "amin.default": ([0],),
    "amax.default": ([1],),
    "sort.default": (1, True),
}
NAMED = {"sort.stable": {"stable": True, "dim": 0}}


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_extremes_of_booleans(operator):
    values = torch.tensor([[True, False, True], [False, False, True]])
    name = str(operator).removeprefix("aten.")
    arguments, named = ARGUMENTS.get(name, ()), NAMED.get(name, {})
    found = WRITTEN[operator](values, *arguments, **named)
    expected = operator(values, *arguments, **named)
    assert all(map(torch.equal, pytree.tree_leaves(found), pytree.tree_leaves(expected)))
    assert WRITTEN[operator](values.int(), *arguments, **named) is NotImplemented


@pytest.mark.parametrize("name", ["amax", "amin"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_empty_axes_mean_all_axes(name, keepdim):
    operator = getattr(torch.ops.aten, name).default
    for values in (torch.randn(3, 4), torch.randn(3, 4) > 0):
        assert torch.equal(WRITTEN[operator](values, [], keepdim), operator(values, [], keepdim))
