from __future__ import annotations

import os
import sys
import threading
import warnings

import jax
import ml_dtypes
import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers import Compatibility, DynamicShapes, ModelForm, Reason, Threading
from nnadapter.drivers.registry import open_device
from nnadapter.errors import DeviceNotFoundError, DeviceUnavailableError, IncompatibleProgramError, InvalidOptionError
from tests.drivers.xla.harness import DEVICE, computed, context, model_of, numbers, relu
from tests.models import HEAD, parse

SMALL = (
    f"{HEAD} g (float[2,3] x) => (float[2,3] y, int64[2] z) {{ y = Relu(x)  z = ArgMax<axis = 1, keepdims = 0>(y) }}"
)


def rows():
    return {row.name: row for row in nna.devices() if row.name.startswith("xla")}


def test_each_kind_of_device_is_listed():
    listed = rows()
    assert listed["xla:cpu"].available and listed["xla:cpu"].version
    for kind in ("gpu", "tpu"):
        assert listed[f"xla:{kind}"].available or f"JAX finds no {kind}" in listed[f"xla:{kind}"].reason


def test_row_of_a_missing_package_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)  # simulates a missing package
    expected = {name: f"device {name!r} needs the package jax" for name in ("xla:cpu", "xla:gpu", "xla:tpu")}
    listed = rows()
    assert listed.keys() == expected.keys()
    for name, text in expected.items():
        assert text in listed[name].reason and "pip install 'nnadapter[xla]'" in listed[name].reason


@pytest.mark.parametrize(("name", "kind"), [("xla:npu", DeviceNotFoundError), ("xla:cpu.7", DeviceUnavailableError)])
def test_missing_devices(name, kind):
    with pytest.raises(kind):
        open_device(name)


def test_plain_name_selects_the_default_of_jax():
    assert open_device("xla")._device.platform == jax.default_backend()


def test_the_capability():
    capability = open_device(DEVICE).capability
    assert (capability.form, capability.threading) == (ModelForm.IR, Threading.REENTRANT)
    assert capability.dynamic_shapes is DynamicShapes.NONE
    assert {"precision"} == {option.name for option in capability.options}


def test_unknown_option_is_refused():
    with pytest.raises(InvalidOptionError, match="precision"):
        nna.InferenceSession(parse(SMALL), devices=(DEVICE, {"precison": "float32"}))


def test_session_runs_entirely_on_the_device():
    x = numbers(2, 3)
    with nna.InferenceSession(parse(SMALL), devices=DEVICE, options=nna.Options(fallback="forbid")) as session:
        y, z = session.run(None, {"x": x})
        assert session.report().coverage.nodes == 1
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    np.testing.assert_array_equal(z, np.argmax(y, 1))
    assert z.dtype == np.int64


def test_64_bit_types_work_without_changing_jax():
    large = np.array([2**40, -3])
    (result,) = computed(model_of("ADD", [("int64", (2,)), ("int64", (2,))]), large, large)
    assert result.dtype == np.int64 and result.tolist() == [2**41, -6]
    assert not jax.config.jax_enable_x64
    assert jax.numpy.arange(3).dtype == np.int32


@pytest.mark.parametrize(
    ("type_", "dtype"), [("RELU", "float8_e5m2"), ("ADD", "int4"), ("SIN", "float8_e4m3fn"), ("MAX", "uint4")]
)
def test_narrow_types_are_refused_with_the_reason(type_, dtype):
    count = 2 if type_ in ("ADD", "MAX") else 1
    (verdict,) = context().supported(model_of(type_, [(dtype, (2,))] * count))
    assert verdict.reason is Reason.UNSUPPORTED_DTYPE and dtype in verdict.detail


def test_results_belong_to_the_caller_and_share_no_memory():
    execution = context().compile(model_of("ASSIGN", [("float32", (64,))])).create_execution()
    x = numbers(64)
    (first,) = execution.compute([x])
    (second,) = execution.compute([x])
    first += 1
    np.testing.assert_array_equal(second, x)
    assert not np.shares_memory(first, x)


