from __future__ import annotations

import pytest

from nnadapter.errors import InvalidModelError
from tests.ir.operations.shape_oracle import dimensions, flops, infer, operand

_IMAGE = (2, 4, 6, 8)
_OFFSET = (2, 18, 4, 6)


def _regions(image, regions, numbers, **attributes):
    return infer("ROI_ALIGN", [operand(*image), operand(*regions), operand(*numbers, dtype="int64")], **attributes)


def test_results_have_the_shape_of_the_grid():
    assert dimensions("GRID_SAMPLE", [_IMAGE, (2, 3, 5, 2)]) == [(2, 4, 3, 5)]
    assert dimensions("GRID_SAMPLE", [(1, 2, 3, 4, 5), (1, 6, 7, 8, 3)]) == [(1, 2, 6, 7, 8)]
    assert dimensions("AFFINE_GRID", [(2, 3, 4)], output_shape=(5, 6, 7)) == [(2, 5, 6, 7, 3)]
    assert dimensions("MAX_ROI_POOL", [_IMAGE, (3, 5)], output_shape=(2, 1)) == [(3, 4, 2, 1)]
    assert _regions(_IMAGE, (3, 4), (3,), output_shape=(7, 6))[0].dimensions == (3, 4, 7, 6)
    assert dimensions("DEFORMABLE_CONV_2D", [_IMAGE, (5, 4, 3, 3), _OFFSET]) == [(2, 5, 4, 6)]


_ERRORS = [
    ("GRID_SAMPLE", [_IMAGE, (2, 3, 2)], {}, "grid has rank 3, expected 4"),
    ("GRID_SAMPLE", [_IMAGE, (1, 3, 5, 2)], {}, r"grid has dimensions \[1, 3, 5, 2\], expected \[2, 3, 5, 2\]"),
    ("GRID_SAMPLE", [(1, 1, 2, 2, 2), (1, 1, 1, 1, 3)], {"mode": "cubic"}, "mode is 'cubic'"),
    ("AFFINE_GRID", [(2, 2, 3)], {"output_shape": (5,)}, "expected two or three sizes"),
    ("AFFINE_GRID", [(2, 2, 3)], {"output_shape": (5, 4, 3)}, "input has dimensions"),
    ("AFFINE_GRID", [(2, 2, 3)], {"output_shape": (5, 0)}, "output_shape is"),
    ("MAX_ROI_POOL", [_IMAGE, (3, 4)], {"output_shape": (1, 1)}, r"regions has dimensions \[3, 4\], expected"),
    ("MAX_ROI_POOL", [_IMAGE, (3, 5)], {"output_shape": (0, 1)}, "output_shape is"),
    ("DEFORMABLE_CONV_2D", [_IMAGE, (5, 4, 3), _OFFSET], {}, "filter has dimensions"),
    ("DEFORMABLE_CONV_2D", [_IMAGE, (5, 3, 3, 3), _OFFSET], {}, "group is 1 for 4 input"),
    ("DEFORMABLE_CONV_2D", [_IMAGE, (5, 4, 3, 3), _OFFSET], {"offset_group": 3}, "offset_group is 3"),
    ("DEFORMABLE_CONV_2D", [_IMAGE, (5, 4, 3, 3), (2, 9, 4, 6)], {}, "offset has dimensions"),
    ("DEFORMABLE_CONV_2D", [_IMAGE, (5, 4, 3, 3), _OFFSET, (4,)], {}, "bias has dimensions"),
    ("DEFORMABLE_CONV_2D", [_IMAGE, (5, 4, 3, 3), _OFFSET, (5,), _OFFSET], {}, "mask has dimensions"),
]


@pytest.mark.parametrize(("type_", "shapes", "attributes", "message"), _ERRORS)
def test_ill_formed_is_refused(type_, shapes, attributes, message):
    with pytest.raises(InvalidModelError, match=f"^{type_}: .*{message}"):
        dimensions(type_, shapes, **attributes)


@pytest.mark.parametrize(
    ("regions", "numbers", "attributes", "message"),
    [
        ((3, 5), (3,), {}, "regions has dimensions"),
        ((3, 4), (2,), {}, "batch_indices has dimensions"),
        ((3, 4), (3,), {"sampling_ratio": -1}, "sampling_ratio is"),
    ],
)
def test_ill_formed_regions_are_refused(regions, numbers, attributes, message):
    with pytest.raises(InvalidModelError, match=message):
        _regions(_IMAGE, regions, numbers, output_shape=(1, 1), **attributes)


def test_flops_count_neighbors():
    inputs = [operand(*_IMAGE), operand(2, 3, 5, 2)]
    assert [flops("GRID_SAMPLE", inputs, mode=mode) for mode in ("nearest", "linear", "cubic")] == [240, 960, 3840]
    volume = [operand(1, 1, 2, 2, 2), operand(1, 1, 1, 1, 3)]
    assert flops("GRID_SAMPLE", volume) == 2 * 8


def test_flops_of_deformable_convolution():
    inputs = [operand(*_IMAGE), operand(5, 4, 3, 3), operand(*_OFFSET)]
    products, sampled = 2 * 2 * 5 * 24 * 36, 8 * 2 * 24 * 4 * 9
    assert flops("DEFORMABLE_CONV_2D", inputs) == products + sampled
    assert flops("DEFORMABLE_CONV_2D", [*inputs, operand(5)]) == products + sampled + 2 * 5 * 24
