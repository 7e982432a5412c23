from __future__ import annotations

import gc
import os
import sys
import threading
import warnings

import numpy as np
import onnx
import pytest
from onnx import helper

import nnadapter as nna
from nnadapter.drivers import ModelForm, Reason, Threading
from nnadapter.drivers.envelope import Envelope
from nnadapter.drivers.openvino import engine
from nnadapter.errors import (
    CompilationError,
    DeviceLostError,
    DeviceNotFoundError,
    DeviceUnavailableError,
    ExecutionError,
    IncompatibleProgramError,
    InvalidOptionError,
)
from nnadapter.onnx import with_references
from tests.drivers.openvino.harness import computed, context, model_of, read_only
from tests.models import numbers, run_whole

X = numbers(2, 1, 3)
SMALL = "(float[2,1,3] x) => (float[2,1,3] y, float[2,1,3] z) { y = Relu(x)  z = Neg(y) }"


def rows():
    return {row.name: row for row in nna.devices() if row.name.startswith("openvino")}


def test_each_kind_of_device_is_listed():
    listed = rows()
    assert listed["openvino:CPU"].available and listed["openvino:CPU"].version
    for kind in ("GPU", "NPU"):
        assert any(
            name.startswith(f"openvino:{kind}") and (row.available or row.reason) for name, row in listed.items()
        )


def test_row_of_a_missing_package_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)  # simulates a missing package
    assert {name: "pip install 'nnadapter[openvino]'" in row.reason for name, row in rows().items()} == dict.fromkeys(
        ["openvino:CPU", "openvino:GPU", "openvino:NPU"], True
    )


def test_the_capability():
    capability = nna.drivers.registry.open_device("openvino:CPU").capability
    assert (capability.form, capability.threading) == (ModelForm.ONNX, Threading.EXCLUSIVE)
    assert {"precision", "threads", "performance_hint"} <= {option.name for option in capability.options}


@pytest.mark.parametrize(
    ("name", "kind"), [("openvino:TPU", DeviceNotFoundError), ("openvino:CPU.7", DeviceUnavailableError)]
)
def test_missing_devices(name, kind):
    with pytest.raises(kind, match="CPU"):
        nna.InferenceSession(model_of(SMALL), devices=name)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"precision": "float128"}, "one of float32"),
        ({"performance_hint": "fast"}, "one of latency, throughput"),
        ({"threads": -1}, "at least 0"),
        ({"thread": 1}, "threads"),
    ],
)
def test_wrong_options_list_the_allowed_values(options, reason):
    with pytest.raises(InvalidOptionError, match=reason):
        context(**options)


@pytest.mark.parametrize("options", [{}, {"threads": 1}, {"performance_hint": "throughput"}])
def test_options_reach_the_engine_and_floats_stay_exact(options):
    compiled = context(**options).compile(model_of(SMALL))._living.compiled
    assert compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name() == "f32"
    assert not options.get("threads") or compiled.get_property("INFERENCE_NUM_THREADS") == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(double[2] x) => (double[2] y) { y = Relu(x) }", Reason.UNSUPPORTED_DTYPE),
        ("(int64[2] x) => (int64[2] y) { y = Identity(x) }", Reason.UNSUPPORTED_DTYPE),
        ("(int32[2] x, int32[2] z) => (bool[2] y) { y = Less(x, z) }", Reason.UNSUPPORTED_DTYPE),
        ("(string[2] x) => (string[2] y) { y = Identity(x) }", Reason.UNSUPPORTED_TYPE),
        ("(float[0, 2] x) => (float[0, 2] y) { y = Relu(x) }", Reason.UNSUPPORTED_TYPE),
        ("(float[N, 4, 8] x) => (float[N, 4, 8] y) { y = LRN <size = 3> (x) }", Reason.UNSUPPORTED_OPERATION),
        ("(float16[N] x) => (float16[N] y) { y = Softsign(x) }", Reason.UNSUPPORTED_DTYPE),
        ("(float[2] x) => (float[2] y) { y = com.microsoft.Gelu(x) }", Reason.UNSUPPORTED_DOMAIN),
        ("(float[2] x) => (float[2] y) { y = Softplus(x) }", Reason.UNSUPPORTED_OPERATION),
        ("(float[2] x, int64[1] s) => (float[N, M] y) { y = Reshape(x, s) }", Reason.NOT_CONSTANT),
    ],
)
def test_wrong_forms_are_refused(text, reason):
    (verdict,) = context().supported(model_of(text))
    assert verdict.reason is reason and verdict.detail


def test_switched_off_ops_are_refused():
    verdicts = context(switched_off="Neg").supported(model_of(SMALL))
    assert [bool(verdict) for verdict in verdicts] == [True, False]


