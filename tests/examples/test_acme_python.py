"""The Python example driver: size and results."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.drivers import registry
from tests.examples.acme_site import DRIVER, acme_python_site
from tests.models import numbers, parse

HEAD = '<ir_version: 10, opset_import: ["" : 17]>'
CONVOLUTIONS = [
    "",
    "<pads = [1, 2, 0, 1], strides = [2, 1]>",
    "<dilations = [2, 1], pads = [2, 1, 2, 1]>",
    "<group = 2>",
]


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        acme_python_site(tmp_path_factory.mktemp("acme"), patch)
        yield
    registry.refresh()


def test_driver_is_at_most_60_lines():
    assert sum(len(path.read_text().splitlines()) for path in (DRIVER / "acme_python").glob("*.py")) <= 60


@pytest.mark.parametrize("attributes", CONVOLUTIONS)
def test_convolutions_equal_onnxruntime(attributes):
    group = 2 if "group" in attributes else 1
    model = parse(f"{HEAD} g (float[2, 4, 7, 6] x, float[6, {4 // group}, 3, 2] w, float[6] b) => (float[n, c, h, l] y)"
                  f" {{ y = Conv {attributes} (x, w, b) }}")  # fmt: skip
    feed = {"x": numbers(2, 4, 7, 6), "w": numbers(6, 4 // group, 3, 2, seed=1), "b": numbers(6, seed=2)}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    with nna.InferenceSession(model, devices="acme_python", options=nna.Options(fallback="forbid")) as session:
        np.testing.assert_allclose(session.run(None, feed)[0], expected[0], rtol=1e-4, atol=1e-5)


def test_missing_kernels_run_on_the_cpu():
    model = parse(f"{HEAD} g (float[2, 3] x, float[4, 3] w, float[4] c) => (float[2, 4] y)"
                  " { a = Gemm <transB = 1> (x, w, c) b = Sin (a) d = Relu (b) y = Sub (d, c) }")  # fmt: skip
    feed = {"x": numbers(2, 3), "w": numbers(4, 3, seed=1), "c": numbers(4, seed=2)}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    with nna.InferenceSession(model, devices="acme_python") as session:
        np.testing.assert_allclose(session.run(None, feed)[0], expected[0], rtol=1e-4, atol=1e-5)
        nodes = {node.op_type: node for node in session.report().nodes}
    assert {kind: node.device for kind, node in nodes.items()} == {
        "Gemm": "acme_python", "Sin": "cpu", "Relu": "acme_python", "Sub": "acme_python"
    }  # fmt: skip
    assert nodes["Sin"].refusals[0].detail == "there is no kernel for SIN"
