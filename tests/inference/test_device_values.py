"""Device-resident values: bindings, growing caches, DLPack."""

from __future__ import annotations

import gc
import threading

import numpy as np
import onnxruntime
import pytest
from onnx.parser import parse_model

import nnadapter as nna
from nnadapter.drivers.tensor_copies import Copies
from nnadapter.errors import ClosedError, InputTypeError, InvalidInputError, InvalidOptionError
from tests.c_compiler import needs_compiler
from tests.running.test_device_resident_values import acme  # noqa: F401  a fixture

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
CACHE = f"""{HEAD} g (float[1, n, 8] past, float[1, 1, 8] x) => (float[1, m, 8] present, float[1, 8] y) {{
    present = Concat <axis = 1> (past, x)
    y = ReduceMean <keepdims = 0> (present, axes)
}}"""
CACHE = CACHE.replace("y = Red", "axes = Constant <value = int64[1] {1}> ()\n    y = Red")
DEVICES = ["cpu", "null", "fake_npu", "openvino"]
RANDOM = np.random.default_rng(5)


def available(device):
    if device == "openvino":
        pytest.importorskip("openvino")
    return device


def used(device="fake_npu"):
    gc.collect()
    return nna.Device.acquire(device).memory_statistics()


def values_of(session, feed):
    return [value.numpy() for value in session.run_with_ort_values(None, feed)]


def token():
    return RANDOM.standard_normal((1, 1, 8)).astype(np.float32)


def decoded(session, device, tokens):
    """Return the outputs of every step; the cache starts empty and stays on the device."""
    binding, found = session.io_binding(), []
    past = nna.DeviceValue.from_numpy(np.empty((1, 0, 8), np.float32), device)
    for x in tokens:
        binding.bind_ortvalue_input("past", past)
        binding.bind_cpu_input("x", x)
        binding.bind_output("present", device)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        past, y = binding.get_outputs()
        found.append((past.numpy(), y.numpy()))
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_cache_grows_on_its_device(device):
    tokens = [token() for _ in range(6)]
    with nna.InferenceSession(parse_model(CACHE), devices=available(device)) as session:
        for count, (past, y) in enumerate(decoded(session, device, tokens), 1):
            expected = np.concatenate(tokens[:count], 1)
            if device == "null":
                assert past.shape == expected.shape and not past.any()
            else:
                np.testing.assert_array_equal(past, expected)
                np.testing.assert_allclose(y, expected.mean(1), rtol=1e-5, atol=1e-6)


def test_resident_cache_is_never_copied():
    with nna.InferenceSession(parse_model(CACHE), devices="fake_npu") as session:
        binding = session.io_binding()
        past = nna.DeviceValue.from_numpy(token(), "fake_npu")
        before = used()
        for _ in range(5):
            binding.bind_ortvalue_input("past", past)
            binding.bind_cpu_input("x", token())
            binding.bind_output("present", "fake_npu")
            binding.bind_output("y", "cpu")
            session.run_with_iobinding(binding)
            past, _ = binding.get_outputs()
            ways = [(each.value, each.source, each.target, each.nbytes) for each in session.provenance.transfers]
            assert ways == [("x", "host", "fake_npu", 32), ("y", "fake_npu", "host", 32)]
        after = used()
        assert (after.bytes_in - before.bytes_in, after.bytes_out - before.bytes_out) == (5 * 32, 5 * 32)
        assert past.device_name() == "fake_npu" and past.shape() == [1, 6, 8]
        del past
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        del binding
    assert used().used_bytes <= before.used_bytes


def test_host_inputs_are_copied_once_and_outputs_stay():
    """Device values act like a prompt: outputs do not return to the host."""
    with nna.InferenceSession(parse_model(CACHE), devices="fake_npu") as session:
        binding = session.io_binding()
        binding.bind_cpu_input("past", np.ones((1, 4, 8), np.float32))
        binding.bind_cpu_input("x", token())
        binding.bind_output("present", "fake_npu")
        session.run_with_iobinding(binding)
        ways = [(each.value, each.source, each.target) for each in session.provenance.transfers]
        assert ways == [("past", "host", "fake_npu"), ("x", "host", "fake_npu")]
        before = used()
        (present,) = binding.get_outputs()
        assert present.numpy().shape == (1, 5, 8) and present.contents._array is None
        assert used().bytes_out - before.bytes_out == 5 * 32