def test_unknown_ops_cannot_be_switched_off():
    with pytest.raises(InvalidOptionError, match=r"names 'Rellu', none of the \d+ op types .* mean 'Relu' or"):
        context(switched_off="Neg,Rellu")


@pytest.mark.parametrize(
    "text",
    [
        "(float[2,1,3] x) => (y, w, z) { z = Sum(x)  w = Relu(z)  y = Min(x) }",
        "(float[2,1,3] x) => (y) { y = Dropout(x) }",
        "(float[2,1,3] x) => (y, z) { y = Relu(x)  z = Identity(y) }",
        "(float[2,1,3] x, float[2,1,3] unused) => (y) { y = Neg(x) }",
        "(float[2,1,3] unused, float[2,1,3] x) => (y) { y = Sum(x) }",
        "(float x) => (y) { y = Neg(x) }",
        "(float x) => (y) { y = Max(x) }",
        "(bool[2,3] x) => (y) { y = Not(x) }",
        "(float[4,3] x, int64[2] i) => (y) { y = Gather(x, i) }",
        "(float[2,3] x) => (y, z) { y = ArgMax(x)  z = Shape(x) }",
        "(int64[2,3] x) => (y, z) <float[4,2] w = {1,2,3,4,5,6,7,8}> { y = Gather(w, x)  z = Gather(w, x) }",
    ],
)
def test_inputs_and_outputs_that_the_engine_changes(text):
    model = model_of(text)
    feed = {value.name: array_for(value) for value in model.graph.input}
    expected = run_whole(model, feed)
    for is_repeated in range(2):
        feed = feed if not is_repeated else {name: array.copy() for name, array in feed.items()}
        for mine, theirs in zip(computed(context(), model, feed.values()), expected, strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)


def array_for(value):
    shape = tuple(dimension.dim_value for dimension in value.type.tensor_type.shape.dim)
    kind = {7: np.int64, 9: np.bool_}.get(value.type.tensor_type.elem_type, np.float32)
    return np.random.default_rng(len(shape)).integers(0, 2, shape).astype(kind)


def test_inputs_are_unchanged_and_results_belong_to_the_caller():
    execution = context().compile(model_of(SMALL)).create_execution()
    inputs_array = read_only(X)
    first = execution.compute([inputs_array])
    copies = [array.copy() for array in first]
    second = execution.compute([read_only(-X)])
    np.testing.assert_array_equal(inputs_array, X)
    for first_result, copy, second_result in zip(first, copies, second, strict=True):
        np.testing.assert_array_equal(first_result, copy)
        assert not np.shares_memory(first_result, second_result)


def test_inputs_at_new_addresses_or_with_new_contents():
    execution = context().compile(model_of(SMALL)).create_execution()
    array = X.copy()
    for number in range(5):
        array[:] = number - 2
        np.testing.assert_array_equal(execution.compute([array])[0], np.maximum(array, 0))
        np.testing.assert_array_equal(execution.compute([read_only(X * number)])[0], np.maximum(X * number, 0))


def test_wrong_inputs_raise_our_error():
    execution = context().compile(model_of(SMALL)).create_execution()
    with pytest.raises(ExecutionError, match="check the inputs"):
        execution.compute([np.zeros((7, 7), np.float32)])


