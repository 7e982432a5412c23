"""What is put right in a model that paddle2onnx wrote."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.onnx.files import load_model
from nnadapter.paddle_models.quantized import restore


def mended(contents: bytes, outputs: Sequence[str], quantizing: int = 0) -> bytes:
    """Return a model as it is to be run.

    1. Outputs get the names that they have in Paddle, where the converter gave them others.
    2. Operations that quantize to integers do so again (`quantized`).

    Args:
        contents: of the model.
        outputs: names of its outputs in Paddle; none where the model has these.
        quantizing: how many operations quantize.

    Raises:
        InvalidModelError: it is no model.
        ValueError: the converter wrote something otherwise than is known.
    """
    model = load_model(contents)
    named = dict(zip((each.name for each in model.graph.output), outputs, strict=False))
    for node in model.graph.node:
        for position, name in enumerate(node.output):
            node.output[position] = named.get(name, name)
        for position, name in enumerate(node.input):
            node.input[position] = named.get(name, name)
    for value in model.graph.output:
        value.name = named.get(value.name, value.name)
    if quantizing:
        restore(model, quantizing)
    mended_contents: bytes = model.SerializeToString()
    return mended_contents
