from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from tests.drivers.openvino.sweep.attributes import Shape, choice_of
from tests.drivers.openvino.sweep.forms import Draft

ALL_NUMBERS = ("normal", "steps", "special")


def some_shape(random: Random, low: int = 0, high: int = 5) -> Shape:
    return tuple(random.choice((1, 2, 3, 4, 5)) for _ in range(random.randint(low, high)))


def picture(random: Random) -> Shape:
    """Draw [N, C, ...] with one to three spatial dimensions."""
    sizes = (random.randint(1, 9) for _ in range(random.choice((1, 2, 2, 2, 3))))
    return (random.choice((1, 2)), random.choice((1, 2, 3, 4, 6, 8, 16, 17)), *sizes)


def narrowed(random: Random, shape: Shape) -> Shape:
    """Draw a shape that broadcasts to `shape`."""
    trailing = shape[random.choice((0, 0, random.randint(0, len(shape)))) :]
    return tuple(1 if random.random() < 0.3 else size for size in trailing)


def chosen(draft: Draft, name: str, shape: Shape) -> object:
    return choice_of(draft.op_type, name)(draft.random, shape)


def integers(draft: Draft, position: int, values: Sequence[int], dtype: type = np.int64) -> None:
    draft.arrays[position] = np.array(values, dtype)
