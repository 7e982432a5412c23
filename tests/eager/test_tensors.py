from __future__ import annotations

import threading

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.eager import OperationCall, ProgramCache, execution
from nnadapter.errors import FallbackWarning, InvalidInputError, InvalidOptionError, NotDelegatedError
from nnadapter.options import set_default_devices


@pytest.fixture
def on_npu():
    nna.set_device("fake_npu")
    yield
    set_default_devices([])


def test_representation_has_the_place(on_npu):
    x = nna.tensor([1.0, 2.0])
    assert repr(x + x) == "Tensor(shape=[2], dtype=float32, place=Place(fake_npu:0), [2., 4.])"
    assert repr(nna.tensor([[1], [2]])) == (
        "Tensor(shape=[2, 1], dtype=int64, place=Place(fake_npu:0),\n       [[1],\n        [2]])"
    )
    assert (x.to("cpu") + 1).place == nna.Place("cpu")


@pytest.mark.parametrize(
    ("data", "dtype", "expected"),
    [
        ([1, 2], None, "int64"),
        ([1.5], None, "float32"),
        (True, None, "bool"),
        (np.float64([1.5]), None, "float64"),
        ([np.float64(1.5)], None, "float64"),
        ([1], "float16", "float16"),
        ([1], "bfloat16", "bfloat16"),
    ],
)
def test_data_types_of_new_tensors(data, dtype, expected):
    assert nna.tensor(data, dtype, "fake_npu").dtype.name == expected


@pytest.mark.parametrize("data", ["text", [1j], object(), [[1], [2, 3]]])
def test_invalid_tensor_data(data):
    with pytest.raises(InvalidInputError, match=r"a tensor (needs|holds) numbers"):
        nna.tensor(data)


def test_tensors_of_two_devices_cannot_be_combined():
    x = nna.tensor([1.0], device="fake_npu")
    for meet in (lambda: x + x.to("cpu"), lambda: np.concatenate([x, x.to("cpu")])):
        with pytest.raises(InvalidInputError, match=r"'fake_npu'.*'cpu'.*\.to\('fake_npu'\)"):
            meet()


def test_refusal_is_reported():
    x = nna.tensor([1, 2], "uint16", device="fake_npu")
    with pytest.raises(NotDelegatedError, match=r"ADD of uint16\[2\], uint16\[2\]: unsupported_dtype.*forbidden"):
        x + x
    with pytest.raises(NotDelegatedError, match=r"numpy\.sort"):
        np.sort(x)
    assert nna.set_eager_fallback("warn") == "forbid"
    with pytest.warns(FallbackWarning, match=r"ADD of uint16.*numpy computes it on the host") as warned:
        assert (x + x).tolist() == [2, 4]
    assert warned[0].filename == __file__
    nna.set_eager_fallback("allow")
    assert np.sort(x)[::-1].tolist() == [2, 1] and np.sort(x).place == x.place
    with pytest.raises(InvalidOptionError, match="warn, allow, forbid"):
        nna.set_eager_fallback("never")


def test_kernel_for_a_refused_operation():
    x = nna.tensor([1, 2], "uint16", device="fake_npu")
    unsigned = nna.KernelType(precision="uint16")
    kernel = nna.register_kernel("fake_npu", "Add", lambda a, b: a + b, inputs=[unsigned, unsigned])
    assert (x + x).tolist() == [2, 4]
    nna.unregister_kernel(kernel)
    with pytest.raises(NotDelegatedError):
        x + x


@pytest.mark.parametrize("overrides", [False, True])
def test_only_overriding_kernels_replace_supported_operations(overrides):
    x = nna.tensor([1.0], device="fake_npu")
    nna.register_kernel("fake_npu", "Add", lambda a, b: a - b, overrides=overrides)
    assert (x + x).tolist() == [0 if overrides else 2]


