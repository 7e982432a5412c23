"""Random models: for hypothesis as a strategy, for tables of operations one by one."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from nnadapter.drivers.fake_npu import HELD, judge
from nnadapter.ir import SCHEMAS, DataType, Model
from nnadapter.testing import random_models
from nnadapter.testing.random_models import UNREACHED, Accept, Maker, RandomCase

LARGEST_MODEL = 12
_ATTEMPTS = 4
_HELD = sorted(HELD)
_WEIGHTED = [DataType.FLOAT32, DataType.FLOAT32, DataType.FLOAT16, *_HELD]
"""Data types of the device, floating-point ones more often."""
_WIDER = [*_WEIGHTED, DataType.INT16, DataType.UINT32]


def anything(model: Model) -> bool:
    """Accept every operation."""
    return True


def taken(model: Model) -> bool:
    """Accept only operations that fake_npu supports."""
    return bool(judge(model, model.operations[-1], ()))


def make_case(random: Random, operations: int, accept: Accept = taken) -> RandomCase:
    """Return a model of at most `operations` operations.

    Most models use few operation types, so that these meet often. Source: A. Groce and others, Swarm testing, 2012.
    """
    maker = maker_of(random, accept)
    types = [type_ for type_ in SCHEMAS if type_ not in UNREACHED]
    types = random.sample(types, random.choice((3, 6, 12, len(types))))
    for _ in range(operations):
        for _ in range(_ATTEMPTS):
            if attempt(maker, random.choice(types), accept):
                break
    return maker.finish()


def varied(random: Random) -> Model:
    """Return a model with everything that `mutations` can change."""
    maker = maker_of(random, anything)
    for constant in (0, 1):
        maker.fresh_of(DataType.FLOAT32, (3,), constant)
    for type_ in ("CONV_2D", "TOP_K", "CONCAT", "ADD", "SOFTMAX", "GELU"):
        while not attempt(maker, type_, anything):
            maker.fresh_of(DataType.FLOAT32, (1, 2, 3, 4), random.choice((0, 1)))
    for type_ in random.choices([type_ for type_ in SCHEMAS if type_ not in UNREACHED], k=random.randint(0, 6)):
        attempt(maker, type_, anything)
    return maker.finish().model


def maker_of(random: Random, accept: Accept = taken) -> Maker:
    """Return a maker whose model has one to three operands and no operations."""
    wide = accept is anything
    maker = Maker(random, random.sample(_WIDER if wide else _WEIGHTED, 3), (0, 1, 2, 3) if wide else (1, 2, 3, 4, 6))
    for _ in range(random.choice((1, 1, 2, 3))):
        maker.fresh_of(random.choice(maker.dtypes), maker.dimensions(), 0.1)
    return maker


def attempt(maker: Maker, type_: str, accept: Accept = taken) -> bool:
    """Try to add one operation of that type; return whether it succeeded."""
    return random_models.attempt(maker, type_, accept)


@st.composite
def cases(draw: st.DrawFn, accept: Accept = taken, most: int = LARGEST_MODEL) -> RandomCase:
    """Draw cases of up to `most` operations that `accept` allows."""
    operations = draw(st.integers(1, most))
    return make_case(draw(st.randoms(use_true_random=False)), operations, accept)
