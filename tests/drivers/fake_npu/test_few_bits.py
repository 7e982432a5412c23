from __future__ import annotations

import numpy as np
import pytest

from nnadapter.ir.deferred_arrays import DeferredArray, contents_of, unpacked_weight
from nnadapter.ir.derived import ArrayTrace, applied, derived
from nnadapter.ir.symbolic_numbers import SymbolicTrace
from tests.drivers.fake_npu.against_definition import agrees

RANDOM = np.random.default_rng(3)


def packed(*shape):
    return RANDOM.integers(0, 256, shape, np.uint8)


def reals(*shape, dtype="float32"):
    return RANDOM.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("points", ["none", "packed", "reals"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("constants", [(1, 2, 3, 4), (1,), ()], ids=["constant", "weight", "computed"])
def test_products(bits, points, constants):
    blocks = -(-70 // 32)
    zero_point = {"none": None, "packed": packed(5, -(-blocks * bits // 8)), "reals": reals(5, blocks)}[points]
    inputs = [reals(2, 3, 70), packed(5, blocks, 32 * bits // 8), reals(5, blocks), zero_point, reals(5)]
    agrees("MAT_MUL_N_BITS", inputs, {"bits": bits, "block_size": 32}, tolerance=2e-3, constants=constants)


def test_half_precision():
    inputs = [reals(2, 64, dtype="float16"), packed(5, 2, 16), reals(5, 2, dtype="float16")]
    agrees("MAT_MUL_N_BITS", inputs, {"bits": 4, "block_size": 32}, tolerance=2e-1, constants=(1, 2))


def test_many_weights_are_unpacked_in_strips():
    inputs = [reals(2, 2048), packed(300, 64, 16), reals(300, 64), packed(300, 32)]
    agrees("MAT_MUL_N_BITS", inputs, {"bits": 4, "block_size": 32}, tolerance=1e-2, constants=(1, 2, 3))


def test_verdict_unpacks_no_weights():
    trace = ArrayTrace([packed(3, 2, 16), reals(3, 2)])
    weight = applied(unpacked_weight, *trace.variables(), None, bits=4, block_size=32, depth=40)
    assert (weight.shape, weight.dtype) == ((3, 40), np.float32)
    assert isinstance(trace.finish()[weight.number], DeferredArray)


def test_symbolic_size_is_guarded_when_weights_are_traced():
    arrays, sizes = ArrayTrace([packed(3, 2, 16), reals(3, 2)]), SymbolicTrace()
    depth = sizes.variable(40)
    weight = derived(unpacked_weight, *arrays.variables(), None, bits=4, block_size=32, depth=depth)
    assert (weight.shape, dict(sizes.answers)) == ((3, 40), {0: 40})
    assert contents_of(arrays.finish()[weight.number]).shape == (3, 40)
