from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers.openvino import read
from tests.models import parse, run_whole

SPECIAL = np.array([0, -0.0, 1, -1, 2.5, np.nan, np.inf, -np.inf, 3e38, 1e-30], np.float32)


def compared(op_type, dtype, other="float[m] x"):
    return parse(f"""<ir_version: 10, opset_import: ["" : 17]> g
    ({dtype}[n, 1] z, {other}) => (bool[n, m] y, bool[n, m] no) {{
        y = {op_type} (z, x) no = Not (y)
    }}""")


@pytest.mark.parametrize("op_type", ["Greater", "GreaterOrEqual"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_comparisons_with_nan_are_false(op_type, dtype):
    name = {np.float32: "float", np.float16: "float16"}[dtype]
    model = compared(op_type, name, f"{name}[m] x")
    with np.errstate(over="ignore"):
        feed = {"z": SPECIAL.astype(dtype)[:, None], "x": SPECIAL.astype(dtype)}
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="allow")) as session:
        for rows in (len(SPECIAL), 3, 1):
            part = {"z": feed["z"][:rows], "x": feed["x"]}
            for got, expected in zip(session.run(None, part), run_whole(model, part), strict=True):
                np.testing.assert_array_equal(got, expected)
        (node,) = (node for node in session.report().nodes if node.op_type == op_type)
    assert node.device == "openvino" or dtype is np.float16  # the engine has few float16 ops with dynamic shapes


def test_integer_comparisons_are_unchanged():
    model = compared("Greater", "int8", "int8[m] x")
    assert "Greater" in {operator.get_type_name() for operator in read(model).get_ordered_ops()}
    real = compared("Greater", "float")
    assert {operator.get_type_name() for operator in read(real).get_ordered_ops()}.isdisjoint({"Greater"})