def test_a_kernel_that_fails_falls_back():
    x = nna.tensor([1], "uint16", device="fake_npu")
    nna.register_kernel("fake_npu", "Add", lambda a, b: {}[1], name="faulty")
    with pytest.raises(NotDelegatedError, match="kernel 'faulty' of Add raised KeyError"):
        x + x


@pytest.mark.parametrize("device", ["openvino", "reference"])
def test_a_device_that_takes_onnx_computes_single_operations(device):
    rows = np.array([[-1, 2, 3], [4, -5, 6]], np.float32)
    x = nna.tensor(rows, device=device)
    for got, expected in ((x + x, 2 * rows), (x @ x.T, rows @ rows.T), (np.maximum(x, 0), np.maximum(rows, 0))):
        assert got.place == nna.Place(device)
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-5)


def test_a_tensor_never_changes():
    data = np.ones(2, np.float32)
    x = nna.tensor(data, device="fake_npu")
    data[:] = 5
    x.numpy()[:] = 5
    assert x.tolist() == [1, 1] and not np.asarray(x).flags.writeable
    with pytest.raises(TypeError, match="immutable"):
        x[0] = 2
    with pytest.raises(TypeError, match="immutable"):
        np.add(x, x, out=x)


def test_python_protocols():
    x = nna.tensor([[1.0, 2.0]], device="fake_npu")
    assert len(x) == 1 and float(x[0, 1]) == 2 and [row.tolist() for row in x] == [[1, 2]]
    assert bool(x[0, 0]) and int(x[0, 1]) == 2 and np.array(x, dtype=np.int8).dtype == np.int8
    assert x.astype("int32").dtype == np.int32 and (x == x).tolist() == [[True, True]]


def call(width):
    x = np.ones(width, np.float32)
    return OperationCall("ADD", (x, x))


def test_program_cache_is_bounded(monkeypatch):
    compilations = []
    real = execution._compile_operation
    monkeypatch.setattr(execution, "_compile_operation", lambda *arguments: compilations.append(1) or real(*arguments))
    cache = ProgramCache(most=2)
    for width in (1, 2, 1, 3, 1, 2):
        assert cache.compute("fake_npu", call(width))[0].tolist() == [2] * width
        assert len(cache) <= 2
    assert len(compilations) == 4
    cache.clear()
    assert len(cache) == 0


def test_many_threads_and_few_programs():
    cache, wrong = ProgramCache(most=2), []

    def work(width):
        for _ in range(20):
            (result,) = cache.compute("fake_npu", call(width))
            wrong.extend([width] * (result.shape != (width,)))

    threads = [threading.Thread(target=work, args=(width,)) for width in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache.clear()
    assert not wrong


def test_typical_first_lines_run_on_the_device():
    x = nna.tensor([1, 2, 3], device="fake_npu")
    y = nna.tensor(np.array([[0.1, 0.2, 0.3], [1.5, -2.5, 0.0]]), device="fake_npu")
    for got, expected in [
        (x + x, [2, 4, 6]),
        (x * 2**40 - 1, [2**40 - 1, 2**41 - 1, 3 * 2**40 - 1]),
        (x.sum(), 6),
        (x == 2, [False, True, False]),
        (x // 2, [0, 1, 1]),
        (x % 2, [1, 0, 1]),
        (x[1:], [2, 3]),
        (x.reshape(3, 1), [[1], [2], [3]]),
        (np.concatenate([x, x]), [1, 2, 3, 1, 2, 3]),
        (x.max(), 3),
        (y + y, y.numpy() + y.numpy()),
        (y.T, y.numpy().T),
        (y[0], y.numpy()[0]),
        (np.exp(y), np.exp(y.numpy())),
        (y > 0.2, y.numpy() > 0.2),
        (y.sum(1), y.numpy().sum(1)),
    ]:
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-15)
        assert got.place.device == "fake_npu"
        assert got.dtype == np.asarray(expected).dtype
