"""Values whose actual shape differs from the planned one: the run still succeeds."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from onnx import parser

import nnadapter as nna
from nnadapter.errors import ExecutionError, FallbackWarning
from nnadapter.ir import DataType, OperandType
from tests.models import run_whole

MODEL = parser.parse_model(
    """<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[N, 4] x) => (float[a, b] y) {
        p = com.microsoft.Trilu(x)
        q = Neg(p)
        r = Sin(q)
        y = Abs(r)
    }"""
)
FEEDS = [np.arange(rows * 4, dtype=np.float32).reshape(rows, 4) for rows in (2, 1, 3, 1)]
DEVICE = ("fake_npu", {"switched_off": ("SIN",)})
RULES = nna.Rules(pins=(nna.Pin(device="cpu", op_type="Trilu"),))


@pytest.fixture(autouse=True)
def two_rows():
    """Register a kernel with a wrong shape rule (always two rows), which rules keep from running."""
    infer = lambda types, attributes: OperandType(DataType.FLOAT32, (2, 4))  # noqa: E731
    kernel = nna.register_kernel("fake_npu", "Trilu", np.negative, domain="com.microsoft", infer=infer)
    yield
    nna.unregister_kernel(kernel)


def session(fallback, *devices):
    return nna.InferenceSession(MODEL, devices=[DEVICE, *devices], options=nna.Options(fallback=fallback, rules=RULES))


def test_unexpected_shape_falls_back_to_the_cpu():
    with session("allow") as opened:
        for x in FEEDS:
            (y,) = opened.run(None, {"x": x})
            np.testing.assert_allclose(y, run_whole(MODEL, {"x": x})[0], rtol=1e-6)
            assert opened.provenance.fell_back == (len(x) != 2)
            assert any("'p'" in note for note in opened.report().notes) == (len(x) != 2)


def test_unexpected_shape_warns_once_per_input_shapes():
    with session("warn") as opened:
        with pytest.warns(
            FallbackWarning, match=r"'p' is float32\[1, 4\], but the plan expects float32\[2, 4\].*the CPU"
        ):
            opened.run(None, {"x": FEEDS[1]})
        assert [step.device for step in opened.provenance.steps] == ["cpu"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            opened.run(None, {"x": FEEDS[3]})


def test_forbidden_fallback_makes_unexpected_shapes_an_error():
    with (
        session("forbid", "cpu") as opened,
        pytest.raises(
            ExecutionError, match=r"'p' is float32\[1, 4\], but the plan expects float32\[2, 4\].*fallback is forbidden"
        ),
    ):
        opened.run(None, {"x": FEEDS[1]})


def test_model_errors_do_not_cause_fallback():
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 17]> g (float[4] x, int64[1] i) => (float[1] y) {
            a = Neg(x)
            b = Sin(a)
            y = Gather(b, i)
        }"""
    )
    off = ("fake_npu", {"switched_off": ("SIN", "GATHER")})
    with nna.InferenceSession(model, devices=off) as opened:
        with pytest.raises(nna.errors.NNAdapterError, match="indices element out of data bounds"):
            opened.run(None, {"x": FEEDS[1][0], "i": np.array([9])})
        opened.run(None, {"x": FEEDS[1][0], "i": np.array([2])})
        assert not opened.provenance.fell_back
