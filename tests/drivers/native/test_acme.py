from __future__ import annotations

import threading

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers import Control, DeviceTensor, Reason, registry
from nnadapter.errors import (
    CancelledError,
    CompilationError,
    DeadlineExceededError,
    DeviceNotFoundError,
    DriverError,
    ExecutionError,
    InvalidInputError,
    InvalidOptionError,
    OutOfMemoryError,
)
from nnadapter.ir import DataType, Layout, ModelBuilder, OperandType
from tests.drivers.native.acme_models import MODELS, OPTIONS, check, feeds_of, model_of
from tests.models import HEAD, parse

RANDOM = np.random.default_rng(4)


def chain(count=3, dimensions=(4, 5), type_="RELU"):
    builder = ModelBuilder()
    value = builder.add_input("x", OperandType(DataType.FLOAT32, dimensions))
    for _ in range(count):
        (value,) = builder.add_operation(type_, (value,))
    return builder.finish([value])


def execution_of(device, model, **options):
    return device.create_context({**OPTIONS, **options}).compile(model).create_execution()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_model_results_equal_onnxruntime(acme, name):
    check(name)


def test_nan_stays_nan(device):
    x = np.array([[np.nan, -1, 2, -np.inf, np.inf]], np.float32)
    (result,) = execution_of(device, chain(1, (1, 5))).compute([x])
    np.testing.assert_array_equal(result, np.maximum(x, 0))


@pytest.mark.parametrize("which", ["input", "constant", "twice"])
def test_outputs_without_a_producer_are_copied(device, which):
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (3,)))
    constant = builder.add_constant("c", np.full(3, 7, np.float32))
    (y,) = builder.add_operation("RELU", (x,))
    outputs = {"input": [y, x], "constant": [y, constant], "twice": [y, y]}[which]
    array = np.array([-1, 0, 2], np.float32)
    results = execution_of(device, builder.finish(outputs)).compute([array])
    second = {"input": array, "constant": np.full(3, 7), "twice": np.maximum(array, 0)}[which]
    np.testing.assert_array_equal(results[0], np.maximum(array, 0))
    np.testing.assert_array_equal(results[1], second)


@pytest.mark.parametrize(
    ("type_", "operand", "attributes", "reason"),
    [
        ("SIN", OperandType(DataType.FLOAT32, (2,)), {}, Reason.UNSUPPORTED_OPERATION),
        ("RELU", OperandType(DataType.FLOAT16, (2,)), {}, Reason.UNSUPPORTED_DTYPE),
        ("RELU", OperandType(DataType.FLOAT32, (1,) * 9), {}, Reason.UNSUPPORTED_RANK),
        (
            "MAX_POOL_2D",
            OperandType(DataType.FLOAT32, (1, 4, 4, 2), Layout.NHWC),
            {"kernel_shape": (2, 2)},
            Reason.UNSUPPORTED_ATTRIBUTE,
        ),
    ],
)
def test_refusals_have_reasons(device, type_, operand, attributes, reason):
    builder = ModelBuilder()
    model = builder.finish(builder.add_operation(type_, (builder.add_input("x", operand),), attributes))
    (verdict,) = device.create_context(OPTIONS).supported(model)
    assert verdict.reason is reason and type_ in verdict.detail


def test_fused_activation_is_refused(device):
    builder = ModelBuilder()
    x, y = (builder.add_input(name, OperandType(DataType.FLOAT32, (2, 2))) for name in "xy")
    model = builder.finish(builder.add_operation("MAT_MUL", (x, y), {"fuse_code": "relu"}))
    (verdict,) = device.create_context(OPTIONS).supported(model)
    assert verdict.reason is Reason.UNSUPPORTED_ATTRIBUTE and "fuse_code" in verdict.detail


def test_options(device):
    (verdict,) = device.create_context({**OPTIONS, "switched_off": ("RELU",)}).supported(chain(1))
    assert verdict.reason is Reason.SWITCHED_OFF
    with pytest.raises(InvalidOptionError, match="switched_off names RELO, which the device does not have"):
        device.create_context({**OPTIONS, "switched_off": ("RELO",)})


def test_two_devices(acme):
    rows = {row.name: row for row in nna.devices()}
    assert rows["acme_c"].available and rows["acme_c:1"].available and rows["acme_c:1"].vendor == "Acme"
    with pytest.raises(DeviceNotFoundError, match="there is no device 2; there are 0 and 1"):
        nna.Device.acquire("acme_c:2")


