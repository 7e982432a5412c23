"""Acceptance of a model's results from another runtime."""

from __future__ import annotations

import numpy as np
import pytest

from nnadapter.ir import DataType, ModelBuilder, OperandType
from nnadapter.testing import Precision
from nnadapter.testing.subjects import by_band


def softmax(x):
    powers = np.exp(x - x.max())
    return (powers / powers.sum()).astype(np.float32)


@pytest.mark.parametrize(("precision", "dtype"), [(Precision.FLOAT16, "float16"), (Precision.BFLOAT16, "bfloat16")])
def test_results_of_rounded_inputs_pass_in_half_precision(precision, dtype):
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (4,)))
    model = builder.finish(builder.add_operation("SOFTMAX", [x], {"axis": 0}))
    feed = np.float32([10000, 10001, 10002, 10003])
    rounded = softmax(feed.astype(DataType(dtype).array_type).astype(np.float32))
    for held_to, fine in ((precision, True), (Precision.FLOAT32, False)):
        differ = by_band(model, ["SOFTMAX"], [feed], [softmax(feed)], held_to).differ
        assert differ([softmax(feed)]) == "" and (differ([rounded]) == "") is fine
    assert "expected 0.03" in by_band(model, ["SOFTMAX"], [feed], [softmax(feed)], precision).differ(
        [rounded[::-1] / 2]
    )
