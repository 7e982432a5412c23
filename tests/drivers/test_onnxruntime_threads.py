"""Threads of CPU segments: only segments that gain get them, up to a limit."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import nnadapter as nna
from nnadapter.drivers.onnxruntime import open_session, program, threads_gain
from tests.models import numbers
from tests.watching import watched

HEAD = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>'
RULES = '[[pin]]\ndevice = "cpu"\nop_type = "Conv"\n[[pin]]\ndevice = "fake_npu"\nop_type = "Neg"'


def convolution(channels):
    return f"g (float[1, {channels}, 28, 28] x, float[{channels}, {channels}, 3, 3] w) => (float[1, {channels}, 28, 28] y) {{ y = Conv <pads = [1, 1, 1, 1]> (x, w) }}"  # noqa: E501


def with_weights(text, **dimensions):
    model = parser.parse_model(f"{HEAD} {text}")
    weights = [value for value in model.graph.input if value.name in dimensions]
    for value in weights:
        model.graph.input.remove(value)
    for name, dims in dimensions.items():
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(dims, np.float32), name))
    return model


@pytest.mark.parametrize(
    ("text", "weights", "gain"),
    [
        ("g (float[4096] x) => (float[4096] y) { y = Erf(x) }", {}, False),
        ("g (float[1048576] x) => (float[1048576] y) { y = Erf(x) }", {}, True),
        ("g (float[1048576] x) => (float[1024, 1024] y) { s = Constant <value_ints = [1024, 1024]> () y = Reshape(x, s) }", {}, False),  # noqa: E501
        (convolution(8), {"w": (8, 8, 3, 3)}, False),
        (convolution(64), {"w": (64, 64, 3, 3)}, True),
        ("g (float[1, 256] x) => (float[1, 256] y) { y = MatMul(x, w) }", {"w": (256, 256)}, False),
        ("g (float[1, 4096] x) => (float[1, 4096] y) { y = MatMul(x, w) }", {"w": (4096, 4096)}, True),
        ("g (float[256, 256] x) => (float[256, 256] y) { y = MatMul(x, x) }", {}, True),
        ("g (float[1, N, 8] x) => (float[1, N, 8] y) { y = Relu(x) }", {}, False),
        ("g (float[1, N, 4096] x) => (float[1, N, 4096] y) { y = Relu(x) }", {}, True),
        ("g (float[2] x) => (float[2] y) { y = com.microsoft.Gelu(x) }", {}, True),
        ("g (float[2] x, int64[1] n) => (float[N] y) { y = Tile(x, n) }", {}, True),
        ("g (float[2] x) => (seq(float[N]) y) { y = SequenceConstruct(x) }", {}, True),
        ("g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = a () => (y1) { y1 = Neg(x) }, else_branch = b () => (y2) { y2 = Relu(x) }> }", {}, True),  # noqa: E501
    ],
)  # fmt: skip
def test_only_large_or_unknown_segments_gain_from_threads(text, weights, gain):
    """Small segments are faster on one thread; segments of unknown size get threads."""
    assert threads_gain(with_weights(text, **weights)) is gain


@pytest.mark.parametrize("nodes", [1, 4, 12, 100])
def test_many_small_nodes_gain_from_threads(nodes):
    graph_nodes = [helper.make_node("Sin", [f"v{at}"], [f"v{at + 1}"]) for at in range(nodes)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [16384]) for name in ("v0", f"v{nodes}")]
    assert threads_gain(helper.make_model(helper.make_graph(graph_nodes, "g", ends[:1], ends[1:]))) is (nodes > 9)


def chain(channels, length):
    """Build convolutions on the CPU, each followed by a Neg."""
    weight = np.random.default_rng(0).standard_normal((channels, channels, 3, 3), np.float32) / (9 * channels) ** 0.5
    nodes = []
    for at in range(length):
        nodes += [
            helper.make_node("Conv", [f"v{2 * at}", "w"], [f"v{2 * at + 1}"], pads=[1] * 4),
            helper.make_node("Neg", [f"v{2 * at + 1}"], [f"v{2 * at + 2}"]),
        ]
    ends = [helper.make_tensor_value_info(name, 1, [1, channels, 28, 28]) for name in ("v0", f"v{2 * length}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "gain"), [(8, False), (64, True)])
@pytest.mark.parametrize("is_file", [False, True])
def test_every_segment_that_benefits_has_threads(channels, gain, is_file, monkeypatch, tmp_path):
    """The permits do not go to the first eight segments; a compiled file stores the decisions."""
    monkeypatch.setattr(program, "usable", lambda: 2)
    model, x = chain(channels, 12), numbers(1, channels, 28, 28)
    source, arguments = model, {"devices": ["fake_npu"], "options": nna.Options(rules=RULES)}
    if is_file:
        source = tmp_path / "compiled.nna"
        nna.compile(model, source, **arguments)
    with (
        watched(open_session, lambda arguments, _: arguments["has_pool"]) as has_pool,
        nna.InferenceSession(source, **({} if is_file else arguments)) as session,
    ):
        result = session.run(None, {"v0": x})
        assert [step.device for step in session.provenance.steps] == ["cpu", "fake_npu"] * 12
    assert has_pool == [gain] * 12
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"v0": x})
    np.testing.assert_allclose(result[0], expected[0], rtol=1e-4, atol=1e-5)
