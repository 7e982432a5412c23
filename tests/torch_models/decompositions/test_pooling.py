from __future__ import annotations

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from nnadapter.torch.decompositions import DECOMPOSITIONS

ATEN = torch.ops.aten


def agrees(operator, *arguments):
    torch.testing.assert_close(DECOMPOSITIONS[operator](*arguments), operator(*arguments), rtol=1e-9, atol=1e-9)


@st.composite
def windows(draw):
    """Draw an image of two or three axes, batched or not, with kernel, stride, padding and ceil_mode."""
    rank = draw(st.integers(2, 3))
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    stride = draw(st.one_of(st.just([]), st.lists(st.integers(1, 4), min_size=rank, max_size=rank)))
    padding = [draw(st.integers(0, size // 2)) for size in kernel]
    leading = draw(st.sampled_from([(2,), (2, 3)]))
    image = torch.randn(*leading, *(draw(st.integers(1, 9)) for _ in range(rank)), dtype=torch.float64)
    return image, kernel, stride, padding, draw(st.booleans())


def result_of(operator, *arguments):
    try:
        return operator(*arguments)
    except RuntimeError:  # no window fits
        assume(False)


@given(windows(), st.data())
def test_gradient_of_max_pooling(case, data):
    image, kernel, stride, padding, ceil_mode = case
    forward, backward = {
        2: (ATEN.max_pool2d_with_indices, ATEN.max_pool2d_with_indices_backward.default),
        3: (ATEN.max_pool3d_with_indices, ATEN.max_pool3d_with_indices_backward.default),
    }[len(kernel)]
    moves = kernel, stride, padding, [data.draw(st.integers(1, 2)) for _ in kernel], ceil_mode
    result, indices = result_of(forward, image, *moves)
    assume(torch.isfinite(result).all())  # a window of only padding has no index
    agrees(backward, torch.randn_like(result), image, *moves, indices)


@given(windows(), st.booleans(), st.sampled_from([None, 3]))
def test_gradient_of_average_pooling(case, count_include_pad, divisor):
    image, *moves = case
    forward, backward = {
        2: (ATEN.avg_pool2d, ATEN.avg_pool2d_backward.default),
        3: (ATEN.avg_pool3d, ATEN.avg_pool3d_backward.default),
    }[len(moves[0])]
    arguments = (*moves, count_include_pad, divisor)
    agrees(backward, torch.randn_like(result_of(forward, image, *arguments)), image, *arguments)


SIZES = st.lists(st.integers(1, 9), min_size=2, max_size=2)


@given(SIZES, SIZES)
def test_adaptive_average_pooling_and_its_gradient(sizes, results):
    image = torch.randn(2, 3, *sizes, dtype=torch.float64)
    agrees(ATEN._adaptive_avg_pool2d.default, image, results)
    agrees(ATEN._adaptive_avg_pool2d_backward.default, torch.randn(2, 3, *results, dtype=torch.float64), image)


@given(SIZES, SIZES)
def test_gradient_of_adaptive_max_pooling(sizes, results):
    image = torch.randn(2, 3, *sizes, dtype=torch.float64)
    result, indices = ATEN.adaptive_max_pool2d(image, results)
    agrees(ATEN.adaptive_max_pool2d_backward.default, torch.randn_like(result), image, indices)


def test_adaptive_average_pooling_3d():
    image, gradient = torch.randn(2, 3, 5, 4, 7), torch.randn(2, 3, 2, 3, 5)
    for operator, arguments in (
        (ATEN._adaptive_avg_pool3d.default, (image, (2, 3, 5))),
        (ATEN._adaptive_avg_pool3d_backward.default, (gradient, image)),
    ):
        torch.testing.assert_close(DECOMPOSITIONS[operator](*arguments), operator(*arguments))
