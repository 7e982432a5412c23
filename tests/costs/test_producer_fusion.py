"""Producer fusion, in small programs and by manual counts."""

from __future__ import annotations

import numpy as np

from nnadapter.costs import (
    CLASSES,
    DeviceCosts,
    Kind,
    Line,
    OperationClass,
    Reading,
    Source,
    UnitWork,
    layout_changes,
    producers_of,
    work_of,
)
from tests.costs.test_roofline import PROFILE
from tests.ir.passes.program import Program, random

CONVOLUTION, LIGHT, MOVEMENT = OperationClass.CONVOLUTION, OperationClass.ELEMENTWISE, OperationClass.MOVEMENT


def behind(program, *outputs):
    works = work_of(program.finish(*outputs))
    return [work.kind.producer_class for work in works if work.kind.operation_class is not OperationClass.LAYOUT]


def test_sums_and_activations_fuse_with_a_convolution():
    program = Program(x=(1, 4, 5, 5))
    result = program("CONV_2D", program.x, random(1, 4, 4, 3, 3), pads=(1, 1, 1, 1))
    joined = program("RELU", program("ADD", result, program.x))
    assert behind(program, program("TANH", joined)) == [None, CONVOLUTION, CONVOLUTION, CONVOLUTION]


def test_shared_values_prevent_fusion():
    program = Program(x=(1, 4, 5, 5))
    result = program("CONV_2D", program.x, random(1, 4, 4, 3, 3), pads=(1, 1, 1, 1))
    pooled = program("TRANSPOSE", result, perm=(0, 1, 3, 2))
    assert behind(program, program("RELU", result), pooled) == [None, None, None]
    program = Program(x=(1, 4, 5, 5))
    result = program("CONV_2D", program.x, random(1, 4, 4, 3, 3), pads=(1, 1, 1, 1))
    assert behind(program, program("RELU", result), result) == [None, None], "an output of the model is written anyway"


def test_product_is_preferred_as_producer():
    classes = [LIGHT, CONVOLUTION, LIGHT]
    assert producers_of(classes, [Reading(2, 0, True, 0), Reading(2, 1, True, 1)]) == [None, None, CONVOLUTION]
    assert producers_of(classes, [Reading(2, 0, True, 0), Reading(2, 1, False, 1)]) == [None, None, LIGHT]
    assert producers_of([MOVEMENT, LIGHT], [Reading(1, 0, True, 0)]) == [None, None]


def test_broadcast_of_computed_value_does_not_fuse():
    classes = [CONVOLUTION, OperationClass.REDUCTION, LIGHT]
    assert producers_of(classes, [Reading(1, 0, False, 0), Reading(2, 0, True, 0), Reading(2, 1, False, 1)])[2] is None


def test_layouts_change_between_convolutions_and_other_operations():
    classes = [CONVOLUTION, LIGHT, MOVEMENT, CONVOLUTION, OperationClass.REDUCTION]
    readings = [Reading(number + 1, number, True, number) for number in range(4)]
    changes = layout_changes(classes, producers_of(classes, readings), readings)
    assert [(change.producer, change.consumer) for change in changes] == [(1, 2), (2, 3)], (
        "sums take a picture as it is"
    )
    twice = [Reading(1, 0, True, 0), Reading(2, 0, True, 0)]
    assert len(layout_changes([CONVOLUTION, MOVEMENT, MOVEMENT], [None] * 3, twice)) == 1


def test_line_of_fused_class_is_used_for_fused_operations():
    def line(seconds):
        return Line(seconds=seconds, seconds_per_flop=0.0, seconds_per_byte=0.0, error=0.0)

    costs = DeviceCosts(
        source=Source.CALIBRATED,
        profile=PROFILE,
        lines={LIGHT: line(3.0)},
        fused_lines={CONVOLUTION: {LIGHT: line(1.0)}},
    )
    light, convolution = CLASSES.index(LIGHT), CLASSES.index(CONVOLUTION)
    nothing = np.zeros(3)
    behind = np.array([-1, convolution, light])
    work = UnitWork(
        flops=nothing, nbytes=nothing, classes=np.full(3, light), dtypes=np.zeros(3, int), producer_classes=behind
    )
    np.testing.assert_array_equal(costs.seconds(work, ("float32",)), [3.0, 1.0, 3.0])
    assert str(Kind(LIGHT, CONVOLUTION)) == "elementwise after convolution"
