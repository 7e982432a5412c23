"""Small models for tests, as ONNX text, and an independent way to run them."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

HEAD = '<ir_version: 10, opset_import: ["" : 17]>'

CHAIN = f"""{HEAD} chain (float[2, 3] x) => (float[2, 3] y) {{
    a = Relu(x)
    b = Neg(a)
    c = Exp(b)
    y = Add(a, c)
}}"""
"""Four nodes, one branch."""

SANDWICH = f"""{HEAD} sandwich (float[N, 4] x) => (float[N, 4] y) {{
    a = Relu(x)
    b = Sin(a)
    c = Neg(b)
    d = Cos(c)
    y = Add(d, a)
}}"""
"""A dynamic dimension, and operations for two devices in turn."""


def parse(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    return model


def exact_options():
    """Return session options with which ONNX Runtime sums integer products without saturation.

    Without VNNI instructions, it otherwise adds two products of uint8 and int8 in 16 bits, which saturates.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    return options


@cache
def largest_int8():
    """Return the largest int8 weight for which ONNX Runtime's uint8 products are exact on this processor.

    Without VNNI, two products are added in 16 bits: two of 255 * 64 fit, two of 255 * 127 do not.
    """
    product = "g (uint8[1,64] a, int8[64,8] b) => (int32[1,8] y) { y = MatMulInteger(a, b) }"
    model = parse(f'<ir_version: 8, opset_import: ["": 13]> {product}')
    feed = {"a": np.full((1, 64), 255, np.uint8), "b": np.full((64, 8), 127, np.int8)}
    (sums,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    return 127 if (sums == 64 * 255 * 127).all() else 64


def run_whole(model: onnx.ModelProto | str, feed, names=None):
    """Run the model on ONNX Runtime without nnadapter."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    source = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run(names, feed)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


OCR_SHAPES = {
    "det": [(1, 3, 320, 320), (1, 3, 384, 640), (1, 3, 64, 96)],
    "rec": [(1, 3, 48, 200), (6, 3, 48, 320), (3, 3, 48, 328), (1, 3, 48, 1000)],
    "cls": [(1, 3, 48, 192), (2, 3, 48, 192), (6, 3, 48, 192)],
}
"""Model kind of RapidOCR -> shapes of its one input, x."""


def ocr_model(kind: str) -> onnx.ModelProto:
    pytest.importorskip("rapidocr")
    return onnx.load(next(path for path in ocr_paths() if kind in path.stem))


def ocr_paths() -> list[Path]:
    """Return the models in RapidOCR, without importing it; none if it is not installed."""
    package = find_spec("rapidocr")
    return sorted(Path(package.submodule_search_locations[0], "models").glob("*.onnx")) if package else []
