"""onnx's operator tests on openvino alone.

Every twentieth case always runs; all of them run with `-m sweep`.
"""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from nnadapter.errors import NNAdapterError
from tests.drivers.openvino.harness import computed, context

HALF = "ONNX's own numbers are rounded to half precision at every step, the engine's only in the end"
EXCLUDED = {"test_attention_4d_causal_fp16_expanded": HALF}
SAME = "as without"
LEAST_TAKEN = {20: 20, 1: 450}
"""Least number of accepted cases per stride, so that the test cannot become empty."""


@pytest.fixture(scope="module")
def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_model_tests(kind="node")


def baked(model: onnx.ModelProto, values) -> tuple[onnx.ModelProto, list]:
    """Return the model with small floats and later integer inputs as constants, and the remaining inputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.input[:]
    remaining = []
    for position, (info, value) in enumerate(zip(model.graph.input, values, strict=False)):
        if position and isinstance(value, np.ndarray) and (value.dtype == np.int64 or value.size <= 8):
            copy.graph.initializer.append(numpy_helper.from_array(value, info.name))
        else:
            copy.graph.input.append(info)
            remaining.append(value)
    return copy, remaining


def array_of(value):
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def outcome(opened, case, bake):
    """Describe how results differ; None if a node is refused, `SAME` if nothing becomes constant."""
    inputs, outputs = (list(map(array_of, values)) for values in case.data_sets[0])
    model, feeds = baked(case.model, inputs) if bake else (case.model, inputs)
    if bake and len(feeds) == len(inputs):
        return SAME
    if len(feeds) != len(model.graph.input) or not all(opened.supported(model)):
        return None
    try:
        Runner.assert_similar_outputs(outputs, computed(opened, model, feeds), case.rtol, case.atol)
    except (AssertionError, NNAdapterError) as error:
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return ""


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.sweep), 20])
def test_accepted_cases_are_right(cases, every, capsys):
    """Some inputs are usually constants, so the cases also run with these as constants."""
    opened = context(threads=1)
    plain = {case.name: outcome(opened, case, bake=False) for case in cases[::every]}
    constant = {case.name: outcome(opened, case, bake=True) for case in cases[::every]}
    for outcomes in plain, {name: plain[name] if reason is SAME else reason for name, reason in constant.items()}:
        accepted = {name: reason for name, reason in outcomes.items() if reason is not None}
        with capsys.disabled():
            print(f"openvino takes {len(accepted)} of {len(outcomes)} node tests as a whole")
        assert {name: reason for name, reason in accepted.items() if reason and name not in EXCLUDED} == {}
        assert len(accepted) >= LEAST_TAKEN[every]
