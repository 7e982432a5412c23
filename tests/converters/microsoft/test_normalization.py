from __future__ import annotations

import numpy as np
import pytest

from tests.converters.microsoft.function_node import check
from tests.converters.single_node import floats


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_normalization_below_opset_17(axis, bias):
    shape = (3, 4)[-1 if axis == -1 else 0 :]
    inputs = [floats(2, 3, 4), floats(*shape, seed=1), floats(*shape, seed=2) if bias else None]
    while inputs[-1] is None:
        inputs.pop()
    check("LayerNormalization", inputs, {"axis": axis}, domain="", opset=13, outputs=3, opsets=(13,))
    check("LayerNormalization", inputs, {"axis": axis, "epsilon": 0.1}, domain="", opset=13, opsets=(13,))


@pytest.mark.parametrize("outputs", [1, 2])
def test_simplified_layer_normalization(outputs):
    check("SimplifiedLayerNormalization", [floats(2, 3, 4), floats(4, seed=1)], domain="", outputs=outputs)


@pytest.mark.parametrize("skip", [(2, 3, 4), (1, 3, 4), (3, 4)])
@pytest.mark.parametrize(("beta", "bias"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("outputs", [("y",), ("y", "", "", "s")])
def test_skip_layer_normalization(skip, beta, bias, outputs):
    optional = [floats(4, seed=2) if beta else None, floats(4, seed=3) if bias else None]
    inputs = [floats(2, 3, 4), floats(*skip, seed=4), floats(4, seed=5), *optional]
    check("SkipLayerNormalization", inputs, {"epsilon": 1e-5}, outputs=outputs, opsets=(13, 17))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [("y",), ("y", "", "", "s")])
def test_skip_simplified_layer_normalization(bias, outputs):
    inputs = [floats(2, 3, 4), floats(2, 3, 4, seed=4), floats(4, seed=5), *([floats(4, seed=6)] if bias else [])]
    check("SkipSimplifiedLayerNormalization", inputs, outputs=outputs)


@pytest.mark.parametrize(("segments", "mask", "places"), [(1, 1, 0), (1, 0, 0), (0, 1, 1), (0, 0, 1)])
@pytest.mark.parametrize("outputs", [("y", "m"), ("y", "m", "s")])
def test_embed_layer_normalization(segments, mask, places, outputs):
    numbers = np.random.default_rng(0)
    ids = numbers.integers(0, 5, (2, 3)).astype(np.int32)
    kinds = numbers.integers(0, 2, (2, 3)).astype(np.int32) if segments else None
    inputs = [ids, kinds, floats(5, 4), floats(7, 4, seed=1), floats(2, 4, seed=2) if segments else None]
    inputs += [floats(4, seed=3), floats(4, seed=4), np.array([[1, 1, 0], [1, 0, 0]], np.int32) if mask else None]
    inputs += [np.array([[2, 1, 0], [0, 0, 6]], np.int32)] if places else []
    known = [2, 3, 4, 5, 6] if segments else [2, 3, 5, 6]
    check("EmbedLayerNormalization", inputs, outputs=outputs, constant=known, opsets=(13, 17), tolerance=2e-4)


@pytest.mark.parametrize("op_type", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("stated", [{}, {"epsilon": 1e-3}], ids=["default", "stated"])
def test_default_epsilon_is_of_the_op(op_type, stated):
    """Small inputs distinguish the default of 1e-12 from the 1e-5 of LayerNormalization."""
    inputs = [floats(2, 3, 4) * 1e-3, floats(2, 3, 4, seed=1) * 1e-3, floats(4, seed=2)]
    check(op_type, [each.astype(np.float32) for each in inputs], stated, tolerance=1e-3)


def test_default_epsilon_of_embeddings():
    tables = [floats(5, 4) * 1e-3, floats(7, 4, seed=1) * 1e-3, None, floats(4, seed=3), floats(4, seed=4)]
    inputs = [
        np.array([[1, 0, 4]], np.int32),
        None,
        *(None if table is None else table.astype("f") for table in tables),
    ]
    check("EmbedLayerNormalization", inputs, constant=[2, 3, 5, 6], outputs=2, tolerance=1e-3)


@pytest.mark.parametrize(
    ("op_type", "domain", "inputs"),
    [
        ("LayerNormalization", "", 2),
        ("SimplifiedLayerNormalization", "", 2),
        ("SkipLayerNormalization", "com.microsoft", 3),
        ("SkipSimplifiedLayerNormalization", "com.microsoft", 3),
    ],
)
@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 1e3])
def test_half_precision_has_neither_small_epsilons_nor_large_squares(op_type, domain, inputs, size):
    given = [floats(2, 3, 4) * size, *([floats(2, 3, 4, seed=1) * size] if inputs == 3 else []), floats(4, seed=2)]
    opset = 13 if op_type == "LayerNormalization" else 17
    given = [each.astype(np.float16) for each in given]
    opsets = (13,) if op_type == "LayerNormalization" else (13, 17, 23)
    stated = {"epsilon": 1e-12} | ({"axis": -1} if inputs == 2 else {})
    check(op_type, given, stated, domain=domain, opset=opset, opsets=opsets, tolerance=4e-3)
