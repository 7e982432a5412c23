"""Invalid nodes, as opposed to nodes that a device does not support."""

import re

import pytest

import nnadapter as nna
from nnadapter.drivers import Reason
from nnadapter.errors import InvalidModelError
from nnadapter.onnx import parse

RECURRENT = "(float[5, 1, 4] x, float[1, 12, 4] w, float[1, 12, 3] r) => (y)"


def refusals_in(text):
    """Return the refusals of the first node, or the error if the model is invalid."""
    model = parse(f'<ir_version: 10, opset_import: ["" : 17]> g {text}')
    try:
        report = nna.partition_report(model, "fake_npu", options=nna.Options(fallback="allow"))
    except InvalidModelError as error:
        return [str(error)]
    return [f"{refusal.reason}: {refusal.detail}" for refusal in report.nodes[0].refusals]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{RECURRENT} {{ y = LSTM(x, w, r) }}", "'hidden_size' of LSTM is missing; expected \\[3\\]"),
        (f"{RECURRENT} {{ y = LSTM<hidden_size = 4>(x, w, r) }}", "'hidden_size' of LSTM is 4"),
        (f'{RECURRENT} {{ y = LSTM<hidden_size = 3, activations = ["Erf"]>(x, w, r) }}', "'activations' of LSTM"),
        ("(float[2, 3] x) => (y) <int64[1] shape = {5}> { y = Reshape(x, shape) }", "same number of elements"),
        ("(float[1, 4, 4, 4] x) => (y) { y = SpaceToDepth<blocksize = 0>(x) }", "block"),
    ],
)
def test_contradictions_of_the_specification_are_reported(text, words):
    (refusal,) = refusals_in(text)
    assert re.search(f"^{Reason.INVALID_NODE.value}: .*{words}", refusal)


@pytest.mark.parametrize(
    "text",
    [
        f"{RECURRENT} {{ y = LSTM<hidden_size = 3>(x, w, r) }}",
        f"{RECURRENT} {{ y = LSTM<hidden_size = 3, layout = 1>(x, w, r) }}",
        "(int16[2] x) => (y) { y = Max(x, x) }",
        "(float[n] x) => (y) { y = Reshape(x, x) }",
        "(string[n] x) => (y) { y = StringNormalizer(x) }",
        "(float[n] x) => (y) { y = Nonsense(x) }",
    ],
)
def test_unsupported_features_are_no_contradiction(text):
    assert not [refusal for refusal in refusals_in(text) if Reason.INVALID_NODE.value in refusal]
