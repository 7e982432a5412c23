from __future__ import annotations

import pytest

from tests.converters.microsoft.function_node import check
from tests.converters.single_node import floats


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"activation": "Relu", "pads": [1, 0, 1, 2], "strides": [2, 1]},
        {"activation": "Clip", "activation_params": [-0.5, 0.5]},
        {"activation": "LeakyRelu", "activation_params": [0.3], "auto_pad": "SAME_UPPER"},
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
        {"activation": "Tanh", "group": 2, "dilations": [2, 1]},
        {"activation": "Sigmoid"},
    ],
)
@pytest.mark.parametrize("added", [False, True])
def test_fused_conv(attributes, added):
    inputs = [floats(2, 4, 7, 6), floats(4, 4 // attributes.get("group", 1), 3, 3, seed=1), floats(4, seed=2)]
    if added:
        alone = check("FusedConv", inputs, attributes, opsets=()).model
        inputs.append(floats(*alone.type_of(alone.outputs[0]).dimensions, seed=3))
    check("FusedConv", inputs, attributes, opsets=(13,))


@pytest.mark.parametrize("attributes", [{"border": [1, 2, 1, 0]}, {"border": [1, 2, 0, 0], "scale": [2, 3]}])
def test_crop(attributes):
    check("Crop", [floats(2, 3, 6, 7)], attributes, domain="", opset=9, opsets=())
