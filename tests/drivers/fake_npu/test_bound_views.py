"""Kernels bound before execution must keep views of arrays, never copies."""

from __future__ import annotations

import numpy as np
import pytest

from nnadapter.ir import AttributeValue, ModelBuilder
from nnadapter.ir.definition import by_definition
from tests.drivers.fake_npu.harness import close, floats, run_model, type_of


def after_negation(type_: str, arrays: list[np.ndarray], attributes: dict[str, AttributeValue]) -> None:
    """Check an operation on inputs that the device computes itself."""
    builder = ModelBuilder()
    inputs = [builder.add_input(f"x{index}", type_of(array)) for index, array in enumerate(arrays)]
    computed = [builder.add_operation("NEG", [operand])[0] for operand in inputs]
    outputs = builder.add_operation(type_, computed, attributes)
    model = builder.finish([builder.add_operation("NEG", [operand])[0] for operand in outputs])
    for result, expected in zip(run_model(model, arrays), by_definition(model, arrays), strict=True):
        close(result, expected)


@pytest.mark.parametrize(
    ("type_", "attributes"),
    [
        ("SLICE", {"axes": (), "starts": (), "ends": (), "steps": ()}),
        ("PAD", {"pads": ()}),
        ("PAD", {"pads": (), "mode": "edge"}),
        ("TILE", {"repeats": ()}),
        ("TRANSPOSE", {"perm": ()}),
        ("EXPAND", {"shape": (2, 1)}),
    ],
)
def test_scalars_are_moved(type_: str, attributes: dict[str, AttributeValue]) -> None:
    after_negation(type_, [np.array(1.5, np.float32)], attributes)


@pytest.mark.parametrize("shape", [(2, 3), (3,), (2, 1), (1, 1), (1,), ()])
def test_broadcast_scale_and_bias_are_computed_first(shape: tuple[int, ...]) -> None:
    arrays = [floats(4, 2, 3), floats(*shape, seed=1), floats(*shape, seed=2)]
    after_negation("LAYER_NORMALIZATION", arrays, {"axis": 1})
    after_negation("RMS_NORMALIZATION", arrays[:2], {"axis": 1})
