from __future__ import annotations

import gc
import re
import struct
import threading
from hashlib import sha256

import numpy as np
import pytest

from nnadapter import InferenceSession
from nnadapter.drivers import ModelForm, Reason, Threading
from nnadapter.drivers.fake_npu import OPERATIONS, FakeNpuDriver, operations_named
from nnadapter.errors import DeviceNotFoundError, IncompatibleProgramError, InvalidOptionError
from nnadapter.ir import SCHEMAS, DataType, ModelBuilder, OperandType
from nnadapter.ir.definition import by_definition
from tests.drivers.fake_npu.harness import close, context, floats, model_of, type_of
from tests.models import parse, run_whole


def small_network(batch=1, size=12):
    """Build a network with two outputs."""
    builder = ModelBuilder()
    x = builder.add_input("x", type_of(floats(batch, 4, size, size)))
    weights = [floats(4, 4, 3, 3, seed=1), floats(4, seed=2), floats(4, seed=3), floats(4, seed=4), np.abs(floats(4))]
    constants = [builder.add_constant(f"w{index}", weight) for index, weight in enumerate(weights)]
    (y,) = builder.add_operation("CONV_2D", (x, constants[0]), {"pads": (1, 1, 1, 1)}, origins=("Conv_0",))
    (y,) = builder.add_operation("BATCH_NORMALIZATION", (y, *constants[1:]), {"epsilon": 1e-5}, origins=("Bn_1",))
    (y,) = builder.add_operation("RELU", (y,), origins=("Relu_2",))
    (y,) = builder.add_operation("ADD", (y, x), origins=("Add_3",))
    (mean,) = builder.add_operation("REDUCE_MEAN", (y,), {"axes": (2, 3), "keepdims": False}, origins=("Mean_4",))
    matrix = builder.add_constant("matrix", floats(4, 3, seed=5))
    (z,) = builder.add_operation("MAT_MUL", (mean, matrix), origins=("MatMul_5",))
    return builder.finish((z, y))


def test_capability():
    device = FakeNpuDriver().open("0")
    capability = device.capability
    assert capability.form is ModelForm.IR
    assert capability.threading is Threading.EXCLUSIVE
    assert {row.type for row in capability.operations} == set(OPERATIONS)
    with pytest.raises(DeviceNotFoundError, match="'7'"):
        FakeNpuDriver().open("7")


def test_the_table_names_operations_of_the_ir():
    assert set(OPERATIONS) <= set(SCHEMAS)


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("ERF", "ERF"),
        ("Erf", "ERF"),
        ("HardSigmoid", "HARD_SIGMOID"),
        ("Resize", "RESIZE_LINEAR"),
        ("Conv", "CONV_2D"),
        ("MatMul", "MAT_MUL"),
        ("ConvTranspose", "CONV_2D_TRANSPOSE"),
        ("max_pool", "MAX_POOL_2D"),
    ],
)
def test_switched_off_by_either_name(name, type_):
    assert type_ in operations_named([name])


def test_switched_off_operations_are_refused():
    relu, erf = model_of("RELU", [floats(3)])[0], model_of("ERF", [floats(3)])[0]
    opened = context(switched_off=("Erf",))
    assert opened.supported(relu)[0]
    (verdict,) = opened.supported(erf)
    assert verdict.reason is Reason.SWITCHED_OFF
    assert "switched_off" in verdict.detail


def test_an_unknown_operation_cannot_be_switched_off():
    with pytest.raises(InvalidOptionError, match=r"'Sigmid'.*SIGMOID"):
        context(switched_off=("Sigmid",))


