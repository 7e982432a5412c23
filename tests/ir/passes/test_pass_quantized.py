import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.drivers.fake_npu import PASSES as DEVICE_PASSES
from nnadapter.ir import DataType, ModelBuilder, OperandType, Quantization, QuantizedType, verify
from nnadapter.ir.definition import by_definition
from nnadapter.ir.passes import PASSES, run_passes
from tests.drivers.fake_npu.harness import run_model
from tests.every import for_every
from tests.ir.passes.program import border, origins, types
from tests.ir.passes.program import verify as verify_again


def quantized(scale, zero_point=0, dtype=DataType.INT8):
    return QuantizedType(dtype, Quantization(scale=(scale,), zero_point=(zero_point,)))


class Network:
    """Quantized model under construction, starting from a float32 image."""

    def __init__(self, seed=0, dtype=DataType.INT8, channels=3):
        self.builder, self.random, self.dtype, self.count = ModelBuilder(), np.random.default_rng(seed), dtype, 0
        self.x = self.builder.add_input("x", OperandType(DataType.FLOAT32, (1, channels, 6, 5)))
        self.last = self.add("QUANTIZE", self.x, result=self.type(0.03))

    def type(self, scale):
        point = int(self.random.integers(-20, 20)) + (100 if self.dtype is DataType.UINT8 else 0)
        return quantized(scale, point, self.dtype)

    def add(self, type_, *operands, result=None, **attributes):
        self.count += 1
        made = self.builder.add_operation(
            type_,
            operands,
            attributes,
            origins=[f"n{self.count}"],
            quantized=() if result is None else (result,),
        )
        self.last = made[0]
        return made[0]

    def dimensions(self):
        return self.builder.type_of(self.last).dimensions

    def constant(self, *dimensions, axis=None):
        self.count += 1
        value = self.random.integers(-100, 100, dimensions).astype(np.int8)
        count = 1 if axis is None else dimensions[axis]
        scales = tuple(self.random.uniform(0.005, 0.02, count).astype(np.float32).tolist())
        quantization = Quantization(scale=scales, zero_point=(0,) * count, axis=axis)
        return self.builder.add_constant(f"c{self.count}", value, quantization)

    def finish(self, *outputs):
        model = self.builder.finish(outputs or (self.last,))
        verify(model)
        return model


def grow(network, kind):
    before, channels = network.last, network.dimensions()[1]
    steps = {
        "CONV_2D": lambda: network.add(
            "CONV_2D", before, network.constant(4, channels, 3, 3, axis=0), result=network.type(0.05), pads=(1, 1, 1, 1)
        ),
        "ADD": lambda: network.add("ADD", before, before, result=network.type(0.06), fuse_code="relu"),
        "SIGMOID": lambda: network.add("SIGMOID", before, result=network.type(1 / 256)),
        "MAX_POOL_2D": lambda: network.add("MAX_POOL_2D", before, kernel_shape=(2, 2)),
        "AVERAGE_POOL_2D": lambda: network.add(
            "AVERAGE_POOL_2D", before, kernel_shape=(2, 2), result=network.type(0.02)
        ),
        "CONCAT": lambda: network.add("CONCAT", before, before, axis=1),
        "TRANSPOSE": lambda: network.add("TRANSPOSE", before, perm=(0, 1, 3, 2)),
        "DEQUANTIZE": lambda: network.add("QUANTIZE", network.add("DEQUANTIZE", before), result=network.type(0.02)),
        "RELU": lambda: network.add("STORAGE_CAST", network.add("RELU", before), result=network.type(0.03)),
        "PAD": lambda: network.add("PAD", before, mode="constant", pads=(0, 0, 1, 0, 0, 0, 0, 1), value=5.0),
    }
    steps[kind]()


ROUNDED = {"SIGMOID", "AVERAGE_POOL_2D"}
"""The device computes in float32 and the definition in float64, so a result may round to either side of a half."""
KINDS = [
    "CONV_2D",
    "ADD",
    "SIGMOID",
    "MAX_POOL_2D",
    "AVERAGE_POOL_2D",
    "CONCAT",
    "TRANSPOSE",
    "DEQUANTIZE",
    "RELU",
    "PAD",
]


def feeds(model):
    dimensions = model.operands[model.inputs[0]].type.dimensions
    return [np.random.default_rng(5).standard_normal(dimensions).astype(np.float32) * 2]


def check(function, model):
    after = function(model)
    verify(after)
    verify_again(after)
    assert border(after) == border(model)
    given = feeds(model)
    for got, expected in zip(by_definition(after, given), by_definition(model, given), strict=True):
        np.testing.assert_array_equal(got, expected)
    return after