def test_results_outlive_the_program():
    program = context().compile(relu(1 << 12))
    x = numbers(1 << 12)
    execution = program.create_execution()
    (result,) = execution.compute([x])
    execution.close()
    program.close()
    np.testing.assert_array_equal(result, np.maximum(x, 0))


def test_4_bit_results_have_one_byte_per_element():
    values = np.array([-8, 7, 3], np.int8).astype("int4")
    (result,) = computed(model_of("ASSIGN", [("int4", (3,))]), values)
    assert result.dtype == values.dtype and result.tolist() == values.tolist()


def test_many_threads_share_an_execution():
    execution = context().compile(model_of("SUM", [("float32", (256, 256))] * 2)).create_execution()
    results = {}

    def work(number):
        x = np.full((256, 256), number, np.float32)
        results[number] = [float(execution.compute([x, x])[0].max()) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [2.0 * number] * 5 for number in range(4)}


def test_serialization_round_trip():
    weight = numbers(3, 5)
    x = numbers(2, 5)
    model = model_of("FULLY_CONNECTED", [("float32", (2, 5))], constants=[weight])
    program = context().compile(model)
    blob = program.serialize()
    assert context().check_blob(memoryview(blob)) is Compatibility.IDENTICAL
    deserialized = context().deserialize_view(memoryview(blob))
    np.testing.assert_array_equal(deserialized.create_execution().compute([x])[0], computed(model, x)[0])
    assert deserialized.serialize() == blob
    assert deserialized.memory_bytes >= weight.nbytes and deserialized.execution_bytes == 0


def test_a_program_of_another_precision_is_compiled_again():
    blob = context().compile(relu()).serialize()
    other = context(precision="bfloat16")
    assert other.check_blob(memoryview(blob)) is Compatibility.RECOMPILE
    with pytest.raises(IncompatibleProgramError, match="precision 'float32', the context has 'bfloat16'"):
        other.deserialize(blob)


def test_a_damaged_program_is_refused():
    blob = bytearray(context().compile(relu()).serialize())
    blob[-40] ^= 1
    with pytest.raises(IncompatibleProgramError):
        context().deserialize(bytes(blob))
    assert context().check_blob(memoryview(b"something else")) is Compatibility.INCOMPATIBLE


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_gets_an_error_about_missing_threads():
    program = context().compile(relu())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python and JAX warn about forks
        child = os.fork()
    if child == 0:
        try:
            program.create_execution().compute([numbers(4)])
        except nna.errors.DeviceLostError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def rounded(array):
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def test_cpu_rounds_operands_of_products_to_bfloat16():
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
        g (float[4, 64] x, float[64, 8] w, float[8] b) => (float[4, 8] y) { z = MatMul(x, w) y = Add(z, b) }""")
    feed = {"x": numbers(4, 64), "w": numbers(64, 8), "b": numbers(8)}
    with nna.InferenceSession(model, devices="xla:cpu@bfloat16") as session:
        (result,) = session.run(None, feed)
    expected = rounded(feed["x"]).astype(np.float64) @ rounded(feed["w"]).astype(np.float64) + feed["b"]
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(result - (feed["x"] @ feed["w"] + feed["b"])).max() > 1e-3


def test_bias_of_a_convolution_is_not_rounded():
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
        g (float[1, 3, 8, 8] x, float[4, 3, 1, 1] w, float[4] b) => (float[1, 4, 8, 8] y) { y = Conv(x, w, b) }""")
    feed = {"x": np.zeros((1, 3, 8, 8), np.float32), "w": numbers(4, 3, 1, 1), "b": numbers(4)}
    with nna.InferenceSession(model, devices="xla:cpu@bfloat16") as session:
        (result,) = session.run(None, feed)
    np.testing.assert_array_equal(result[0, :, 0, 0], feed["b"])