def test_concurrent_executions():
    program = context().compile(model_of(SMALL))
    wrong = []

    def work(seed):
        execution = program.create_execution()
        for number in range(50):
            array = numbers(2, 1, 3, seed=seed + number)
            if not np.array_equal(execution.compute([array])[0], np.maximum(array, 0)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(100 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_node_that_only_the_compiler_refuses_is_named():
    model = model_of("(string[4] s, float[4] x) => (bool[4] b, float[4] y) { y = Relu(x)  b = Equal(s, s) }")
    opened = context()
    assert opened._asker._query(model) is None  # the engine claims support
    with pytest.raises(CompilationError, match="OpenVINO does not compile") as caught:
        opened.compile(model)
    assert list(caught.value.refused) == [1]
    assert caught.value.refused[1].reason is Reason.COMPILE_FAILED


def test_programs_are_serialized_and_deserialized():
    model = model_of(SMALL)
    blob = context().compile(model).serialize()
    execution = context().deserialize(blob).create_execution()
    for mine, theirs in zip(execution.compute([read_only(X)]), run_whole(model, {"x": X}), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_gets_an_error_about_missing_threads():
    model, opened = model_of(SMALL), context()
    program = opened.compile(model)
    blob = program.serialize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about forks in threaded processes
        child = os.fork()
    if child == 0:
        errors = 0
        for make in (lambda: opened.compile(model), lambda: opened.deserialize(blob)):
            try:
                make()
            except DeviceLostError:
                errors += 1
        os._exit(errors)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def test_damaged_programs_are_refused():
    blob = context().compile(model_of(SMALL)).serialize()
    for position in range(0, len(blob), max(1, len(blob) // 40)):
        tampered = blob[:position] + bytes([blob[position] ^ 1]) + blob[position + 1 :]
        with pytest.raises(IncompatibleProgramError, match="compile the model again"):
            context().deserialize(tampered)
    for cut in (0, 10, len(blob) // 2):
        with pytest.raises(IncompatibleProgramError):
            context().deserialize(blob[:cut])


def test_programs_of_another_engine_or_other_options_are_refused(monkeypatch):
    blob = context().compile(model_of(SMALL)).serialize()
    with pytest.raises(IncompatibleProgramError, match="properties"):
        context(threads=1).deserialize(blob)
    monkeypatch.setattr("nnadapter.drivers.openvino.driver.version", lambda: "1.0")
    with pytest.raises(IncompatibleProgramError, match="engine"):
        context().deserialize(blob)


def test_plausible_but_invalid_contents_are_refused():
    blob = context().compile(model_of(SMALL)).serialize()
    envelope = Envelope(magic=blob[:8], version=int.from_bytes(blob[8:12], "little"))
    header, contents = envelope.open(blob)
    for forged in (
        envelope.close(header, [b"nothing"]),
        envelope.close(b"{}", [contents]),
        envelope.close(b"[", []),
    ):
        with pytest.raises(IncompatibleProgramError):
            context().deserialize(forged)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.int64])
def test_large_shared_weights(dtype):
    weights = np.random.default_rng(0).integers(-9, 9, (2048, 1024)).astype(dtype)
    nodes = [helper.make_node("Gather", ["w", "i"], ["g"]), helper.make_node("Cast", ["g"], ["y"], to=1)]
    input_info = helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [3])
    output_info = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, 1024])
    initializer = onnx.numpy_helper.from_array(weights, "w")
    graph = helper.make_graph(nodes, "g", [input_info], [output_info], [initializer])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    light, arrays = with_references(model)
    assert len(arrays) == 1 and light is not model
    rows = np.array([5, 0, 2047])
    for variant in (light, model):
        np.testing.assert_array_equal(computed(context(), variant, [rows])[0], weights[rows].astype(np.float32))


def test_integer_outputs_of_onnxruntime_are_accepted():
    model = model_of(
        "(float[2,3] x) => (float[2,3,4] y) <float[3,4] w = {0,1,2,3,4,5,6,7,8,9,10,11}>"
        "{ i = Cast<to = 7>(x)  y = Gather(w, i) }"
    )
    with nna.InferenceSession(model, devices=("openvino", {"switched_off": "Cast"})) as session:
        (y,) = session.run(None, {"x": np.array([[0, 1, 2], [2, 1, 0]], np.float32)})
        assert [(step.device, step.failure) for step in session.provenance.steps] == [("cpu", ""), ("openvino", "")]
    np.testing.assert_array_equal(y[0], np.arange(12, dtype=np.float32).reshape(3, 4))


def test_old_engine_with_wrong_results_is_refused():
    with pytest.raises(DeviceUnavailableError, match=r"2026.0 or later.*2025.4.1; run: pip install"):
        engine.refuse_older("2025.4.1-20426-82bbf0292c5-releases/2025/4")
    engine.refuse_older("2026.0.0")


def test_error_texts_of_the_engine_lose_source_locations():
    error = RuntimeError("Exception from src/a/b.cpp:12:\nCheck 'x == y' failed at src/c.cpp:3:\nshapes differ\n")
    assert engine.brief(error) == "shapes differ"
    assert engine.brief(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize(("channels", "groups"), [(2048, 2048), (1024, 32), (256, 1)])
def test_grouped_convolutions_with_large_filters(channels, groups):
    filters = onnx.numpy_helper.from_array(np.full((channels, channels // groups, 3, 3), 0.01, np.float32), "w")
    image = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, channels, 4, 4]) for name in "xy"]
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=groups, pads=[1, 1, 1, 1])
    assert all(context().supported(helper.make_model(helper.make_graph([node], "g", image[:1], image[1:], [filters]))))


def test_deserialized_program_keeps_its_bytes_alive():
    opened, weight = context(), onnx.numpy_helper.from_array(numbers(64, 64), "w")
    model = model_of("(float[2,64] x) => (float[2,64] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(weight)
    x = numbers(2, 64)
    program = opened.deserialize_view(memoryview(opened.compile(model).serialize()))
    execution = program.create_execution()
    program.close()
    del program
    gc.collect()
    (y,) = execution.compute([read_only(x)])
    np.testing.assert_allclose(y, x @ onnx.numpy_helper.to_array(weight), rtol=1e-5, atol=1e-5)
    execution.close()
