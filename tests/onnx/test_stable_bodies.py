"""Function bodies that replace ONNX's numerically poor ones."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from tests.models import parse

VALUES = np.concatenate([np.linspace(-140, 140, 500), np.linspace(-20, 5, 500)]).astype(np.float32)


@pytest.mark.parametrize("opset", [8, 13, 18, 22])
@pytest.mark.parametrize("rows", ["1000", "n"])
def test_softplus_is_exact_on_devices_without_it(opset, rows):
    pytest.importorskip("openvino")
    model = parse(f"""<ir_version: 9, opset_import: ["" : {opset}]> g (float[{rows}] x) => (float[{rows}] y)
        {{ y = Softplus (x) }}""")
    with nna.InferenceSession(model, devices="openvino") as session:
        for _ in range(2):
            (y,) = session.run(None, {"x": VALUES})
        assert [segment.device for segment in session.report().segments] == ["openvino"]
    np.testing.assert_allclose(y, np.logaddexp(0, VALUES.astype(np.float64)), rtol=1e-6, atol=6e-7)