REFUSALS = {
    "float64": ("SOFTMAX", [np.zeros(3)], {"axis": 0}, Reason.UNSUPPORTED_DTYPE, "float64.*accepted: .*float32"),
    "uint16 sum": ("ADD", [np.zeros(3, np.uint16)] * 2, {}, Reason.UNSUPPORTED_DTYPE, "uint16"),
    "output": ("CAST", [np.zeros(3, np.int8)], {"to": "uint16"}, Reason.UNSUPPORTED_DTYPE, "uint16"),
    "rank": ("RELU", [floats(1, 1, 1, 1, 1, 1, 1)], {}, Reason.UNSUPPORTED_RANK, "rank 0 to 6"),
    "empty": ("RELU", [floats(3, 0)], {}, Reason.UNSUPPORTED_TYPE, "at least one element"),
}


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
def test_refusals_have_got_and_accepted_values(case):
    type_, arrays, attributes, reason, text = case
    model, _ = model_of(type_, arrays, attributes)
    (verdict,) = context().supported(model)
    assert not verdict
    assert verdict.reason is reason
    assert re.search(text, verdict.detail), verdict.detail


def test_admission_names_fused_operations():
    admission = context().admit(small_network())
    assert admission.verdict
    convolution, norm, relu, add, mean, product = admission.runs_as
    assert convolution == norm == relu == "convolution+relu of Conv_0"
    assert (add, product) == ("add of Add_3", "fully connected of MatMul_5")
    assert mean == "reduce mean of Mean_4"
    assert 0 < admission.facts["arena_lower_bound_bytes"] <= admission.facts["arena_bytes"]


def test_memory_limit():
    model = small_network()
    facts = context().admit(model).facts
    border = sum(model.operands[operand].type.nbytes for operand in (*model.inputs, *model.outputs))
    needed = facts["weight_bytes"] + facts["arena_bytes"] + border
    assert context(memory_bytes=needed).admit(model).verdict
    verdict = context(memory_bytes=needed - 1).admit(model).verdict
    assert verdict.reason is Reason.MEMORY_LIMIT
    assert str(needed) in verdict.detail
    assert str(needed - 1) in verdict.detail


def test_compile_consumes_the_admitted_lowering():
    opened, model = context(), small_network()
    opened.admit(model)
    prepared = opened._compiler._admitted[model]
    assert opened.compile(model).memory is prepared.memory
    assert not opened._compiler._admitted


def test_admitted_lowering_is_freed_with_the_model():
    opened = context()
    opened.admit(small_network())
    gc.collect()
    assert not opened._compiler._admitted


def test_deserialized_programs_compute_the_same():
    opened, model, x = context(), small_network(size=120), floats(1, 4, 120, 120, seed=9)
    program = opened.compile(model)
    blob = program.serialize()
    deserialized = opened.deserialize(blob)
    for result, expected in zip(
        deserialized.create_execution().compute([x]), program.create_execution().compute([x]), strict=True
    ):
        np.testing.assert_array_equal(result, expected)
    assert deserialized.serialize() == blob
    assert 0 < program.memory_bytes < program.memory.arena_bytes, "the arena is the context's"
    assert program.memory_bytes < deserialized.memory_bytes < program.memory_bytes + len(blob)  # owns its weights


def spoiled(blob):
    yield "empty", b""
    yield "truncated", blob[:-1]
    yield "short", blob[:20]
    yield "changed weight", blob[:-100] + bytes([blob[-100] ^ 1]) + blob[-99:]
    yield "changed header", blob[:80] + bytes([blob[80] ^ 1]) + blob[81:]
    yield "not ours", b"OTHER" + blob[5:]
    yield "other version", blob[:8] + struct.pack("<I", 999) + blob[12:]


def test_damaged_programs_are_refused():
    opened = context()
    blob = opened.compile(small_network()).serialize()
    assert sha256(blob[12:16] + blob[48:]).digest() == blob[16:48]
    for name, damaged in spoiled(blob):
        with pytest.raises(IncompatibleProgramError, match="compile the model again"):
            opened.deserialize(damaged)
            pytest.fail(name)


def test_results_belong_to_the_caller():
    model, x = small_network(), floats(1, 4, 12, 12)
    x.flags.writeable = False
    opened = context()
    execution = opened.compile(model).create_execution()
    first = execution.compute([x])
    copies = [result.copy() for result in first]
    second = execution.compute([x + 1])
    for result, copy, other in zip(first, copies, second, strict=True):
        np.testing.assert_array_equal(result, copy)
        assert not np.shares_memory(result, other)
        with opened.arenas.acquire(0) as arena:
            assert not np.shares_memory(result, arena.bytes)


