"""Models that compute tables from shapes and scalars, folded in preparation or left to the device."""

import numpy as np
import pytest

import nnadapter as nna
from nnadapter import limits
from nnadapter.candidates import prepare
from nnadapter.converters import OnnxNode, convert_graph
from nnadapter.drivers import Reason
from nnadapter.onnx.preparation import specialize
from partition import Value
from tests.models import HEAD, numbers, parse, run_whole

_TABLES = f"""{HEAD}
g (float[n, 40] x) => (float[n, 40] y, float[n, n] z)
<int64 zero = {{0}}, int64 one = {{1}}, int64 forty = {{40}}> {{
    shape = Shape (x)
    size = Gather <axis = 0> (shape, zero)
    steps = Range (zero, size, one)
    rows = Cast <to = 1> (steps)
    axis = Constant <value_ints = [1]> ()
    column = Unsqueeze (rows, axis)
    added = Add (x, column)
    half = ConstantOfShape <value = float[1] {{0.5}}> (shape)
    window = HannWindow (forty)
    y0 = Mul (added, half)
    y = Mul (y0, window)
    pairs = Einsum <equation = "ij,kj->ik"> (y, x)
    eye = EyeLike (pairs)
    some = Sub (pairs, eye)
    z = Trilu <upper = 0> (some)
}}"""
_MADE = {"Range", "ConstantOfShape", "HannWindow"}


@pytest.fixture(params=[True, False], ids=["folded", "left"])
def folded(request, monkeypatch):
    """Return whether the tables fit the folding limits."""
    if not request.param:
        monkeypatch.setattr(limits, "FOLDED_BYTES_PER_SHAPE", 100)
        monkeypatch.setattr(limits, "FOLDED_BYTES", 100)
    return request.param


def test_tables_are_right_folded_or_not(folded):
    model = parse(_TABLES)
    session = nna.InferenceSession(model, devices="fake_npu", options=nna.Options(fallback="forbid"))
    for rows in (20, 30, 30, 41):
        x = numbers(rows, 40)
        for got, want in zip(session.run(None, {"x": x}), run_whole(model, {"x": x}), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    specialized = specialize(prepare(model), {"x": (20, 40)})
    assert _MADE & {node.op_type for node in specialized.graph.nodes} == (set() if folded else _MADE)


@pytest.mark.parametrize("op_type", ["Shape", "Size"])
def test_shape_of_a_static_input_is_folded(op_type):
    model = parse(f"{HEAD} g (float[2, 3] x) => (int64[n] y) {{ y = Shape(x) }}".replace("Shape", op_type))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = nna.InferenceSession(model, devices="fake_npu", options=nna.Options(fallback="forbid"))
    (got,) = session.run(None, {"x": numbers(2, 3)})
    np.testing.assert_array_equal(got, run_whole(model, {"x": numbers(2, 3)})[0])


def test_table_that_exceeds_memory_is_refused():
    node = OnnxNode("window", "HannWindow", "", 17, ("size",), ("y",))
    values = {"y": Value("y", "float32", (10**12,))}
    verdict = convert_graph([node], values, {"size": np.array(10**12)}, ["y"]).verdicts[0]
    assert verdict.reason is Reason.MEMORY_LIMIT and "at most" in verdict.detail
