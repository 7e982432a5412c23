from __future__ import annotations

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from nnadapter.torch.decompositions import DECOMPOSITIONS

ORIGINAL = torch.ops.aten.convolution_backward.default


@st.composite
def convolutions(draw):
    rank, groups, transposed = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.booleans())
    inputs, outputs = (groups * draw(st.integers(1, 2)) for _ in range(2))

    def per_axis(least, most):
        return [draw(st.integers(least, most)) for _ in range(rank)]

    stride, padding, dilation, kernel = per_axis(1, 3), per_axis(0, 3), per_axis(1, 3), per_axis(1, 3)
    extra = [draw(st.integers(0, max(pair) - 1)) if transposed else 0 for pair in zip(stride, dilation, strict=True)]
    first, second = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    image = torch.randn(draw(st.integers(1, 3)), inputs, *per_axis(1, 7), dtype=torch.float64)
    weight = torch.randn(first, second, *kernel, dtype=torch.float64)
    return image, weight, (stride, padding, dilation, transposed, extra, groups)


@given(convolutions(), st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_gradients_of_any_convolution(convolution, wanted):
    image, weight, moves = convolution
    try:
        result = torch.ops.aten.convolution.default(image, weight, None, *moves)
    except RuntimeError:
        assume(False)
    assume(result.numel())
    bias = [weight.shape[1] * moves[-1] if moves[3] else weight.shape[0]]
    arguments = (torch.randn_like(result), image, weight, bias, *moves, list(wanted))
    for found, expected, asked in zip(DECOMPOSITIONS[ORIGINAL](*arguments), ORIGINAL(*arguments), wanted, strict=True):
        if asked:
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        else:
            assert found is None


def test_single_number_applies_to_all_axes():
    image, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    arguments = (torch.randn(2, 4, 4, 4), image, weight, [4], [2], [1], [1], False, [0], 1, [True] * 3)
    for found, expected in zip(DECOMPOSITIONS[ORIGINAL](*arguments), ORIGINAL(*arguments), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
