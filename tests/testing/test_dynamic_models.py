"""Models with a dynamic size, compared with models built at each size."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from nnadapter.ir import DataType, ModelBuilder, OperandType, to_text, verify
from nnadapter.ir.definition import by_definition
from nnadapter.testing.dynamic_shape_cases import DynamicCase, opened
from nnadapter.testing.random_models import RandomCase


def reshaped(size: int) -> RandomCase:
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (2, size, 3)))
    (turned,) = builder.add_operation("TRANSPOSE", [x], {"perm": (1, 0, 2)}, outputs=["turned"])
    (flat,) = builder.add_operation("RESHAPE", [turned], {"shape": (6 * size,)}, outputs=["flat"])
    (total,) = builder.add_operation("REDUCE_SUM", [flat], {"axes": (0,), "keepdims": False}, outputs=["total"])
    return RandomCase(builder.finish([flat, total]), (np.arange(6 * size, dtype=np.float32).reshape(2, size, 3),))


def enlarged(height: int, scale: float) -> RandomCase:
    """Build a case that resizes the first axis of an image."""
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (1, height, 7)))
    attributes = {"scales": (1.0, scale, 1.0), "shape": (1, int(height * scale), 7)}
    (y,) = builder.add_operation("RESIZE_NEAREST", [x], attributes, outputs=["y"])
    return RandomCase(builder.finish([y]), (np.arange(7 * height, dtype=np.float32).reshape(1, height, 7),))


def at_size(case: RandomCase, size: int) -> DynamicCase:
    return next(candidate for candidate in opened(Random(0), case) if candidate.size == size)


@pytest.mark.parametrize("size", [0, 1, 4, 5, 40])
def test_dynamic_model_equals_the_built_one_at_another_size(size):
    case = at_size(reshaped(5), 5).at(size)
    assert to_text(case.model) == to_text(reshaped(size).model)
    verify(case.model)
    flat, total = by_definition(case.model, case.feeds)
    expected = case.feeds[0].transpose(1, 0, 2).reshape(-1)
    assert np.array_equal(flat, expected) and total == expected.sum()


def test_feed_of_another_size_repeats_original_rows():
    (feed,) = at_size(reshaped(3), 2).at(3).feeds
    original = reshaped(3).feeds[0]
    assert np.array_equal(feed, original[[0, 1, 0]])


def test_every_input_size_can_be_dynamic():
    assert sorted(case.size for case in opened(Random(0), reshaped(5))) == [2, 3, 5]


def test_size_shared_with_constants_stays_static():
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (4, 5)))
    weights = builder.add_constant("weights", np.ones((5, 2), np.float32))
    (y,) = builder.add_operation("MAT_MUL", [x, weights], {})
    case = RandomCase(builder.finish([y]), (np.ones((4, 5), np.float32),))
    assert at_size(case, 5).at(6) is None and at_size(case, 4).at(6) is not None


@pytest.mark.parametrize(("scale", "opens"), [(1.0, True), (2.0, False)])
def test_resize_by_scales_stays_static(scale, opens):
    case = at_size(enlarged(4, scale), 4).at(5)
    assert (case is not None) == opens
    assert case is None or to_text(case.model) == to_text(enlarged(5, scale).model)
