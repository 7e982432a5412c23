from __future__ import annotations

import pytest

from nnadapter.errors import InvalidModelError
from tests.ir.operations.shape_oracle import dimensions, flops, infer, onnx_dimensions, operand

_INPUT, _WEIGHTS, _RECURRENT = (5, 2, 4), (2, 12, 4), (2, 12, 3)


def test_recurrent_layers_agree_with_onnx():
    functions = {"LSTM": "sigmoid tanh tanh", "GRU": "sigmoid tanh", "RNN": "tanh"}
    for type_, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        shapes = [_INPUT, (2, 3 * gates, 4), (2, 3 * gates, 3)]
        outputs = 3 if type_ == "LSTM" else 2
        expected = onnx_dimensions(type_, shapes, outputs, direction="bidirectional", hidden_size=3)
        names = " ".join([functions[type_]] * 2)
        assert dimensions(type_, shapes, direction="bidirectional", activations=names) == expected


@pytest.mark.parametrize(
    ("attributes", "complaint"),
    [
        ({"activations": "tanh"}, "expected 6 names"),
        ({"activations": " ".join(["erf"] * 6)}, "expected 6 names"),
        ({"activations": " ".join(["elu"] * 6)}, "activation_alpha has 0 values"),
        ({"direction": "forward"}, "weights has dimensions"),
    ],
)
def test_recurrent_attributes_are_checked(attributes, complaint):
    given = {"direction": "bidirectional", "activations": " ".join(["sigmoid tanh tanh"] * 2), **attributes}
    given["activations"] = given["activations"] if given["direction"] != "forward" else "sigmoid tanh tanh"
    with pytest.raises(InvalidModelError, match=f"LSTM: .*{complaint}"):
        dimensions("LSTM", [_INPUT, _WEIGHTS, _RECURRENT], **given)


def test_recurrent_flops_by_hand():
    types = [operand(5, 2, 4), operand(1, 3, 4), operand(1, 3, 3)]
    assert flops("RNN", types) == 5 * 2 * 3 * (2 * 4 + 2 * 3 + 2 + 1)


def test_attention_returns_requested_scores():
    inputs = [operand(2, 6, 3, 4), operand(2, 2, 5, 4), operand(2, 2, 5, 7)]
    assert [type_.dimensions for type_ in infer("ATTENTION", inputs, scale=1.0)] == [(2, 6, 3, 7)]
    both = infer("ATTENTION", inputs, scale=1.0, scores="softmax")
    assert [type_.dimensions for type_ in both] == [(2, 6, 3, 7), (2, 6, 3, 5)]
    assert flops("ATTENTION", inputs, scale=1.0) == 2 * 6 * 3 * 5 * (2 * 4 + 2 * 7 + 7)


@pytest.mark.parametrize(
    ("shapes", "complaint"),
    [
        ([(2, 6, 3, 4), (2, 4, 5, 4), (2, 4, 5, 7)], "expected a multiple of the key heads"),
        ([(2, 6, 3, 4), (2, 2, 5, 3), (2, 2, 5, 7)], "do not fit together"),
        ([(2, 6, 3, 4), (2, 2, 5, 4), (2, 2, 4, 7)], "do not fit together"),
        ([(2, 6, 3, 4), (2, 5, 4), (2, 2, 4, 7)], "expected four"),
        ([(2, 6, 3, 4), (2, 2, 5, 4), (2, 2, 5, 7), (3, 4)], "do not broadcast"),
    ],
)
def test_attention_checks_its_inputs(shapes, complaint):
    with pytest.raises(InvalidModelError, match=f"ATTENTION: .*{complaint}"):
        dimensions("ATTENTION", shapes, scale=1.0)


@pytest.mark.parametrize(
    ("rule", "decay", "rate"), [("linear", True, False), ("gated", False, False), ("delta", False, False)]
)
def test_linear_attention_requires_inputs_of_its_rule(rule, decay, rate):
    inputs = [operand(2, 5, 8), operand(2, 5, 8), operand(2, 5, 8), None]
    inputs += [operand(2, 5, 2) if decay else None, operand(2, 5, 2) if rate else None]
    with pytest.raises(InvalidModelError, match="update_rule"):
        infer("LINEAR_ATTENTION", inputs, query_heads=2, key_value_heads=2, scale=1.0, update_rule=rule)


def test_causal_convolution_returns_its_state():
    assert dimensions("CAUSAL_CONV", [(2, 3, 5), (3, 1, 4)]) == [(2, 3, 5), (2, 3, 3)]
    with pytest.raises(InvalidModelError, match="weight has dimensions"):
        dimensions("CAUSAL_CONV", [(2, 3, 5), (4, 1, 4)])


def test_rms_normalization_result_has_type_of_scale():
    (result,) = infer("RMS_NORMALIZATION", [operand(2, 3, dtype="float16"), operand(3)], axis=1)
    assert result.dtype == "float32"
    with pytest.raises(InvalidModelError, match="expected dimensions that broadcast"):
        dimensions("RMS_NORMALIZATION", [(2, 3), (4, 2, 3)], axis=1)


@pytest.mark.parametrize(
    ("type_", "attributes"),
    [
        ("LP_NORMALIZATION", {"axis": 0, "p": 3}),
        ("MEAN_VARIANCE_NORMALIZATION", {"axes": (1, 0)}),
        ("MEAN_VARIANCE_NORMALIZATION", {"axes": ()}),
    ],
)
def test_norms_check_their_attributes(type_, attributes):
    with pytest.raises(InvalidModelError, match=f"{type_}: "):
        dimensions(type_, [(2, 3)], **attributes)


def test_losses_with_and_without_reduction():
    inputs = [operand(2, 5, 3), operand(2, 3, dtype="int64")]
    assert infer("NEGATIVE_LOG_LIKELIHOOD_LOSS", inputs)[0].dimensions == ()
    both = infer("SOFTMAX_CROSS_ENTROPY_LOSS", inputs, reduction="none")
    assert [type_.dimensions for type_ in both] == [(2, 3), (2, 5, 3)]
    with pytest.raises(InvalidModelError, match="target has dimensions"):
        infer("NEGATIVE_LOG_LIKELIHOOD_LOSS", [operand(2, 5, 3), operand(2, 4, dtype="int64")])


@pytest.mark.parametrize(
    ("parts", "attributes", "expected"),
    [
        (1, {}, (2, 7, 2)),
        (2, {"inverse": True}, (2, 7, 2)),
        (1, {"onesided": True}, (2, 4, 2)),
        (2, {"onesided": True, "inverse": True}, (2, 7, 1)),
    ],
)
def test_fourier_transforms(parts, attributes, expected):
    assert dimensions("DFT", [(2, 6, parts)], axis=1, length=7, **attributes) == [expected]


def test_frames_fit_into_the_signal():
    assert dimensions("STFT", [(2, 16, 1), (4,)], frame_step=3, frame_length=4, onesided=True) == [(2, 5, 3, 2)]
    with pytest.raises(InvalidModelError, match="expected at most 16"):
        dimensions("STFT", [(2, 16, 1)], frame_step=3, frame_length=17)
