from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from nnadapter.candidates import prepare
from nnadapter.converters import convert_graph
from nnadapter.ir.definition import by_definition
from nnadapter.ir.passes import PASSES, run_passes
from nnadapter.onnx.preparation import specialize
from tests.ir.passes.program import border, origins, types, verify

SHAPES = {"cls": (1, 3, 48, 192), "det": (1, 3, 96, 128), "rec": (1, 3, 48, 160)}


def converted(path, shape):
    prepared = prepare(onnx.load(path))
    special = specialize(prepared, {prepared.graph.inputs[0]: shape})
    return convert_graph(special.nodes, special.graph.values, special.constants, special.graph.outputs).model


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHAPES)
def test_all_passes_on_ocr_networks(kind):
    rapidocr = pytest.importorskip("rapidocr")
    (path,) = (Path(rapidocr.__file__).parent / "models").glob(f"*_{kind}_*.onnx")
    before = converted(path, SHAPES[kind])
    after = run_passes(before, list(PASSES), lambda name, old, new: verify(new))
    assert border(after) == border(before)
    assert origins(after) == origins(before)
    assert len(after.operations) < len(before.operations) / 2
    assert {"BATCH_NORMALIZATION", "ERF", "CLIP"}.isdisjoint(types(after))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = np.random.default_rng(0).standard_normal(SHAPES[kind]).astype(np.float32)
    (expected,) = session.run(None, {session.get_inputs()[0].name: given})
    np.testing.assert_allclose(by_definition(after, [given])[0], expected, rtol=1e-3, atol=1e-5)
