"""Converters of recurrent layers, attention, norms, losses and Fourier transforms, beyond ONNX's own tests."""

import numpy as np
import onnx
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, convert, floats, make, opsets, reason

_WEIGHTS = [floats(5, 3, 4), floats(1, 12, 4, seed=1), floats(1, 12, 3, seed=2)]


@pytest.mark.parametrize("opset", opsets("LSTM"))
def test_lstm(opset):
    lengths = np.array([5, 1, 3], np.int32)
    states = [floats(1, 3, 3, seed=4), floats(1, 3, 3, seed=5)]
    inputs = [*_WEIGHTS, floats(1, 24, seed=3), lengths, *states, floats(1, 9, seed=6)]
    check("LSTM", opset, inputs, {"hidden_size": 3}, outputs=3)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_gru(direction):
    weights = [_WEIGHTS[0], floats(1, 9, 4, seed=1), floats(1, 9, 3, seed=2), floats(1, 18, seed=3)]
    attributes = {"hidden_size": 3, "direction": direction, "linear_before_reset": 1, "clip": 0.7}
    check("GRU", 22, weights, attributes, outputs=2)


def test_rnn_of_two_directions_and_functions():
    weights = [_WEIGHTS[0], floats(2, 3, 4, seed=1), floats(2, 3, 3, seed=2)]
    functions = {"activations": ["Tanh", "HardSigmoid"], "activation_alpha": [0.3], "activation_beta": [0.4]}
    check("RNN", 22, weights, {"hidden_size": 3, "direction": "bidirectional", **functions}, outputs=2)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"layout": 2}, Reason.INVALID_NODE),
        ({"hidden_size": 4}, Reason.INVALID_NODE),
        ({"activations": ["Sigmoid", "Tanh"]}, Reason.INVALID_NODE),
        ({"activations": ["Sigmoid", "Tanh", "Erf"]}, Reason.INVALID_NODE),
        ({"direction": "sideways"}, Reason.INVALID_NODE),
    ],
)
def test_invalid_recurrent_layers_are_refused(attributes, expected):
    verdict = convert(_lstm(attributes)).verdicts[0]
    assert verdict.reason is expected


def _lstm(attributes):
    model = make("LSTM", 22, _WEIGHTS, {"hidden_size": 3}, outputs=3)
    changed = make("Identity", 22, [floats(1)], attributes).graph.node[0].attribute
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.extend(changed)
    return model


_HEADS = {"q_num_heads": 4, "kv_num_heads": 2}
_QKV = [floats(2, 3, 8), floats(2, 5, 4, seed=1), floats(2, 5, 6, seed=2)]


def test_attention_of_packed_heads_is_unpacked():
    conversion = check("Attention", 24, _QKV, {**_HEADS, "is_causal": 1}, tolerance=1e-4)
    types = [operation.type for operation in conversion.model.operations]
    assert types == [*["RESHAPE", "TRANSPOSE"] * 3, "ATTENTION", "TRANSPOSE", "RESHAPE"]


def test_attention_returns_its_cache():
    x = [floats(1, 2, 3, 4, seed=seed) for seed in range(3)]
    past = [floats(1, 2, 5, 4, seed=seed) for seed in (3, 4)]
    conversion = check("Attention", 24, [*x, None, *past], {"is_causal": 1}, outputs=3, tolerance=1e-4)
    (attention,) = (operation for operation in conversion.model.operations if operation.type == "ATTENTION")
    assert attention.attributes["offset"] == 5


def test_attention_omits_an_empty_cache():
    x = [floats(1, 2, 3, 4, seed=seed) for seed in range(3)]
    past = [floats(1, 2, 0, 4)] * 2
    conversion = check("Attention", 24, [*x, None, *past], {"is_causal": 1}, outputs=3, tolerance=1e-4)
    joined = [operation for operation in conversion.model.operations if operation.type == "CONCAT"]
    assert [len(operation.inputs) for operation in joined] == [1, 1]


@pytest.mark.parametrize("dtype", [bool, np.float32])
def test_short_mask_hides_the_remaining_keys(dtype):
    x = [floats(1, 2, 3, 4, seed=seed) for seed in range(3)]
    check("Attention", 24, [*x, np.ones((3, 2), dtype)], tolerance=1e-4)


