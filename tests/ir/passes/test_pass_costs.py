from functools import cache, partial

import numpy as np
import pytest

from nnadapter.ir import DataType, ModelBuilder, OperandType
from nnadapter.ir.passes import PASSES
from tests.every import for_every
from tests.work import growth

SMALL = 250
LINEAR = 10
"""Largest allowed growth of the work for 8 times the operations."""
TYPE = OperandType(DataType.FLOAT32, (1, 2, 1, 2, 2))


def build(step, count):
    builder = ModelBuilder()
    value = start = builder.add_input("x", TYPE)
    one = builder.add_constant("one", np.ones((), np.float32))
    for position in range(count):
        (value,) = step(builder, value, start, one, position)
    return builder.finish([value])


def add(builder, type_, *inputs, **attributes):
    return builder.add_operation(type_, inputs, attributes)


CHAINS = {
    "copies": lambda b, x, start, one, i: add(b, ("ASSIGN", "NEG")[i % 2], x),
    "arithmetic": lambda b, x, start, one, i: add(b, ("MUL", "RELU", "ADD", "SIGMOID")[i % 4], x, *[one][: 1 - i % 2]),
    "transposes": lambda b, x, start, one, i: add(b, "TRANSPOSE", x, perm=(2, 1, 0, 4, 3)),
    "transposes and more": lambda b, x, start, one, i: (
        add(b, "TRANSPOSE", x, perm=(2, 1, 0, 4, 3)) if i % 2 else add(b, "RELU", x)
    ),
    "reshapes": lambda b, x, start, one, i: add(b, "RESHAPE", x, shape=((1, 2, 2, 1, 2), (1, 2, 1, 2, 2))[i % 2]),
    "the same again": lambda b, x, start, one, i: add(b, "EXP", start),
    "constants": lambda b, x, start, one, i: add(b, "ADD", x, *add(b, "ASSIGN", one)),
}


@pytest.mark.sweep
@for_every(name=PASSES, chain=CHAINS)
def test_a_long_chain_takes_linear_work(name, chain):
    assert growth(lambda count: partial(PASSES[name], built(chain, count)), SMALL) < LINEAR


@cache
def built(chain, count):
    return build(CHAINS[chain], count)


@pytest.mark.slow
@pytest.mark.parametrize("name", PASSES)
def test_value_with_thousands_of_readers_takes_linear_work(name):
    assert growth(lambda count: partial(PASSES[name], fan(count)), SMALL) < LINEAR


@cache
def fan(count):
    builder = ModelBuilder()
    x = builder.add_input("x", TYPE)
    (y,) = builder.add_operation("TRANSPOSE", (x,), {"perm": (2, 1, 0, 4, 3)})
    return builder.finish([builder.add_operation("CLIP", (y,), {"max": float(number)})[0] for number in range(count)])
