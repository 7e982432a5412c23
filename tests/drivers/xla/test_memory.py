from __future__ import annotations

import jax
import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers.registry import open_device
from nnadapter.errors import DriverError, InvalidInputError
from tests import device_memory
from tests.device_memory import check_bytes_are_seen_as_other_types, check_freed_memory_is_not_read, taken
from tests.drivers.xla.harness import DEVICE, PLACE, context, numbers, relu
from tests.models import HEAD, parse

STEP = f"{HEAD} g (float[4] x, float[4] old) => (float[4] new) {{ new = Add(x, old) }}"


def placed(array):
    return device_memory.placed(open_device(DEVICE).allocate(array.nbytes), array)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16", "int4"])
def test_copy_round_trip(dtype):
    array = np.array([0, 1, 1]).astype(dtype) if dtype != "bfloat16" else numbers(3).astype("bfloat16")
    tensor = placed(array)
    original = array.copy()
    array[:] = 0
    np.testing.assert_array_equal(taken(tensor), original)


def test_memory_views_as_another_or_no_type():
    memory = open_device(DEVICE).allocate(8)
    check_bytes_are_seen_as_other_types(memory)


def test_freed_memory_is_not_read():
    check_freed_memory_is_not_read(placed(numbers(4)))


def test_a_program_computes_in_memory():
    x = numbers(4)
    (result,) = context().compile(relu()).create_execution().compute_on_device([placed(x)])
    np.testing.assert_array_equal(taken(result), np.maximum(x, 0))


def test_stream_work_is_asynchronous_and_awaited():
    device, x = open_device(DEVICE), numbers(1 << 16)
    stream, event = device.create_stream(), device.create_event()
    execution = context().compile(relu(1 << 16)).create_execution()
    assert event.is_done
    values = [placed(x)]
    for _ in range(3):
        values = execution.enqueue(values, stream)
    stream.record(event)
    other = device.create_stream()
    other.wait(event)
    event.synchronize()
    assert event.is_done
    stream.synchronize()
    np.testing.assert_array_equal(taken(values[0]), np.maximum(x, 0))
    stream.close()
    with pytest.raises(DriverError, match="closed"):
        stream.record(event)


def test_a_state_stays_on_the_device_between_runs():
    x = numbers(4)
    with nna.InferenceSession(parse(STEP), devices=DEVICE, options=nna.Options(fallback="forbid")) as session:
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_cpu_input("old", np.zeros(4, np.float32))
        for _ in range(3):
            binding.bind_output("new", DEVICE)
            session.run_with_iobinding(binding)
            (value,) = binding.get_outputs()
            binding.bind_ortvalue_input("old", value)
        np.testing.assert_allclose(value.numpy(), 3 * x, 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16"])
def test_dlpack_import_and_export(dtype):
    """64-bit types work without JAX's global flag, and so does bfloat16, which numpy's DLPack lacks."""
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([[1, 0], [0, 2], [3, 0]]).to(getattr(torch, dtype)).T
    value = nna.DeviceValue.from_dlpack(tensor, DEVICE)
    expected = tensor.tolist()
    tensor[:] = 0
    assert value.dtype.name == dtype and value.numpy().tolist() == expected
    assert value.__dlpack_device__() == PLACE
    taken_by_torch = torch.from_dlpack(value)
    assert taken_by_torch.dtype == tensor.dtype and taken_by_torch.tolist() == expected
    taken_by_torch[:] = 0
    assert value.numpy().tolist() == jax.numpy.from_dlpack(value).tolist() == expected
    value.close()


def test_dlpack_import_copies_aligned_memory():
    torch = pytest.importorskip("torch")
    tensor = torch.ones(64, 64)
    value = nna.DeviceValue.from_dlpack(tensor, DEVICE)
    tensor[:] = 0
    assert value.numpy().all()


def test_dlpack_values_that_jax_refuses():
    empty = nna.DeviceValue.from_dlpack(np.zeros((0, 3), np.float32), DEVICE)
    assert empty.shape() == [0, 3] and np.from_dlpack(empty).shape == (0, 3)
    with pytest.raises(InvalidInputError, match="DLPack"):
        nna.DeviceValue.from_dlpack("text", DEVICE)
    value = nna.DeviceValue.from_dlpack(numbers(3), DEVICE)
    with pytest.raises(BufferError, match="allow a copy"):
        np.from_dlpack(value, copy=False)