@for_every(name=PASSES, kind=KINDS, dtype=[DataType.INT8, DataType.UINT8])
def test_every_pass_keeps_the_integers(name, kind, dtype):
    network = Network(dtype=dtype)
    grow(network, kind)
    network.add("DEQUANTIZE", network.last)
    check(PASSES[name], network.finish())


@pytest.mark.slow
@given(st.data())
def test_networks_on_the_device_and_through_passes(data):
    network = Network(data.draw(st.integers(0, 9)), data.draw(st.sampled_from([DataType.INT8, DataType.UINT8])))
    outputs = []
    for _ in range(data.draw(st.integers(1, 5))):
        kind = data.draw(st.sampled_from(KINDS))
        if "POOL" not in kind or min(network.dimensions()[2:]) > 1:
            grow(network, kind)
        if data.draw(st.integers(0, 3)) == 0:
            outputs.append(network.last)
    model = network.finish(*dict.fromkeys([*outputs, network.last]))
    names = data.draw(st.permutations(sorted(PASSES)))
    check(lambda model: run_passes(model, names), model)
    check(lambda model: run_passes(model, DEVICE_PASSES), model)
    if not ROUNDED & set(types(model)):
        for got, expected in zip(run_model(model, feeds(model)), by_definition(model, feeds(model)), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_signed_operands_become_unsigned():
    network = Network()
    for kind in ("CONV_2D", "ADD", "MAX_POOL_2D"):
        grow(network, kind)
    network.add("DEQUANTIZE", network.last)
    after = check(PASSES["symmetric_to_asymmetric"], network.finish())
    assert types(after) == ["QUANTIZE", "CONV_2D", "ADD", "MAX_POOL_2D", "DEQUANTIZE"]
    assert {operand.type.dtype for operand in after.operands} == {DataType.FLOAT32, DataType.UINT8}
    assert origins(after) == {f"n{number}" for number in (1, 3, 4, 5, 6)}
    filter_ = after.operands[after.operations[1].inputs[1]].type.quantization
    assert filter_.zero_point == (128,) * 4


def test_signed_outputs_stay_signed():
    network = Network()
    grow(network, "CONV_2D")
    after = check(PASSES["symmetric_to_asymmetric"], network.finish())
    assert types(after) == ["QUANTIZE", "CONV_2D", "DEQUANTIZE", "QUANTIZE"]


def test_unsigned_models_are_unchanged():
    network = Network(dtype=DataType.UINT8)
    grow(network, "ADD")
    model = network.finish()
    assert PASSES["symmetric_to_asymmetric"](model) is model


def test_operations_without_integer_form_are_dequantized():
    network = Network()
    grow(network, "ADD")
    assert types(check(PASSES["quantized_to_real"], network.finish())) == [
        "QUANTIZE",
        "DEQUANTIZE",
        "DEQUANTIZE",
        "ADD",
        "QUANTIZE",
    ]
    for kind in ("SIGMOID", "CONV_2D", "CONCAT"):
        network = Network()
        grow(network, kind)
        model = network.finish()
        assert PASSES["quantized_to_real"](model) is model


def test_scales_are_not_folded_into_quantized_products():
    network = Network()
    weights = network.constant(4, 3, 1, 1)
    network.add("CONV_2D", network.last, weights)
    ones = network.builder.add_constant("ones", np.full((1, 4, 1, 1), 300, np.int32))
    network.add("ADD", network.last, ones)
    after = check(PASSES["fuse_scale_and_bias"], network.finish())
    assert types(after) == ["QUANTIZE", "CONV_2D", "ADD"]


def test_scalar_constant_becomes_unsigned():
    builder = ModelBuilder()
    constant = builder.add_constant("c", np.array(3, np.int8), Quantization(scale=(0.5,), zero_point=(1,)))
    model = builder.finish(builder.add_operation("DEQUANTIZE", (constant,)))
    after = PASSES["symmetric_to_asymmetric"](model)
    verify(after)
    assert by_definition(after, []) == by_definition(model, []) == [1.0]


def test_integers_of_visible_constants_are_preserved():
    builder = ModelBuilder()
    constant = builder.add_constant("c", np.array([3, -4, 5], np.int8), Quantization(scale=(0.5,), zero_point=(1,)))
    (reals,) = builder.add_operation("DEQUANTIZE", (constant,))
    (place,) = builder.add_operation("ARG_MIN", (constant,), {"axis": 0})
    model = builder.finish((reals, place, constant))
    after = PASSES["symmetric_to_asymmetric"](model)
    verify(after)
    for got, expected in zip(by_definition(after, []), by_definition(model, []), strict=True):
        np.testing.assert_array_equal(got, expected)
