"""Entire networks: onnx's own, with reference outputs and with seeded weights, and PP-OCR's three.

The two slowest of onnx's nine run with `-m sweep`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

import nnadapter as nna
from tests.models import ocr_paths, run_whole
from tests.optional import needs

pytestmark = pytest.mark.slow

LONGEST = {"light_vgg19", "light_zfnet512"}
"""Larger variants of light_bvlc_alexnet, with 144 and 87 million weights."""
LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
SEEDED = {"light_resnet50", "light_densenet121", "light_shufflenet"}
"""Networks that also run with random weights in the short form."""


def marked(is_long):
    """Return the networks as parameters, some marked for the long form."""
    names = sorted(path.stem for path in LIGHT.glob("*.onnx"))
    return [pytest.param(net, marks=pytest.mark.sweep if is_long(net) else ()) for net in names]


NETS = marked(LONGEST.__contains__)
OCR = ocr_paths()
OCR_SHAPES = {
    "det": [(1, 3, 160, 224), (1, 3, 96, 320)],
    "rec": [(1, 3, 48, 200), (2, 3, 48, 96)],
    "cls": [(2, 3, 48, 192)],
}


def feed_of(model, random):
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    return {value.name: Runner.generate_dummy_data(value, seed=0, name=value.name, random=random) for value in inputs}


def delegated(source, feed):
    """Return the outputs on fake_npu, checking that one segment has all nodes."""
    options = nna.Options(fallback="forbid")
    with nna.InferenceSession(source, devices="fake_npu", options=options) as session:
        results = session.run(None, feed)
        report = session.report()
    assert [segment.device for segment in report.segments] == ["fake_npu"]
    assert report.coverage.flops == report.coverage.nodes == 1
    return results


def without_softmax(path):
    """Return the network without a final softmax."""
    model = onnx.load(path)
    if model.graph.node[-1].op_type == "Softmax":
        model.graph.output[0].name = model.graph.node.pop().input[0]
        model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.sweep
@pytest.mark.parametrize("net", NETS)
def test_networks_equal_reference_outputs(net):
    """Compare scores before the softmax: equal weights make classes tie, so a rounding error would pick a winner."""
    model = without_softmax(LIGHT / f"{net}.onnx")
    feed = feed_of(model, random=False)
    (scores,), (expected,) = delegated(model, feed), run_whole(model, feed)
    np.testing.assert_allclose(scores, expected, rtol=1e-4)
    reference = numpy_helper.to_array(onnx.load_tensor(str(LIGHT / f"{net}_output_0.pb")))
    np.testing.assert_allclose(reference, reference.flat[0], rtol=1e-5)
    np.testing.assert_allclose(scores, scores.flat[0], rtol=1e-5)


@cache
def seeded(net):
    """Return the network with random weights, scaled so that activations keep their magnitude."""
    model = onnx.load(LIGHT / f"{net}.onnx")
    generator = np.random.default_rng(0)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    made = {node.output[0]: shapes[node.input[0]] for node in model.graph.node if node.op_type == "ConstantOfShape"}
    positive = {node.input[4] for node in model.graph.node if node.op_type == "BatchNormalization"}
    kept = [node for node in model.graph.node if node.op_type != "ConstantOfShape"]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    model.ir_version = 10
    for name, shape in made.items():
        values = generator.standard_normal(tuple(shape)).astype(np.float32)
        fan_in = float(np.prod(shape[1:])) if len(shape) > 1 else 1.0
        scaled = (
            np.abs(values) + 0.5
            if name in positive
            else values * np.float32((2.0 / fan_in) ** 0.5 if len(shape) > 1 else 0.3)
        )
        model.graph.initializer.append(numpy_helper.from_array(scaled.astype(np.float32), name))
    return model


@pytest.mark.sweep
@pytest.mark.parametrize("net", marked(lambda net: net not in SEEDED))
def test_seeded_weights_equal_onnxruntime(net):
    model = seeded(net)
    names = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    feed = feed_of(model, random=True)
    (expected,) = run_whole(model, feed)
    assert np.unique(expected).size > expected.size // 2, "the weights tell the classes apart"
    (result,) = delegated(model, feed)
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-6)


@needs("rapidocr")
@pytest.mark.parametrize("path", OCR, ids=lambda path: path.stem)
def test_ocr_models_run_entirely_on_the_device(path):
    kind = next(kind for kind in OCR_SHAPES if kind in path.stem)
    for shape in OCR_SHAPES[kind]:
        feed = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
        (result,), (expected,) = delegated(path, feed), run_whole(str(path), feed)
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.sweep if path.stem in LONGEST else ())
        for path in [*OCR, *sorted(LIGHT.glob("*.onnx"))]
    ],
    ids=lambda path: path.stem,
)
def test_cpu_results_are_bit_equal_to_onnxruntime(path):
    model = onnx.load(path)
    kind = next((kind for kind in OCR_SHAPES if kind in path.stem), None)
    feed = (
        feed_of(model, random=True)
        if kind is None
        else {"x": np.random.default_rng(0).random(OCR_SHAPES[kind][0], np.float32)}
    )
    with nna.InferenceSession(path, devices="cpu") as session:
        results = session.run(None, feed)
    import onnxruntime

    expected = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feed)
    assert all(np.array_equal(result, array) for result, array in zip(results, expected, strict=True))
