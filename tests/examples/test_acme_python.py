"""The example driver in Python: small, and right."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.drivers import registry
from tests.models import numbers, parse

DRIVER = Path(__file__).parents[2] / "examples" / "drivers" / "acme_python"
HEAD = '<ir_version: 10, opset_import: ["" : 17]>'
CONVOLUTIONS = [
    "",
    "<pads = [1, 2, 0, 1], strides = [2, 1]>",
    "<dilations = [2, 1], pads = [2, 1, 2, 1]>",
    "<group = 2>",
]


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory):
    """The package and its entry point, as pip leaves them."""
    site = tmp_path_factory.mktemp("acme")
    info = site / "acme_python-1.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-python\nVersion: 1.0.0\n")
    points = (DRIVER / "pyproject.toml").read_text().split('[project.entry-points."nnadapter.drivers"]\n')[1]
    (info / "entry_points.txt").write_text(f"[nnadapter.drivers]\n{points.splitlines()[0].replace(chr(34), '')}\n")
    sys.path[:0] = [str(site), str(DRIVER)]
    registry.refresh()
    yield
    sys.path.remove(str(site))
    sys.path.remove(str(DRIVER))
    registry.refresh()


def test_a_driver_is_small():
    assert sum(len(path.read_text().splitlines()) for path in (DRIVER / "acme_python").glob("*.py")) < 150


@pytest.mark.parametrize("attributes", CONVOLUTIONS)
def test_convolutions(attributes):
    group = 2 if "group" in attributes else 1
    model = parse(f"{HEAD} g (float[2, 4, 7, 6] x, float[6, {4 // group}, 3, 2] w, float[6] b) => (float[n, c, h, l] y)"
                  f" {{ y = Conv {attributes} (x, w, b) }}")  # fmt: skip
    feed = {"x": numbers(2, 4, 7, 6), "w": numbers(6, 4 // group, 3, 2, seed=1), "b": numbers(6, seed=2)}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    with nna.InferenceSession(model, devices="acme_python", options=nna.Options(fallback="forbid")) as session:
        np.testing.assert_allclose(session.run(None, feed)[0], expected[0], rtol=1e-4, atol=1e-5)


def test_what_it_lacks_runs_on_the_cpu():
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
