"""Equal filters must score equally: a softmax makes much of a last bit."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

import nnadapter as nna
from tests.models import HEAD, parse


@pytest.mark.parametrize("classes", [10, 1000])
def test_equal_classes_get_equal_scores(classes):
    text = f"""{HEAD}
    g (float[1, 64, 13, 13] x, float[{classes}, 64, 1, 1] w) => (float[1, {classes}, 1, 1] y) {{
        a = Conv(x, w)
        b = Relu(a)
        c = GlobalAveragePool(b)
        y = Softmax<axis = 1>(c)
    }}"""
    model = parse(text)
    weight = model.graph.input.pop()
    model.graph.initializer.append(numpy_helper.from_array(np.full((classes, 64, 1, 1), 0.37, np.float32), weight.name))
    x = np.random.default_rng(0).random((1, 64, 13, 13), np.float32) * 1e7
    with nna.InferenceSession(model, devices="fake_npu") as session:
        (scores,) = session.run(None, {"x": x})
        assert "scoring convolution" in session.report().nodes[0].runs_as
    np.testing.assert_array_equal(scores.ravel(), np.full(classes, np.float32(1 / classes)))
