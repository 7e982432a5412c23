"""Simulated clock, compared with hand-computed times and the schema's FLOPs."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers.capability import flaw
from nnadapter.drivers.fake_npu import instruction_flops, lower, simulated_profile, simulated_seconds
from nnadapter.errors import InvalidOptionError
from nnadapter.ir import schema_of
from tests.ir.passes.program import Program, random
from tests.models import CHAIN, parse

LIMITS = {"peak_gflops": 1.0, "bandwidth_gbs": 1.0, "launch_us": 100.0, "transfer_gbs": 1.0}


def products(model):
    """Return the FLOPs that the clock counts, without copies and transposes."""
    graph = lower(model).graph
    flops = 0.0
    for instruction in graph.instructions:
        types = [[graph.tensors[index].type for index in group] for group in (instruction.inputs, instruction.outputs)]
        if instruction.kernel not in ("transpose", "copy"):
            flops += instruction_flops(instruction, *types)
    return flops


def declared(model):
    return sum(
        schema_of(operation.type).flops(
            [model.type_of(index) for index in operation.inputs],
            [model.operands[index].type for index in operation.outputs],
            operation.attributes,
        )
        for operation in model.operations
    )


@pytest.mark.parametrize(
    ("type_", "x", "weight", "attributes"),
    [
        ("CONV_2D", (1, 6, 9, 7), (8, 6, 1, 1), {}),
        ("CONV_2D", (2, 6, 9, 7), (8, 6, 5, 3), {"strides": (2, 1), "pads": (1, 1, 1, 1)}),
        ("CONV_2D", (1, 6, 9, 7), (6, 3, 3, 3), {"group": 2, "strides": (2, 2)}),
        ("CONV_2D", (1, 32, 9, 7), (32, 1, 3, 3), {"group": 32}),
        ("CONV_2D_TRANSPOSE", (1, 6, 5, 4), (6, 8, 3, 3), {}),
        ("CONV_3D", (1, 4, 5, 6, 7), (6, 4, 3, 3, 3), {}),
        ("CONV_3D_TRANSPOSE", (1, 4, 5, 6, 7), (4, 6, 3, 3, 3), {}),
        ("MAT_MUL", (3, 4, 5), (5, 6), {}),
    ],
)
def test_flops_equal_the_schema(type_, x, weight, attributes):
    program = Program(x=x)
    model = program.finish(program(type_, program.x, random(1, *weight), **attributes))
    assert products(model) == pytest.approx(declared(model), rel=0.02)


def test_simulated_seconds_equal_a_manual_calculation():
    program = Program(x=(4, 8))
    model = program.finish(program("NEG", program.x))
    graph = lower(model).graph
    nbytes = 4 * 32
    expected = 100e-6 + 2 * 10e-6 + 2 * nbytes / 1e9 + 1e-6 + 2 * nbytes / 1e9
    profile = simulated_profile(**LIMITS, half_precision=False)
    assert simulated_seconds(graph, profile) == pytest.approx(expected)
    assert not flaw(profile) and profile.simulated
    assert simulated_profile(**LIMITS, half_precision=True).peak_flops == 2 * profile.peak_flops


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["real", "simulated"])
def test_report_has_simulated_time_if_enabled(clock):
    x = np.ones((2, 3), np.float32)
    with nna.InferenceSession(parse(CHAIN), devices=("fake_npu", {"clock": clock})) as session:
        session.run(None, {"x": x})
        (segment,) = session.report().segments
    assert segment.seconds is not None
    assert ("simulated_us" in segment.facts) is (clock == "simulated")
    if clock == "simulated":
        assert 120.0 < segment.facts["simulated_us"] < 130.0  # launch, two tensors, and some instructions of 1 us


def test_limits_are_finite():
    with pytest.raises(InvalidOptionError, match="'peak_gflops' of device 'fake_npu' is nan"):
        nna.InferenceSession(parse(CHAIN), devices=("fake_npu", {"clock": "simulated", "peak_gflops": "nan"}))
    with pytest.raises(InvalidOptionError, match="is at least 0.001"):
        nna.InferenceSession(parse(CHAIN), devices=("fake_npu", {"bandwidth_gbs": 0}))