def test_executions_run_concurrently():
    model = small_network()
    program = context().compile(model)
    feeds = [floats(1, 4, 12, 12, seed=seed) for seed in range(4)]
    expected = [program.create_execution().compute([x])[0] for x in feeds]
    results = [None] * 4

    def work(index):
        execution = program.create_execution()
        for _ in range(20):
            results[index] = execution.compute([feeds[index]])[0]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, right)


def test_inputs_and_constants_as_outputs_are_copied():
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (2, 3)))
    constant = builder.add_constant("c", floats(3))
    (view,) = builder.add_operation("RESHAPE", (x,), {"shape": (6,)})
    model = builder.finish((x, view, constant, view))
    array = floats(2, 3, seed=1)
    results = context().compile(model).create_execution().compute([array])
    for result, expected in zip(results, (array, array.ravel(), floats(3), array.ravel()), strict=True):
        np.testing.assert_array_equal(result, expected)
        assert not np.shares_memory(result, array)
        assert result.flags.writeable


def test_in_place_results_do_not_overwrite_values_read_later():
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (8, 8)))
    (a,) = builder.add_operation("EXP", (x,))
    (b,) = builder.add_operation("NEG", (a,))
    (c,) = builder.add_operation("MUL", (a, b))
    (row,) = builder.add_operation("REDUCE_SUM", (c,), {"axes": (0,), "keepdims": True})
    (square,) = builder.add_operation("MUL", (c, c))
    (out,) = builder.add_operation("SUB", (square, row))
    model = builder.finish((out,))
    array = floats(8, 8)
    c = np.exp(array) * -np.exp(array)
    opened = context()
    close(opened.compile(model).create_execution().compute([array])[0], c * c - c.sum(0), 1e-4)
    assert opened.admit(model).facts["arena_bytes"] <= 2 * 256 + 64


def test_half_precision():
    model, x = small_network(), floats(1, 4, 12, 12, seed=3)
    exact = context().compile(model).create_execution().compute([x])
    rounded = context(precision="float16").compile(model).create_execution().compute([x])
    for result, right in zip(rounded, exact, strict=True):
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, result.astype(np.float16))
        assert 0 < np.abs(result - right).max() < 0.05


def test_half_precision_keeps_masks_of_the_lowest_float32_finite():
    """float16 must not turn (1 - mask) * -3.4e38 into NaN at visible positions."""
    model = parse("""<ir_version: 8, opset_import: ["": 17]> g (float[2, 4] x, float[2, 4] mask) => (float[2, 4] y)
    <float one = {1}, float least = {-3.4028235e38}> {
        a = Sub(one, mask)  m = Mul(a, least)  s = Add(x, m)  y = Softmax<axis = -1>(s)
    }""")
    feed = {"x": floats(2, 4), "mask": np.array([[1, 1, 0, 1], [1, 1, 1, 1]], np.float32)}
    with InferenceSession(model, devices=("fake_npu", {"precision": "float16"})) as session:
        (result,) = session.run(None, feed)
        assert {step.device for step in session.provenance.steps} == {"fake_npu"}
    np.testing.assert_allclose(result, run_whole(model, feed)[0], atol=1e-3)


def test_float16_models():
    x, y = floats(3, 4).astype(np.float16), floats(4, 5, seed=1).astype(np.float16)
    model, feeds = model_of("MAT_MUL", [x, y])
    (result,) = context().compile(model).create_execution().compute(feeds)
    assert result.dtype == np.float16
    np.testing.assert_array_equal(result, (x.astype(np.float32) @ y.astype(np.float32)).astype(np.float16))


@pytest.mark.parametrize("batch", [1, 3])
def test_network_equals_its_definition(batch):
    model, x = small_network(batch), floats(batch, 4, 12, 12, seed=7)
    expected = by_definition(model, [x])
    for result, right in zip(context().compile(model).create_execution().compute([x]), expected, strict=True):
        close(result, right, 1e-4)
