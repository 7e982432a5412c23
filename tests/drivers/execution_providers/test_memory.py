"""Memory of a provider's device; ONNX Runtime's CPU stands in for an accelerator."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from nnadapter.drivers.execution_providers import Backing, EpContext, EpMemory, import_dlpack
from nnadapter.errors import InvalidInputError
from tests import device_memory
from tests.device_memory import check_bytes_are_seen_as_other_types, check_freed_memory_is_not_read, taken
from tests.models import HEAD, numbers, parse, run_whole

PROVIDER = "CPUExecutionProvider"
TWO = f"{HEAD} g (float[n, 3] x, float[n, 3] z) => (float[n, 3] y, int64[2] s) {{ y = Add (x, z) s = Shape (y) }}"


def placed(array):
    return device_memory.placed(EpMemory(PROVIDER, array.nbytes), array)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16", "bfloat16", "int4"])
def test_copy_is_independent_of_the_array(dtype):
    array = np.array([[0, 1, 1]]).astype(dtype)
    tensor, original = placed(array), array.copy()
    array[:] = 0
    np.testing.assert_array_equal(taken(tensor), original)


def test_scalar_keeps_its_rank_on_every_device(monkeypatch):
    """Host memory takes the place of device memory."""
    place = onnxruntime.OrtValue.ortvalue_from_numpy
    monkeypatch.setattr(onnxruntime.OrtValue, "ortvalue_from_numpy", lambda array, *at: place(array))
    for provider in (PROVIDER, "CUDAExecutionProvider"):
        memory = EpMemory(provider, 8)
        memory.copy_in(np.array(7))
        assert memory.value(np.dtype(np.int64), ()).shape() == []


def test_memory_views_as_another_or_no_type():
    memory = EpMemory(PROVIDER, 8)
    check_bytes_are_seen_as_other_types(memory)
    assert memory.value(np.dtype(np.int64), (1, 1)).numpy().tolist() == [[1 + (2 << 32)]]


def test_freed_memory_is_not_read():
    check_freed_memory_is_not_read(placed(numbers(4)))


def test_program_reads_and_writes_device_memory():
    model, x = parse(TWO), numbers(2, 3)
    execution = EpContext(Backing(provider=PROVIDER)).compile(model).create_execution()
    result, shape = execution.compute_on_device([placed(x), placed(x)])
    second_result, _ = execution.compute_on_device([result, placed(x)])
    np.testing.assert_array_equal(taken(second_result), run_whole(model, {"x": x, "z": 2 * x})[0])
    assert taken(shape).tolist() == [2, 3]


def test_onnxruntime_errors_are_translated():
    execution = EpContext(Backing(provider=PROVIDER)).compile(parse(TWO)).create_execution()
    with pytest.raises(InvalidInputError, match=PROVIDER):
        execution.compute_on_device([placed(numbers(2, 3)), placed(numbers(4, 3))])


def test_types_unsupported_by_ort_values_use_arrays():
    text = f"{HEAD} g (bfloat16[2] x) => (bfloat16[2] y) {{ y = Identity (x) }}"
    execution = EpContext(Backing(provider=PROVIDER)).compile(parse(text)).create_execution()
    assert execution.compute_on_device([placed(numbers(2).astype("bfloat16"))]) is None


def test_program_on_a_second_device_uses_arrays():
    backing = Backing(provider="CUDAExecutionProvider", options={"device_id": "1"})
    assert not backing.has_device_memory and Backing(provider="CUDAExecutionProvider").has_device_memory


by_dlpack = pytest.mark.skipif(
    not hasattr(onnxruntime.OrtValue, "from_dlpack"), reason="this ONNX Runtime gives OrtValues no DLPack form"
)


@by_dlpack
def test_dlpack_copies_values_in_and_out():
    array = numbers(2, 3)
    tensor = import_dlpack(array, PROVIDER)
    expected = array.copy()
    array[:] = 0
    np.testing.assert_array_equal(taken(tensor), expected)
    assert tensor.memory.dlpack_device() == (1, 0)

    class Exporter:
        def __dlpack__(self, **options):
            return tensor.memory.dlpack(tensor.dtype, tensor.shape)

        def __dlpack_device__(self):
            return tensor.memory.dlpack_device()

    received = np.from_dlpack(Exporter())
    np.testing.assert_array_equal(received, expected)
    assert not np.shares_memory(received, np.asarray(tensor.memory.value(tensor.dtype, tensor.shape).numpy()))


@by_dlpack
def test_unsupported_dlpack_values_go_through_the_host():
    assert import_dlpack("text", PROVIDER) is None and import_dlpack(numbers(2, 3).T, PROVIDER) is None
    assert import_dlpack(np.zeros((0, 3), np.float32), PROVIDER) is None
    assert import_dlpack(numbers(3), "CUDAExecutionProvider") is None
    assert placed(np.array([True])).memory.dlpack_device() is None
    torch = pytest.importorskip("torch")
    assert import_dlpack(torch.ones(2, dtype=torch.bfloat16), PROVIDER) is None
    assert import_dlpack(torch.ones(2).to(torch.float8_e5m2), PROVIDER) is None
