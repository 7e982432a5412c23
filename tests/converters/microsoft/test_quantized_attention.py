from __future__ import annotations

import numpy as np
import pytest

from tests.converters.microsoft.function_node import check
from tests.converters.microsoft.test_quantized import integers, scale
from tests.converters.single_node import floats

OPSETS = (13, 21)
MASKS = {"none": None, "lengths": [3, 1], "keys": [[1, 1, 0], [1, 0, 0]]}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("per_column", [False, True])
def test_attention(per_column, unidirectional, mask):
    weight_scale = np.linspace(0.01, 0.02, 24, dtype=np.float32) if per_column else scale(0.02)
    weight_zero_point = np.zeros(24, np.int8) if per_column else np.int8(3)
    shown = None if MASKS[mask] is None else np.array(MASKS[mask], np.int32)
    weight, bias = integers(8, 24, dtype=np.int8, seed=1), floats(24)
    inputs = [integers(2, 3, 8), weight, bias, scale(0.01), weight_scale, shown, np.uint8(120), weight_zero_point]
    attributes = {"num_heads": 2, "unidirectional": unidirectional}
    check("QAttention", inputs, attributes, constant=(1, 2, 3, 4, 6, 7), tolerance=1e-4, opsets=OPSETS)


def test_attention_with_a_past():
    weight, bias, past = integers(8, 24, dtype=np.int8, seed=1), floats(24), floats(2, 2, 2, 4, 4)
    inputs = [integers(2, 3, 8), weight, bias, scale(0.01), scale(0.02), None, np.uint8(120), np.int8(3), past]
    attributes = {"num_heads": 2, "unidirectional": 1}
    keywords = {"constant": (1, 2, 3, 4, 6, 7), "outputs": 2, "tolerance": 1e-4}
    check("QAttention", inputs, attributes, opsets=OPSETS, **keywords)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_embeddings(mask, segments):
    ids, kinds = (integers(2, 5, seed=seed).astype(np.int32) % count for seed, count in ((0, 9), (1, 2)))
    tables = [
        integers(9, 16),
        integers(7, 16, seed=1),
        integers(2, 16, seed=2),
        integers(16, seed=3),
        integers(16, seed=4),
    ]
    scales, points = (
        [scale(0.01 + 0.003 * number) for number in range(5)],
        [np.uint8(100 + number) for number in range(5)],
    )
    for parts in (tables, scales, points):
        parts[2] = parts[2] if segments else None
    shown = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32) if mask else None
    inputs = [ids, kinds if segments else None, *tables, shown, *scales, *points]
    constant = [place for place in range(2, 18) if place != 7 and inputs[place] is not None]
    check("QEmbedLayerNormalization", inputs, constant=constant, outputs=2, tolerance=1e-4, opsets=OPSETS)