def test_attention_with_past_key_only_is_refused():
    x = [floats(1, 2, 3, 4, seed=seed) for seed in range(3)]
    model = make("Attention", 24, [*x, None, x[0], x[0]])
    model.graph.node[0].input[5] = ""
    assert convert(model).verdicts[0].reason is Reason.INVALID_NODE


@pytest.mark.parametrize("num_heads", [3, 0])
def test_wrong_number_of_heads_is_refused(num_heads):
    model = make("RotaryEmbedding", 23, [floats(2, 3, 8), floats(2, 3, 2), floats(2, 3, 2)], {"num_heads": 2})
    model.graph.node[0].attribute[0].i = num_heads
    assert convert(model).verdicts[0].reason is Reason.INVALID_NODE


@pytest.mark.parametrize("opset", opsets("LpNormalization"))
def test_lp_normalization(opset):
    check("LpNormalization", opset, [floats(2, 3, 4)], {"axis": 1, "p": 1})


@pytest.mark.parametrize(("opset", "axes"), [(9, None), (9, [0, 1]), (13, [1, 2])])
def test_mean_variance_normalization(opset, axes):
    check("MeanVarianceNormalization", opset, [floats(2, 3, 4, 5)], {} if axes is None else {"axes": axes})


@pytest.mark.parametrize("opset", opsets("NegativeLogLikelihoodLoss"))
def test_losses(opset):
    inputs = [floats(3, 5, 2), np.array([[0, 1], [4, 2], [3, 0]], np.int64), np.abs(floats(5, seed=1))]
    check("NegativeLogLikelihoodLoss", opset, inputs, {"ignore_index": 2})
    check("SoftmaxCrossEntropyLoss", min(opset, 13), inputs, {"reduction": "none"}, outputs=2)


@pytest.mark.parametrize("length", [None, 4, 9])
def test_dft(length):
    inputs = [floats(2, 6, 3, 1), None if length is None else np.array(length), np.array(1)]
    constant = [index for index in (1, 2) if inputs[index] is not None]
    check("DFT", 20, inputs, {"onesided": 1}, constant=constant, tolerance=1e-4)
    attributes = {"axis": 1, "inverse": 1}
    check("DFT", 17, [floats(2, 6, 3, 2), *inputs[1:2]], attributes, constant=constant[:-1], tolerance=1e-4)


def test_computed_axis_is_refused():
    assert reason("DFT", 20, [floats(2, 6, 1), None, np.array(1)]) is Reason.NOT_CONSTANT


def test_stft():
    inputs = [floats(2, 16, 1), np.array(3), floats(5)]
    check("STFT", 17, inputs, {"onesided": 1}, constant=[1], tolerance=1e-4)
    check("STFT", 17, [*inputs[:2], None, np.array(4)], {"onesided": 0}, constant=[1, 3], tolerance=1e-4)
    check("STFT", 17, [floats(2, 16), *inputs[1:]], {"onesided": 1}, constant=[1], tolerance=1e-4)


def test_one_sided_transforms_of_complex_numbers_are_refused():
    assert (
        reason("STFT", 17, [floats(1, 16, 2), np.array(4), floats(4)], {"onesided": 1}, constant=[1])
        is Reason.INVALID_NODE
    )


def _flex_attention(**attributes):
    node = onnx.helper.make_node("FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview", **attributes)
    shapes = {"q": (1, 4, 3, 5), "k": (1, 2, 6, 5), "v": (1, 2, 6, 7), "y": (1, 4, 3, 7)}
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in (("", 26), ("ai.onnx.preview", 1))]
    return onnx.helper.make_model(onnx.helper.make_graph([node], "one", values[:3], values[3:]), opset_imports=imports)


def test_flex_attention_with_graphs_is_refused():
    (operation,) = convert(_flex_attention(scale=0.25)).model.operations
    assert (operation.type, operation.attributes["scale"]) == ("ATTENTION", 0.25)
    for name in ("score_mod", "prob_mod"):
        verdict = convert(_flex_attention(**{name: onnx.helper.make_graph([], "function", [], [])})).verdicts[0]
        assert verdict.reason is Reason.CONTROL_FLOW
