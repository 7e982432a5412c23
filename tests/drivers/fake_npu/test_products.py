"""Whether the products of a program are small."""

from __future__ import annotations

import pytest

from nnadapter.drivers.fake_npu.binding import Binding, Frame
from nnadapter.drivers.fake_npu.lowering import lower
from nnadapter.drivers.fake_npu.memory import plan_memory
from tests.ir.passes.program import Program, random


def has_small_products(program, result) -> bool:
    graph = lower(program.finish(result)).graph
    return Binding(Frame.of(graph, plan_memory(graph))).has_small_products()


@pytest.mark.parametrize(
    ("type_", "x", "weight", "are_small"),
    [
        ("MAT_MUL", (64, 64), (64, 64), False),  # nobody is woken
        ("MAT_MUL", (128, 128), (128, 128), True),
        ("MAT_MUL", (1024, 1024), (1024, 1024), False),  # much arithmetic
        ("MAT_MUL", (1, 2048), (2048, 2048), False),  # much to read
        ("CONV_2D", (1, 16, 24, 24), (32, 16, 3, 3), True),
        ("CONV_2D", (1, 64, 128, 128), (64, 64, 3, 3), False),
        ("CONV_2D", (1, 32, 9, 7), (32, 1, 3, 3), False),  # each channel by itself: no product of BLAS
    ],
)
def test_one_thread_is_enough_for_small_products(type_, x, weight, are_small):
    program = Program(x=x)
    attributes = {"group": 32} if weight[1] == 1 else {}
    result = program(type_, program.x, random(1, *weight), **attributes)
    assert has_small_products(program, result) == are_small


def test_where_there_are_none_they_are_not_small():
    program = Program(x=(64, 64))
    assert not has_small_products(program, program("RELU", program.x))
