"""Layers that differ only in weights: one compiled program, cloned with each layer's constants."""

from itertools import pairwise

import numpy as np
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.drivers.fake_npu import LoweringTemplate
from tests.lying_driver import COUNTS
from tests.models import parse
from tests.watching import watched

LAYERS = 4


def layers(*, widths: tuple[int, ...] = (3,) * (LAYERS + 1), scale: float = 0.5):
    """Return a model of device layers separated by Sinh, which rules keep from the device."""
    generator = np.random.default_rng(0)
    lines, weights = [], []
    for number, (before, after) in enumerate(pairwise(widths)):
        values = ", ".join(f"{scale * value:.3f}" for value in generator.normal(size=before * after))
        weights.append(f"float[{before},{after}] w{number} = {{{values}}}")
        lines += [f"m{number} = MatMul (x{number}, w{number})", f"r{number} = Relu (m{number})"]
        lines.append(f"x{number + 1} = Sinh (r{number})")
    last = f"x{len(widths) - 1}"
    return parse(
        f'<ir_version: 10, opset_import: ["" : 17]> layers (float[2,{widths[0]}] x0) => (float[2,{widths[-1]}] {last}) '
        f"<{', '.join(weights)}> {{ {' '.join(lines)} }}"
    )


@pytest.fixture
def compiled():
    """Return a function that counts compilations since now, without clones."""
    before = COUNTS["compile"]
    return lambda: COUNTS["compile"] - before


@pytest.fixture
def templates():
    """Record lowering templates."""
    with watched(LoweringTemplate.__init__, lambda given, _: given["self"]) as found:
        yield found


def run(model, lie="none"):
    feed = {"x0": np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    with nna.InferenceSession(model, devices=("lying", {"switched_off": "SINH", "lie": lie})) as session:
        got = session.run(None, feed)
        again = session.run(None, feed)
        report = session.report()
    for one, other, wanted in zip(got, again, expected, strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(one, other)
    return report


def test_layers_equal_except_for_weights_are_compiled_once(compiled, templates):
    report = run(layers())
    mine = [segment for segment in report.segments if segment.device == "lying"]
    assert [segment.program_of for segment in mine] == [None] + [mine[0].index] * (LAYERS - 1)
    assert (compiled(), len(templates)) == (1, 1)
    assert f"uses the program of segment {mine[0].index}" in str(report)
    assert f"{LAYERS - 1} segments with the program of another segment" in report.to_markdown()
    assert report.to_dict()["segments"][mine[1].index]["program_of"] == mine[0].index


def test_layers_of_other_sizes_are_compiled_separately(compiled):
    report = run(layers(widths=(3, 4, 3, 4, 3)))
    mine = [segment for segment in report.segments if segment.device == "lying"]
    first, second = mine[:2]
    assert [segment.program_of for segment in mine] == [None, None, first.index, second.index]
    assert compiled() == 2


def test_layers_lowered_differently_are_compiled_separately(compiled):
    model = layers()
    for initializer, value in zip(model.graph.initializer, (1, 1, 0, 2), strict=True):
        initializer.CopyFrom(nna_tensor(initializer.name, np.full((3, 3), value, np.float32)))
    for node in model.graph.node:
        if node.op_type == "MatMul":
            node.op_type = "Mul"  # multiplication by ones is bypassed
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 3
    feed = {"x0": np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    with nna.InferenceSession(model, devices=("lying", {"switched_off": "SINH"})) as session:
        np.testing.assert_allclose(session.run(None, feed)[0], expected[0], rtol=1e-5, atol=1e-6)
        mine = [segment for segment in session.report().segments if segment.device == "lying"]
    assert [segment.program_of for segment in mine] == [None, mine[0].index, None, mine[2].index]
    assert compiled() == 2


def nna_tensor(name, array):
    from onnx import numpy_helper

    return numpy_helper.from_array(array, name)


def test_driver_without_cloning_compiles_each_layer(compiled):
    report = run(layers(), lie="binds_nothing")
    assert all(segment.program_of is None for segment in report.segments)
    assert compiled() == LAYERS


@pytest.mark.parametrize(
    ("lie", "words"),
    [("fails_to_bind", "no room for weights"), ("binds_the_same", "returned the program that it should clone")],
)
def test_segment_falls_back_if_cloning_fails(lie, words):
    with pytest.warns(nna.errors.FallbackWarning, match=words):
        report = run(layers(), lie=lie)
    assert sum(segment.device == "lying" for segment in report.segments) == 1