@pytest.mark.parametrize("device", ["null", "openvino"])
def test_host_memory_devices_share_arrays(device):
    with nna.InferenceSession(parse_model(CACHE), devices=available(device)) as session:
        binding = session.io_binding()
        binding.bind_cpu_input("past", token())
        binding.bind_cpu_input("x", token())
        binding.bind_output("present", device)
        session.run_with_iobinding(binding)
        (present,) = binding.get_outputs()
        address = np.asarray(present).__array_interface__["data"][0]
        assert present.contents.host().__array_interface__["data"][0] == address
        assert present.contents.devices == () and session.provenance.transfers == ()


@pytest.mark.slow
@needs_compiler
def test_resident_state_on_a_c_driver(acme):  # noqa: F811
    text = f"{HEAD} g (float[2, 4] past, float[2, 4] x) => (float[2, 4] present) {{ present = Add(past, x) }}"
    x = RANDOM.standard_normal((2, 4)).astype(np.float32)
    with nna.InferenceSession(parse_model(text), devices="acme_c") as session:
        binding = session.io_binding()
        state = nna.DeviceValue.from_numpy(x, "acme_c")
        binding.bind_ortvalue_output("present", state)
        for _ in range(3):
            binding.bind_ortvalue_input("past", state)
            binding.bind_cpu_input("x", x)
            session.run_with_iobinding(binding)
            assert [each[:3] for each in session.provenance.transfers] == [("x", "host", "acme_c")]
        np.testing.assert_allclose(state.numpy(), 4 * x, rtol=1e-6)


def test_input_bound_to_a_device_is_copied_once():
    array = np.ones((2, 3), np.float32)
    copies = Copies(array)
    model = parse_model(f"{HEAD} g (float[2, 3] x, float[2, 3] w) => (float[2, 3] y) {{ y = Add (x, w) }}")
    with nna.InferenceSession(model, devices=["fake_npu"]) as session:
        binding = session.io_binding()
        binding.bind_ortvalue_input("w", nna.DeviceValue(copies, "fake_npu"))
        binding.bind_cpu_input("x", array)
        brought = []
        for _ in range(2):
            session.run_with_iobinding(binding)
            brought.append(sorted(each.value for each in session.provenance.transfers if each.source == "host"))
    assert brought == [["w", "x"], ["x"]] and copies.is_on("fake_npu")


@pytest.mark.parametrize("ops", ["y = Relu(x)", "a = Relu(x)  b = Sin(a)  y = Add(a, b)"])
def test_report_counts_only_transfers_of_the_last_run(ops):
    model = parse_model(f"{HEAD} g (float[8, 8] x) => (float[8, 8] y) {{ {ops} }}")
    x = RANDOM.random((8, 8), np.float32)
    with nna.InferenceSession(model, devices=("fake_npu", {"switched_off": "Sin"})) as session:
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y", "fake_npu")
        for run in (lambda: session.run(None, {"x": x}), lambda: session.run_with_iobinding(binding)) * 2 + (
            lambda: session.run(None, {"x": x}),
        ) * 2:
            run()
            copies, told = session.provenance.transfers, session.report().transfers
            counted = (
                (0, 0) if told is None else (told.to_device + told.to_host, told.bytes_to_device + told.bytes_to_host)
            )
            assert counted == (len(copies), sum(each.nbytes for each in copies))


def test_the_callers_values_are_never_overwritten():
    x, first = token(), token()
    fed, began = x.copy(), first.copy()
    with nna.InferenceSession(parse_model(CACHE), devices="fake_npu") as session:
        binding = session.io_binding()
        past = nna.DeviceValue.from_numpy(first, "fake_npu")
        binding.bind_ortvalue_input("past", past)
        binding.bind_cpu_input("x", x)
        binding.bind_output("present", "fake_npu")
        session.run_with_iobinding(binding)
        (present,) = binding.get_outputs()
        held = present.numpy()
        binding.bind_cpu_input("x", 2 * x)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(present.numpy(), held)
        np.testing.assert_array_equal(past.numpy(), began)
    np.testing.assert_array_equal(x, fed)
    np.testing.assert_array_equal(first, began)


@pytest.mark.parametrize("device", DEVICES)
def test_outputs_are_bound_once_and_belong_to_the_caller(device):
    """A later run, even at other sizes, writes to no output that the caller has."""
    with nna.InferenceSession(parse_model(CACHE), devices=available(device)) as session:
        binding = session.io_binding()
        binding.bind_output("present", device)
        binding.bind_output("y")
        got = []
        for size in (3, 3, 5):
            binding.bind_cpu_input("past", np.full((1, size, 8), len(got), np.float32))
            binding.bind_cpu_input("x", token())
            session.run_with_iobinding(binding)
            present, y = binding.get_outputs()
            got.append((present, present.numpy().copy(), y, y.numpy().copy()))
        for present, held, y, also in got:
            np.testing.assert_array_equal(present.numpy(), held)
            np.testing.assert_array_equal(y.numpy(), also)