def test_a_segment_too_large_is_refused_and_halved(acme):
    model = model_of("mixed")
    feeds = feeds_of(model)
    results = {}
    for room in (1 << 20, 8192):
        with nna.InferenceSession(model, devices=("acme_c", {"memory_bytes": room})) as session:
            results[room] = session.run(None, feeds)[0], len(session.report().segments)
    np.testing.assert_array_equal(results[8192][0], results[1 << 20][0])
    assert results[1 << 20][1] == 3 and results[8192][1] == 4, "two operations of a segment are apart, one does not fit"


def test_segment_beyond_the_memory_is_refused(device):
    verdict = device.create_context({**OPTIONS, "memory_bytes": 100}).admit(chain()).verdict
    assert verdict.reason is Reason.MEMORY_LIMIT
    assert verdict.detail == "it takes 512 bytes or more, memory_bytes is 100"


def test_admission_reports_the_exact_memory_of_a_run(device):
    initial = device.memory_statistics()
    context = device.create_context(OPTIONS)
    model = chain(6, (1000,))
    admitted_bytes = context.admit(model).facts["memory_bytes"]
    context.compile(model).create_execution().compute([np.zeros(1000, np.float32)])
    final = device.memory_statistics()
    assert (
        admitted_bytes == 2 * 4096
        and final.used_bytes == initial.used_bytes
        and final.peak_bytes >= initial.used_bytes + admitted_bytes
    )


def test_run_without_memory_raises_an_error(device):
    with device.allocate(device.memory_statistics().total_bytes - device.memory_statistics().used_bytes):
        execution = execution_of(device, chain(3))
        with pytest.raises(OutOfMemoryError, match="256 bytes were asked for and 0 are left; free some"):
            execution.compute([np.zeros((4, 5), np.float32)])
    (result,) = execution.compute([np.ones((4, 5), np.float32)])
    assert result.all()


def test_memory_is_counted_in_chunks(device):
    used_bytes, total = device.memory_statistics().used_bytes, device.memory_statistics().total_bytes
    assert device.minimum_chunk == 256
    with device.allocate(1), device.allocate(257):
        assert device.memory_statistics().used_bytes == used_bytes + 256 + 512
    assert device.memory_statistics().used_bytes == used_bytes
    with pytest.raises(OutOfMemoryError, match="are left"):
        device.allocate(total + 1)
    with pytest.raises(OutOfMemoryError):
        device.allocate(2**64 - 1)


def test_copies_in_out_and_between_devices(acme, device):
    other = nna.drivers.registry.open_device("acme_c:1")
    array, copy = RANDOM.random((3, 4)), np.zeros((3, 4))
    with device.allocate(array.nbytes) as source, other.allocate(array.nbytes) as target:
        source.copy_in(array)
        target.copy_from(source)
        target.copy_out(copy)
        np.testing.assert_array_equal(copy, array)
        target.copy_out(copy[:1], offset=32)
        np.testing.assert_array_equal(copy[0], array[1])


@pytest.mark.parametrize(
    "use",
    [
        lambda memory: memory.copy_in(np.zeros(9, np.uint8)),
        lambda memory: memory.copy_in(np.zeros(4, np.uint8), offset=5),
        lambda memory: memory.copy_in(np.zeros(4, np.uint8), offset=-1),
        lambda memory: memory.copy_in(np.zeros((4, 4), np.uint8)[:, 1]),
        lambda memory: memory.copy_out(np.frombuffer(b"1234", np.uint8)),
        lambda memory: memory.copy_from(memory, 9),
    ],
)
def test_out_of_bounds_copies_are_refused(device, use):
    with device.allocate(8) as memory, pytest.raises(InvalidInputError):
        use(memory)


def test_freed_memory_is_not_used(device):
    memory = device.allocate(8)
    memory.free()
    memory.free()
    with pytest.raises(DriverError, match="was freed"):
        memory.copy_in(np.zeros(8, np.uint8))


