"""The model of `chaos.py`, its feeds, and what is right: computed by ONNX Runtime alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx.parser

import nnadapter as nna

_TEXT = """<ir_version: 8, opset_import: ["": 17]>
chaos (float[8, 16] x) => (float[8, 16] y, float[8, 16] z) <float[16, 16] w = {VALUES}> {
    [n0] a = MatMul(x, w)
    [n1] b = Relu(a)
    [n2] c = Add(b, x)
    [n3] d = MatMul(c, w)
    [n4] e = Relu(d)
    [n5] f = Add(e, c)
    [n6] y = MatMul(f, w)
    [n7] z = Relu(f)
}"""
NODES = 8


def model() -> onnx.ModelProto:
    """Two blocks and an end, of operations that every device takes."""
    values = np.random.default_rng(1).standard_normal(256) / 8
    return onnx.parser.parse_model(_TEXT.replace("VALUES", ", ".join(f"{value:.6f}" for value in values)))


def feeds(count: int) -> list[dict[str, np.ndarray]]:
    """Different feeds, the same ones each time."""
    random = np.random.default_rng(2)
    return [{"x": random.standard_normal((8, 16), np.float32)} for _ in range(count)]


def right(fed: Sequence[dict[str, np.ndarray]]) -> list[list[np.ndarray]]:
    """The results."""
    with nna.InferenceSession(model(), devices="cpu") as session:
        return [session.run(None, feed) for feed in fed]


def are_right(results: Sequence[np.ndarray], expected: Sequence[np.ndarray], tolerance: float) -> bool:
    """Whether results are what they should be, as far as the precision of the devices goes."""
    return len(results) == len(expected) and all(
        got.shape == wanted.shape and np.allclose(got, wanted, rtol=tolerance, atol=tolerance)
        for got, wanted in zip(results, expected, strict=True)
    )