@pytest.mark.parametrize("device", ["cpu", "fake_npu", "openvino"])
def test_bound_value_is_read_at_each_run(device):
    text = f"{HEAD} g (float[2] x) => (float[2] y) {{ y = Neg(x) }}"
    with nna.InferenceSession(parse_model(text), devices=available(device)) as session:
        value = nna.DeviceValue.from_numpy(np.ones(2, np.float32), device)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_output("y")
        for number in (1, 5):
            value.update_inplace(np.full(2, number, np.float32))
            session.run_with_iobinding(binding)
            assert binding.copy_outputs_to_cpu()[0].tolist() == [-number] * 2
        value.close()
        with pytest.raises(ClosedError, match="is closed"):
            session.run_with_iobinding(binding)
        binding.bind_cpu_input("x", np.full(2, 3, np.float32))  # replaces the value
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == [-3, -3]


@pytest.mark.parametrize("device", ["cpu", "fake_npu", "openvino"])
def test_value_bound_as_input_and_output_is_updated(device):
    text = f"{HEAD} g (float[2] x) => (float[2] y) {{ y = Add(x, x) }}"
    with nna.InferenceSession(parse_model(text), devices=available(device)) as session:
        value = nna.DeviceValue.from_numpy(np.ones(2, np.float32), device)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_ortvalue_output("y", value)
        for _ in range(4):
            session.run_with_iobinding(binding)
        assert value.numpy().tolist() == [16, 16]


def test_input_that_is_also_an_output():
    text = f"{HEAD} g (float[2] x) => (float[2] x, float[2] y) {{ y = Relu(x) }}"
    x = np.array([1.0, -1.0], np.float32)
    with nna.InferenceSession(parse_model(text), devices="fake_npu") as session:
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        for name in ("x", "y"):
            binding.bind_output(name, "fake_npu")
        session.run_with_iobinding(binding)
        x[...] = 7
        assert [value.numpy().tolist() for value in binding.get_outputs()] == [[1.0, -1.0], [1.0, 0.0]]


def test_cpu_output_is_copied_to_its_bound_device():
    text = f"{HEAD} g (float[2] x) => (float[2] y) {{ y = Sin(x) }}"
    with nna.InferenceSession(
        parse_model(text), devices=("fake_npu", {"switched_off": ["Sin"]}), options={"fallback": "allow"}
    ) as session:
        binding = session.io_binding()
        binding.bind_cpu_input("x", np.zeros(2, np.float32))
        binding.bind_output("y", "fake_npu")
        session.run_with_iobinding(binding)
        assert [each[:3] for each in session.provenance.transfers] == [("y", "host", "fake_npu")]
        assert binding.get_outputs()[0].contents.is_on("fake_npu")


def test_closed_value_refuses_use():
    value = nna.DeviceValue.from_numpy(token(), "fake_npu")
    before = used().used_bytes
    value.close()
    assert used().used_bytes == before - 32 and not value.has_value() and "closed" in repr(value)
    for use in (value.close, value.numpy, value.shape, lambda: np.asarray(value), lambda: np.from_dlpack(value)):
        with pytest.raises(ClosedError, match="is closed"):
            use()
    with nna.InferenceSession(parse_model(CACHE), devices="fake_npu") as session:
        binding = session.io_binding()
        binding.bind_ortvalue_input("past", value)
        binding.bind_cpu_input("x", token())
        with pytest.raises(ClosedError):
            session.run_with_iobinding(binding)
    with nna.DeviceValue.from_numpy(token(), "fake_npu") as closed:
        closed.close()


def test_invalid_values_and_devices_are_refused():
    with pytest.raises(InputTypeError):
        nna.DeviceValue.from_numpy([1.0], "fake_npu")
    with pytest.raises(InvalidInputError, match=".fake_npu. cannot store"):
        nna.DeviceValue.from_numpy(np.zeros(2, "int4"), "fake_npu")
    with nna.InferenceSession(parse_model(CACHE), devices="fake_npu") as session:
        binding = session.io_binding()
        with pytest.raises(InvalidInputError, match="'null', which the session does not have"):
            binding.bind_output("y", "null")
        with pytest.raises(InvalidInputError, match="Invalid output name"):
            binding.bind_output("z")
        with pytest.raises(InvalidOptionError, match="by its name, got None"):
            binding.bind_output("y", None)
        binding.bind_ortvalue_input("past", nna.DeviceValue.from_numpy(np.zeros((1, 8), np.float32), "fake_npu"))
        binding.bind_cpu_input("x", token())
        with pytest.raises(InvalidInputError, match="past"):
            session.run_with_iobinding(binding)
    with nna.InferenceSession(parse_model(CACHE), devices="cpu") as session, pytest.raises(InvalidInputError):
        session.io_binding().bind_output("y", "fake_npu")


