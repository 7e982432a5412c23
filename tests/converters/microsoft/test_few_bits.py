from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.microsoft.function_node import check, refusal
from tests.converters.microsoft.test_quantized import integers, types
from tests.converters.single_node import floats

ZERO_POINTS = pytest.mark.parametrize("points", ["none", "packed", "reals"])


def weights(bits, points, units=5, depth=70, block_size=32):
    blocks = -(-depth // block_size)
    zero_point = {"none": None, "packed": integers(units, -(-blocks * bits // 8)), "reals": floats(units, blocks)}
    return [integers(units, blocks, block_size * bits // 8), abs(floats(units, blocks)), zero_point[points]]


def attributes(bits, units=5, depth=70, block_size=32):
    return {"bits": bits, "N": units, "K": depth, "block_size": block_size}


@ZERO_POINTS
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products(bits, points):
    if (bits, points) == (8, "reals"):
        pytest.skip("ONNX Runtime has no kernel for these")
    inputs = [floats(2, 3, 70), *weights(bits, points), None, floats(5) if bits == 4 else None]
    constant = [place for place in range(1, 6) if inputs[place] is not None]
    result = check("MatMulNBits", inputs, attributes(bits), constant=constant, tolerance=1e-4, opsets=(14, 23))
    assert types(result) == ["MAT_MUL_N_BITS"]


def test_flattened_scales_and_zero_points():
    weight, scale, zero_point = weights(4, "packed")
    inputs = [floats(3, 70), weight, scale.reshape(-1), zero_point.reshape(-1)]
    check("MatMulNBits", inputs, attributes(4), constant=(1, 2, 3), tolerance=1e-4, opsets=(14,))


@pytest.mark.parametrize(
    ("more", "stated", "word"),
    [
        ([np.zeros(96, np.int32)], {}, "'g_idx'"),
        ([], {"weight_prepacked": 1}, "'weight_prepacked'"),
        ([], {"bits": 3}, "'bits'"),
    ],
)
def test_unsupported_matmul_nbits_forms_are_refused(more, stated, word):
    inputs = [floats(3, 70), *weights(4, "none"), *more]
    verdict = refusal("MatMulNBits", inputs, {**attributes(4), **stated}, constant=(1, 2, 4)[: 2 + len(more)])
    assert verdict.reason is Reason.UNSUPPORTED_ATTRIBUTE and word in verdict.detail


def test_misshaped_scales_are_refused():
    weight, scale, _ = weights(4, "none")
    verdict = refusal("MatMulNBits", [floats(3, 70), weight, scale[:4]], attributes(4), constant=(1, 2))
    assert verdict.reason is Reason.INVALID_NODE and "expected [5, 3]" in verdict.detail


@pytest.mark.slow
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("indices", [np.array([[0, -1], [3, 2]]), np.array(5, np.int32)])
@pytest.mark.parametrize("table", ["uint4", "int4", 2, 4, 8])
def test_gather_block_quantized(table, indices, zero_points):
    if isinstance(table, int):
        data, points, stated = integers(6, 96 * table // 8), integers(6, -(-3 * table // 8)), {"bits": table}
    else:
        low, dtype, stated = (-8, ml_dtypes.int4, {}) if table == "int4" else (0, ml_dtypes.uint4, {})
        data, points = ((integers(6, size) % 16).astype(np.int8) + low for size in (81, 3))
        data, points = data.astype(dtype), points.astype(dtype)
    inputs = [data, indices, abs(floats(6, 3)), points if zero_points else None]
    constant = (0, 2, 3) if zero_points else (0, 2)
    check("GatherBlockQuantized", inputs, {"block_size": 32, **stated}, constant=constant)


def test_gather_along_the_quantized_axis_is_refused():
    inputs = [integers(6, 48), np.array([1]), floats(6, 3)]
    verdict = refusal("GatherBlockQuantized", inputs, {"block_size": 32, "quantize_axis": 0}, constant=(0, 2))
    assert (
        verdict.reason is Reason.UNSUPPORTED_ATTRIBUTE and "expected the last axis and any other axis" in verdict.detail
    )


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("units", [4, 5])
def test_products_with_four_bits_as_in_bitsandbytes(kind, units):
    inputs = [floats(2, 3, 70), integers(units * 35), abs(floats(-(-units * 70 // 32)))]
    stated = {"N": units, "K": 70, "block_size": 32, "quant_type": kind}
    result = check("MatMulBnb4", inputs, stated, constant=(1, 2), tolerance=1e-4, opsets=(14, 23))
    assert types(result) == ["MAT_MUL"]


@pytest.mark.parametrize(
    ("stated", "word"),
    [({"quant_type": 2}, "'quant_type'"), ({"K": 64}, "bytes"), ({"block_size": 24}, "'block_size'")],
)
def test_other_weights_of_four_bits_are_refused(stated, word):
    inputs = [floats(3, 70), integers(5 * 35), abs(floats(11))]
    known = {"N": 5, "K": 70, "block_size": 32, "quant_type": 1, **stated}
    assert word in refusal("MatMulBnb4", inputs, known, constant=(1, 2)).detail


def test_nonconstant_four_bit_weights_are_refused():
    inputs = [floats(3, 70), integers(5 * 35), abs(floats(11))]
    verdict = refusal("MatMulBnb4", inputs, {"N": 5, "K": 70, "block_size": 32, "quant_type": 1})
    assert verdict.reason is Reason.NOT_CONSTANT
