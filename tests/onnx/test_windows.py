"""Windows larger than their input. ONNX Runtime is the oracle, except where it adds a window too many."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from nnadapter.onnx import read_node
from nnadapter.onnx.preparation import fits_windows, moves_windows
from tests.every import for_every_pair

OPS = {
    "MaxPool": "",
    "AveragePool": "",
    "LpPool": "",
    "Conv": ", w",
}


@pytest.mark.slow
@for_every_pair(op_type=OPS, kernel=(1, 2, 3, 5), dilation=(1, 2), pads=((0, 0), (0, 1), (1, 1)), size=(1, 2, 3, 4, 6))
def test_window_fits_if_onnx_runtime_computes_one(op_type, kernel, dilation, pads, size):
    if op_type != "Conv" and max(pads) >= kernel:
        return  # ONNX Runtime refuses such pooling
    attributes = f"kernel_shape = [{kernel}, 1], pads = [{pads[0]}, 0, {pads[1]}, 0], dilations = [{dilation}, 1]"
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 19]> g (float[1, 1, {size}, 6] x) => (y)
    <float[1, 1, {kernel}, 1] w = {{{", ".join("1" * kernel)}}}> {{
        y = {op_type}<{attributes}>(x{OPS[op_type]})
    }}""")
    node = read_node(model.graph.node[0], "y", 19)
    assert moves_windows(node)
    fits = fits_windows(node, [(1, 1, size, 6), (1, 1, kernel, 1)])
    try:
        (result,) = onnxruntime.InferenceSession(model.SerializeToString()).run(
            None, {"x": np.ones((1, 1, size, 6), np.float32)}
        )
    except Exception:  # noqa: BLE001  any error of ONNX Runtime means that no window fits
        assert not fits
    else:
        assert fits == (result.size > 0)


def test_auto_padded_windows_fit():
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 19]> g (float[1, 1, 2] x) => (y) {
        y = MaxPool<kernel_shape = [5], auto_pad = "SAME_UPPER">(x)
    }""")
    node = read_node(model.graph.node[0], "y", 19)
    assert fits_windows(node, [(1, 1, 2)])


def test_other_ops_have_no_windows():
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 19]> g (float[2] x) => (y) { y = Relu(x) }""")
    assert not moves_windows(read_node(model.graph.node[0], "y", 14))
