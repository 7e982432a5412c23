"""ONNX's own operator tests, except the ones of several nodes or of other values than dense tensors."""

import warnings

import numpy as np
import pytest

from nnadapter.drivers import Reason, Unsupported
from nnadapter.ir import verify
from nnadapter.ir.definition import by_definition
from tests.converters.single_node import convert

_DIFFERENT = {
    # ONNX's data divide by the scaled length, ONNX Runtime and PyTorch by the actual number of elements.
    "test_resize_downsample_scales_linear_align_corners",
}
_ROUNDED_BETWEEN = {
    # ONNX's data are rounded to bfloat16 after every step, ours once.
    f"test_attention_{name}_bf16"
    for name in ("3d_causal", "4d_causal", "4d_padded_kv", "4d_causal_padded_kv", "4d_attn_mask_causal")
}


@pytest.fixture(scope="module")
def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return [case for case in load_model_tests(kind="node") if case.model is not None and _is_plain(case)]


def _is_plain(case):
    tensors = [value for values in case.data_sets[0] for value in values]
    return len(case.model.graph.node) == 1 and all(isinstance(value, np.ndarray | np.generic) for value in tensors)


def _converted(case):
    """Convert with all inputs variable; if refused, with all but the first constant; last, with all constant."""
    model, inputs = case.model, [np.asarray(value) for value in case.data_sets[0][0]]
    names = [value.name for value in model.graph.input]
    feeds = dict(zip(names, inputs, strict=True))
    conversion = convert(model)
    if _reason(conversion) is Reason.NOT_CONSTANT:
        conversion = convert(model, {name: feeds[name] for name in names[1:]})
    if _reason(conversion) in (Reason.NOT_CONSTANT, Reason.DATA_DEPENDENT_SHAPE, Reason.DYNAMIC_SHAPE):
        conversion = convert(model, feeds)
    return conversion, feeds


def _reason(conversion):
    verdict = conversion.verdicts[0]
    return verdict.reason if isinstance(verdict, Unsupported) else None


def _agrees(case, conversion, feeds):
    verify(conversion.model)
    model = conversion.model
    results = by_definition(model, [feeds[model.operands[index].name] for index in model.inputs])
    tolerance = 2**-6 if case.name in _ROUNDED_BETWEEN else 1e-3
    return all(
        got.dtype == want.dtype
        and got.shape == want.shape
        and np.allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=1e-5, equal_nan=True)
        for got, want in zip(results, map(np.asarray, case.data_sets[0][1]), strict=True)
    )


@pytest.mark.slow
def test_converted_cases_match_the_data_of_onnx(cases):
    agreeing, differing = set(), set()
    for case in cases:
        conversion, feeds = _converted(case)
        if _reason(conversion) is None:
            (agreeing if _agrees(case, conversion, feeds) else differing).add(case.name)
    assert differing == _DIFFERENT
    assert len(agreeing) > 550


@pytest.mark.slow
def test_no_valid_node_is_called_invalid(cases):
    refused = {case.name: _reason(_converted(case)[0]) for case in cases}
    assert [name for name, reason in refused.items() if reason in (Reason.INVALID_NODE, Reason.NOT_CONSTANT)] == []
