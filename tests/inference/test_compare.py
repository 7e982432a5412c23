"""`nna.compare` with outputs of every type."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

import nnadapter as nna
from tests.models import HEAD, parse

NEWER = HEAD.replace("17", "21")
FEED = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}


def test_sequences_of_different_shapes():
    text = f"""{HEAD} g (float[2, 4] x) => (seq(float[2, N]) y) {{
        a = Relu(x)
        b = Concat<axis = 1>(a, x)
        y = SequenceConstruct(a, b)
    }}"""
    report = nna.compare(parse(text), "fake_npu", FEED)
    (output,) = report.differences
    assert report.agrees and (output.dtype, output.shape) == ("sequence", (2,))


def test_large_integers_that_differ_by_one():
    text = f"{HEAD} g (int64[2] x) => (int64[2] y) {{ y = Neg(x) }}"
    report = nna.compare(parse(text), ("trial", {"fault": "step"}), {"x": np.array([2**60, 1])})
    assert not report.agrees and report.differences[0].beyond == 2


@pytest.mark.filterwarnings("ignore::nnadapter.errors.FallbackWarning")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("float8e4m3fn", ml_dtypes.float8_e4m3fn),
        ("float8e5m2", ml_dtypes.float8_e5m2),
        ("bfloat16", ml_dtypes.bfloat16),
        ("int4", ml_dtypes.int4),
        ("uint4", ml_dtypes.uint4),
    ],
)
def test_types_that_onnx_runtime_cannot_return(name, dtype):
    code = onnx.TensorProto.DataType.Value(name.upper())
    text = f"{NEWER} g (float[2, 4] x) => ({name}[2, 4] y) {{ a = Abs(x)  y = Cast<to = {code}>(a) }}"
    report = nna.compare(parse(text), "fake_npu", FEED)
    assert report.agrees and report.differences[0].dtype == np.dtype(dtype).name
    (own,) = nna.InferenceSession(parse(text), devices="cpu").run(None, FEED)
    expected = FEED["x"].astype(dtype)
    assert own.dtype == (np.uint8 if name == "float8e4m3fn" else dtype)  # onnxruntime returns uint8
    assert own.tobytes() == expected.tobytes()


def test_duplicate_output():
    model = onnx.parser.parse_model(f"{HEAD} g (float[2] x) => (float[2] y, float[2] y) {{ y = Relu(x) }}")
    report = nna.compare(model, "fake_npu", {"x": np.float32([1, -1])})
    assert report.agrees and len(report.differences) == 2


def test_plan_cache_notes_are_no_failures(tmp_path):
    model = parse(f"{HEAD} g (float[2, 4] x) => (float[2, 4] y) {{ y = Relu(x) }}")
    for _ in range(2):
        report = nna.compare(model, "fake_npu", FEED, options=nna.Options(cache_dir=tmp_path))
        assert report.agrees and report.failures == ()


def test_strings_are_compared_and_must_be_fed():
    model = parse(
        f"{HEAD} g (float[2, 4] x, string[2] s) => (float[2, 4] y, string[2] t) {{ y = Relu(x) t = Identity(s) }}"
    )
    report = nna.compare(model, "fake_npu", {**FEED, "s": np.array(["a", "b"])})
    assert report.agrees and "t string[2]: agrees" in str(report)
    with pytest.raises(nna.errors.InvalidInputError, match=r"input 's' is string, .* --input s=FILE\.npy"):
        nna.compare(model, "fake_npu")
