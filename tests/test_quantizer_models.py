"""Models from ONNX Runtime's quantizers and optimizer: entirely on fake_npu, with right results.

Engines may round a tie to either integer, and later layers see the difference; the error of quantization is the bound.
All models of `benchmarks/models/quantized_models.py` run with `-m sweep`.
"""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks.models.networks import networks
from benchmarks.models.quantized_models import (
    MODELS,
    Written,
    activation_functions,
    dynamic,
    few_bits,
    quantize,
    resnet,
    sixteen_bits_contributed,
    static_operators,
    static_qdq,
    transformer,
    written,
)
from benchmarks.written_models import quantized_row

PICTURES = partial(resnet, (1, 1), is_deep=False, size=32)
ENCODER = partial(transformer, 1, 64, 4, 16)
SMALL = {
    "pictures": (PICTURES, static_qdq, "ALL"),
    "pictures by operators": (PICTURES, static_operators, "EXTENDED"),
    "activations": (activation_functions, static_qdq, "EXTENDED"),
    "encoder": (ENCODER, static_operators, "EXTENDED"),
    "encoder of 16 bits": (ENCODER, sixteen_bits_contributed, "EXTENDED"),
    "recurrent": (networks()["recurrent"], dynamic, "EXTENDED"),
    "perceptron of 4 bits": (networks()["perceptron, one row"], partial(few_bits, block_size=32), "EXTENDED"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_small_quantized_models_run_entirely_on_the_device(name):
    network, quantizer, level = SMALL[name]
    before = network()
    models = quantize(before, quantizer, level)
    assert any(node.domain == "com.microsoft" for node in models[1].graph.node)
    for model in models:
        row = quantized_row(Written(name, model, before), "fake_npu")
        assert (row["nodes"], row["flops"], row["segments"]) == (1, 1, 1)
        assert row["error"] <= row["error of quantizing"]


@pytest.mark.sweep
@pytest.mark.parametrize("name", MODELS)
def test_every_quantized_model_passes(name):
    rows = [quantized_row(model, "fake_npu") for model in written([name])]
    assert rows and all(row["passes"] for row in rows), rows