@pytest.mark.parametrize("device", ["cpu", "fake_npu", "openvino"])
@pytest.mark.parametrize("result", [(1, 2, 8), (1, 1, 8)], ids=["whole", "one to repeat"])
def test_mismatched_output_memory_is_refused(device, result):
    """The value would be converted or broadcast, and an OrtValue overrun."""
    rows = result[1] - 1
    feed = {"past": np.ones((1, rows, 8), np.float32), "x": token()}
    wrong = [np.zeros(result, np.float64), np.zeros(result, np.int8), np.zeros((1, 5, 8), np.float32)]
    with nna.InferenceSession(parse_model(CACHE), devices=available(device)) as session:
        for target in wrong:
            value = onnxruntime.OrtValue.ortvalue_from_numpy(target)
            binding, also = session.io_binding(), session.io_binding()
            place = (target.dtype.type, target.shape, target.ctypes.data)
            binding.bind_output("present", "cpu", 0, *place)
            also.bind_ortvalue_output("present", value)
            for each in (binding, also):
                for name, array in feed.items():
                    each.bind_cpu_input(name, array)
                with pytest.raises(InvalidInputError, match="present|output"):
                    session.run_with_iobinding(each)
            assert not target.any() and not value.numpy().any()


@pytest.mark.parametrize("device", ["fake_npu", "openvino"])
def test_big_endian_arrays_and_subclasses_are_accepted(device):
    """Big-endian arrays and subclasses that compute differently."""
    past, x = np.full((1, 2, 8), 2, np.float32), token()
    with nna.InferenceSession(parse_model(CACHE), devices=available(device)) as session:
        expected = session.run(None, {"past": past, "x": x})
        for other in (past.astype(">f4"), past.view(type("Mine", (np.ndarray,), {}))):
            value = nna.DeviceValue.from_numpy(other, device)
            for got in (session.run(None, {"past": other, "x": x}), values_of(session, {"past": value, "x": x})):
                assert all(map(np.array_equal, got, expected))


@pytest.mark.parametrize("device", ["cpu", "fake_npu"])
def test_cleared_bindings_are_dropped(device):
    with nna.InferenceSession(parse_model(CACHE), devices=device) as session:
        binding = session.io_binding()
        for name in ("past", "x"):
            binding.bind_cpu_input(name, token())
        binding.bind_output("present")
        session.run_with_iobinding(binding)
        binding.clear_binding_outputs()
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        assert [value.shape for value in binding.copy_outputs_to_cpu()] == [(1, 8)]
        binding.clear_binding_inputs()
        with pytest.raises(InvalidInputError):
            session.run_with_iobinding(binding)


@pytest.mark.parametrize("device", ["cpu", "fake_npu"])
def test_output_bound_without_an_address_is_allocated(device):
    past, x = token(), token()
    with nna.InferenceSession(parse_model(CACHE), devices=device) as session:
        binding = session.io_binding()
        binding.bind_cpu_input("past", past)
        binding.bind_cpu_input("x", x)
        binding.bind_output("present", "cpu", 0, np.float32, [1, 2, 8])
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], np.concatenate([past, x], 1))


