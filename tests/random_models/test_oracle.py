"""Tolerances of the oracle: correct float32 results pass, wrong ones do not."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from nnadapter.exporting import export_model
from nnadapter.ir import DataType, ModelBuilder, OperandType
from nnadapter.testing.random_models import check

ATTRIBUTES = {
    "DFT": {"axis": 1, "length": 3, "inverse": False, "onesided": False},
    "STFT": {"frame_step": 1, "frame_length": 3, "onesided": True},
}


@pytest.mark.parametrize("type_", ATTRIBUTES)
def test_tolerance_of_transforms_scales_with_their_sums(type_):
    # ONNX Runtime transforms three numbers as part of eight and back, which turns 0 into 0.1.
    builder = ModelBuilder()
    signal = builder.add_input("signal", OperandType(DataType.FLOAT32, (2, 5 if type_ == "STFT" else 3, 1)))
    model = builder.finish(builder.add_operation(type_, [signal], ATTRIBUTES[type_]))
    feed = (1e6 * np.random.default_rng(0).random(model.operands[0].type.dimensions)).astype(np.float32)
    session = onnxruntime.InferenceSession(
        export_model(model).model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    [got] = session.run(None, {"signal": feed})
    check(model, [feed], [got])
    with pytest.raises(AssertionError, match="elements are off"):
        check(model, [feed], [got + np.float32(20)])


@pytest.mark.parametrize("precision", [DataType.FLOAT16, DataType.BFLOAT16])
def test_tolerance_depends_on_the_precision_of_the_device(precision):
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (64,)))
    model = builder.finish(builder.add_operation("MUL", [x, x], {}))
    feed = np.random.default_rng(0).uniform(1, 2, 64).astype(np.float32)
    rounded = feed.astype(precision.array_type)
    got = (rounded * rounded).astype(np.float32)
    check(model, [feed], [got], precision=precision)
    with pytest.raises(AssertionError, match="elements are off"):
        check(model, [feed], [got])
    with pytest.raises(AssertionError, match="elements are off"):
        check(model, [feed], [got * np.float32(1.25)], precision=precision)
