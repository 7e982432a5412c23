"""What is wrong with a node, apart from what a device can do."""

import re

import pytest
from onnx import numpy_helper

from nnadapter.converters.convert import contradiction
from nnadapter.offering.preparing import OPERATORS
from nnadapter.onnx.construction import parse
from nnadapter.onnx.model import read_model

RECURRENT = "(float[5, 1, 4] x, float[1, 12, 4] w, float[1, 12, 3] r) => (y)"


def contradiction_in(text):
    read = read_model(parse(f'<ir_version: 10, opset_import: ["" : 17]> g {text}'), OPERATORS)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in read.model.graph.initializer}
    return contradiction(read.nodes[0], read.graph.values, constants)


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
def test_what_contradicts_the_specification_is_told(text, words):
    found = contradiction_in(text)
    assert found is not None
    assert re.search(words, found.detail)


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
def test_what_a_device_may_lack_is_no_contradiction(text):
    assert contradiction_in(text) is None