@pytest.mark.parametrize("device", ["cpu", "fake_npu"])
def test_bindings_accept_code_written_for_onnx_runtime(device):
    """Only the session names nnadapter."""
    past, x = token(), token()
    expected = np.concatenate([past, x], 1)
    target = np.empty((1, 2, 8), np.float32)
    with nna.InferenceSession(parse_model(CACHE), devices=device) as session:
        binding = session.io_binding()
        binding.bind_ortvalue_input("past", onnxruntime.OrtValue.ortvalue_from_numpy(past))
        binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
        binding.bind_output("present", "cpu", 0, np.float32, target.shape, target.ctypes.data)
        binding.bind_output("y")
        binding.synchronize_inputs()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        np.testing.assert_array_equal(target, expected)
        present, y = binding.copy_outputs_to_cpu()
        np.testing.assert_array_equal(present, expected)
        np.testing.assert_allclose(y, expected.mean(1), rtol=1e-5, atol=1e-6)
        mine = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros_like(expected))
        binding.clear_binding_outputs()
        binding.bind_ortvalue_output("present", mine)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(mine.numpy(), expected)
        feed = {
            "past": onnxruntime.OrtValue.ortvalue_from_numpy(past),
            "x": onnxruntime.OrtValue.ortvalue_from_numpy(x),
        }
        found = session.run_with_ort_values(["present"], feed)
        np.testing.assert_array_equal(found[0].numpy(), expected)
        value = found[0]
        assert (value.data_type(), value.element_type(), value.shape(), value.is_tensor()) == (
            "tensor(float)",
            1,
            [1, 2, 8],
            True,
        )
        # onnxruntime 1.27's bindings do not keep the session alive
        other = onnxruntime.InferenceSession(parse_model(CACHE).SerializeToString())
        other.io_binding().bind_ortvalue_input("past", value)


@pytest.mark.parametrize("device", ["cpu", "null", "fake_npu"])
def test_dlpack_to_and_from_numpy(device):
    array = RANDOM.standard_normal((3, 4)).astype(np.float32)
    value = nna.DeviceValue.from_dlpack(array, device)
    array[...] = 0
    assert value.numpy().any() and value.__dlpack_device__() == (1, 0)
    held, copied = value.numpy(), np.from_dlpack(value)
    if device == "fake_npu":
        with pytest.raises(BufferError, match="allow a copy"):
            np.from_dlpack(value, copy=False)
        shared = copied
    else:
        shared = np.from_dlpack(value, copy=False)
        assert not shared.flags.writeable and np.shares_memory(shared, np.asarray(value))
    del value
    gc.collect()
    np.testing.assert_array_equal(shared, held)
    np.testing.assert_array_equal(copied, held)


class ArrayWithoutVersions(np.ndarray):
    def __dlpack__(self, *, stream=None):
        return super().__dlpack__(stream=stream)


@pytest.mark.parametrize("device", ["cpu", "fake_npu"])
def test_forbidden_copy_is_an_error(device):
    value = nna.DeviceValue.from_numpy(np.ones(3, np.float32), device)
    assert value.__array__(np.float32, copy=False).dtype == np.float32
    assert value.__array__(np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="float32, which needs a copy to become float64"):
        value.__array__(np.float64, copy=False)


def test_dlpack_of_arrays_without_versions():
    array = np.arange(6, dtype=np.float32).view(ArrayWithoutVersions)
    value = nna.DeviceValue(array, "cpu")
    given = value.__dlpack__(max_version=(1, 0), dl_device=(1, 0))
    assert "dltensor" in repr(given) and "versioned" not in repr(given)
    with pytest.raises(BufferError, match="the value is in host memory"):
        value.__dlpack__(max_version=(1, 0), dl_device=(2, 0))


def test_dlpack_to_and_from_torch():
    torch = pytest.importorskip("torch")
    given = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    value = nna.DeviceValue.from_dlpack(given, "fake_npu")
    given += 1
    found = torch.from_dlpack(value)
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]
    found += 1  # torch writes to read-only memory
    assert value.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(InvalidInputError, match="DLPack"):
        nna.DeviceValue.from_dlpack("text")


def test_concurrent_runs_feed_one_value():
    failures = []
    past = nna.DeviceValue.from_numpy(token(), "fake_npu")
    held = past.numpy()
    with nna.InferenceSession(parse_model(CACHE), devices="fake_npu") as session:

        def work():
            binding, x = session.io_binding(), token()
            for _ in range(20):
                binding.bind_ortvalue_input("past", past)
                binding.bind_cpu_input("x", x)
                binding.bind_output("present", "fake_npu")
                session.run_with_iobinding(binding)
                (present,) = binding.get_outputs()
                if not np.array_equal(present.numpy(), np.concatenate([held, x], 1)):
                    failures.append(present)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_binding_of_a_closed_session():
    for device in ("cpu", "fake_npu"):
        session = nna.InferenceSession(parse_model(CACHE), devices=device)
        binding = session.io_binding()
        binding.bind_cpu_input("past", token())
        binding.bind_cpu_input("x", token())
        binding.bind_output("y", "cpu")
        session.run_with_iobinding(binding)
        (y,) = binding.get_outputs()
        session.close()
        assert y.numpy().shape == (1, 8)
        with pytest.raises(ClosedError):
            session.run_with_iobinding(binding)
