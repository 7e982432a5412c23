"""Reductions with axes as an attribute: from opset 13 on, the engine's reader expects an input."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime

from nnadapter import InferenceSession
from tests.every import for_every_value


@for_every_value(
    op=("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceProd", "ReduceSumSquare"),
    opset=(11, 13, 17),
    attributes=("axes = [2]", "axes = [-2], keepdims = 0", "axes = [0, 2]", "keepdims = 0"),
    sizes=("N, L", "2, 4"),
)
def test_axes_of_an_attribute_are_reduced(op, opset, attributes, sizes):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}]>
    g (float[{sizes}, 3] x) => (float y) {{ r = {op}<{attributes}>(x)  y = Relu(r) }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    checked = onnx.shape_inference.infer_shapes(model)
    oracle = onnxruntime.InferenceSession(checked.SerializeToString())
    with InferenceSession(checked, devices="openvino") as session:
        for rows, steps in ((1, 1), (3, 2), (2, 4)) if sizes == "N, L" else ((2, 4),):
            feed = {"x": np.random.default_rng(rows).uniform(0.5, 2, (rows, steps, 3)).astype(np.float32)}
            np.testing.assert_allclose(session.run(None, feed)[0], oracle.run(None, feed)[0], rtol=1e-5)
        assert {node.device for node in session.report().nodes} == {"openvino"}