def test_execution_computes_in_device_memory(device):
    x, copy = RANDOM.standard_normal((4, 5)).astype(np.float32), np.zeros((4, 5), np.float32)
    execution = execution_of(device, chain())
    with device.allocate(x.nbytes) as input_memory:
        input_memory.copy_in(x)
        (output,) = execution.compute_on_device([DeviceTensor(input_memory, x.dtype, x.shape)])
        assert (output.dtype, output.shape, output.nbytes) == (x.dtype, x.shape, x.nbytes)
        output.memory.copy_out(copy)
        output.memory.free()
    np.testing.assert_array_equal(copy, np.maximum(x, 0))
    np.testing.assert_array_equal(execution.compute([x])[0], copy)


def test_streams_do_work_in_order_and_wait_for_events(device):
    first, second, event = device.create_stream(), device.create_stream(), device.create_event()
    array, copy = RANDOM.random(1 << 16), np.zeros(1 << 16)
    with device.allocate(array.nbytes) as source, device.allocate(array.nbytes) as target:
        for value in range(5):
            source.copy_in(array + value, stream=None)
            first.record(event)
            second.wait(event)
            target.copy_from(source, stream=second)
            target.copy_out(copy, stream=second)
            second.synchronize()
            np.testing.assert_array_equal(copy, array + value)
        device.synchronize()
    for handle in (first, second, event, first):
        handle.close()


def test_waiting_for_an_unrecorded_event_returns_at_once(device):
    stream, event = device.create_stream(), device.create_event()
    stream.wait(event)
    stream.synchronize()
    stream.close()
    event.close()


def test_cancelled_calls_raise(device):
    execution = execution_of(device, chain())
    x = np.ones((4, 5), np.float32)
    with pytest.raises(CancelledError, match="cancelled"):
        execution.compute_within([x], Control(cancelled=lambda: True))
    (result,) = execution.compute_within([x], Control(cancelled=lambda: False, deadline_seconds=60))
    assert result.all()
    with pytest.raises(CancelledError):
        device.create_context(OPTIONS).compile_within(chain(), Control(cancelled=lambda: True))


def test_missed_deadline_raises(device):
    with pytest.raises(ExecutionError, match="not done within 1e-12 s"):
        execution_of(device, chain()).compute_within([np.ones((4, 5), np.float32)], Control(deadline_seconds=1e-12))
    with pytest.raises(CompilationError, match="not done within"):
        device.create_context(OPTIONS).compile_within(chain(), Control(deadline_seconds=1e-12))


def test_progress_and_cancelling_in_the_middle(device):
    progress = []
    context = device.create_context(OPTIONS)
    context.compile_within(chain(4), Control(progress=progress.append))
    assert progress == [0.25, 0.5, 0.75, 1.0]
    with pytest.raises(CancelledError):
        context.compile_within(chain(4), Control(progress=progress.append, cancelled=lambda: len(progress) > 5))
    assert len(progress) == 6


def test_other_threads_run_while_the_device_computes(device):
    """The cancellation callback needs another Python thread to make progress."""
    answered = threading.Event()
    polled = threading.Event()

    def cancelled():
        polled.set()
        return answered.wait(0.01)

    def answer():
        polled.wait()
        answered.set()

    other = threading.Thread(target=answer)
    other.start()
    with pytest.raises(CancelledError):
        execution_of(device, chain(2000, (1,))).compute_within([np.ones(1, np.float32)], Control(cancelled=cancelled))
    other.join()


def test_memory_statistics(acme):
    with nna.Device.acquire("acme_c:1") as device:
        initial = device.memory_statistics()
        assert (initial.total_bytes, initial.used_bytes) == (1 << 30, 0)
        with registry.open_device("acme_c:1").allocate(1000):
            assert device.memory_statistics().used_bytes == 1024
        final = device.memory_statistics()
    assert final.used_bytes == 0 and final.peak_bytes >= 1024
    assert nna.Device.acquire("null").memory_statistics() is None


def test_session_deadline_reaches_the_driver(acme):
    count = 400
    lines = "\n".join(f"t{index + 1} = Relu(t{index})" for index in range(count))
    model = parse(f"{HEAD} g (float[1000, 1000] t0) => (float[1000, 1000] t{count}) {{ {lines} }}")
    options = nna.Options(deadline_s=0.1, fallback="forbid")
    words = r"ended while segment 0 ran on 'acme_c', because it took longer than 0\.1 s"
    session = nna.InferenceSession(model, devices=acme, options=options)
    with session, pytest.raises(DeadlineExceededError, match=words):
        session.run(None, {"t0": np.ones((1000, 1000), np.float32)})
