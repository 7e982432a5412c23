"""Device-resident values: a device's outputs stay in its memory for its later segments."""

from __future__ import annotations

import gc
import threading

import numpy as np
import onnxruntime
import pytest
from onnx.parser import parse_model

import nnadapter as nna
from nnadapter.drivers import DeviceTensor, registry
from nnadapter.drivers.tensor_copies import TENSORS, bind_to_owner
from nnadapter.errors import CancelledError, FallbackWarning
from tests.c_compiler import compile_acme, needs_compiler

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
RETURNS = f"""{HEAD} g (float[4, 8] x) => (float[4, 8] y) {{
    v = Relu(x)
    c = Sin(v)
    y = Add(v, c)
}}"""
"""`v` is made on the device, read on the CPU, and read on the device again."""
SHARED = f"""{HEAD} g (float[4, 8] x, float[4, 8] mask) => (float[4, 8] y) {{
    a = Mul(x, mask)
    b = Sin(a)
    c = Mul(b, mask)
    d = Sin(c)
    y = Mul(d, mask)
}}"""
DEVICE = ("fake_npu", {"switched_off": ["Sin"]})
X = np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32)
MASK = np.random.default_rng(4).standard_normal((4, 8)).astype(np.float32)


def used(device="fake_npu"):
    gc.collect()
    TENSORS.free_orphans()
    return nna.Device.acquire(device).memory_statistics()


def expected_of(text, feed):
    session = onnxruntime.InferenceSession(parse_model(text).SerializeToString())
    return session.run(None, feed)


def ways(session):
    return [(each.value, each.source, each.target, each.nbytes) for each in session.provenance.transfers]


def test_value_read_again_on_its_device_stays_there():
    before = used()
    with nna.InferenceSession(parse_model(RETURNS), devices=DEVICE) as session:
        for _ in range(3):
            np.testing.assert_allclose(
                session.run(None, {"x": X})[0], expected_of(RETURNS, {"x": X})[0], rtol=1e-6, atol=1e-6
            )
            assert ways(session) == [
                ("x", "host", "fake_npu", 128),
                ("v", "fake_npu", "host", 128),
                ("c", "host", "fake_npu", 128),
                ("y", "fake_npu", "host", 128),
            ]
    after = used()
    assert after.used_bytes == before.used_bytes
    assert (after.bytes_in - before.bytes_in, after.bytes_out - before.bytes_out) == (3 * 256, 3 * 256)
    assert after.peak_bytes >= before.used_bytes + 3 * 128  # v, c and y at once


def test_input_of_several_segments_is_transferred_once():
    feed = {"x": X, "mask": MASK}
    with nna.InferenceSession(parse_model(SHARED), devices=DEVICE) as session:
        np.testing.assert_allclose(session.run(None, feed)[0], expected_of(SHARED, feed)[0], rtol=1e-5, atol=1e-6)
        assert [way[:3] for way in ways(session) if way[0] == "mask"] == [("mask", "host", "fake_npu")]


def test_plan_without_resident_values_uses_no_device_memory():
    text = f"{HEAD} g (float[4, 8] x) => (float[4, 8] y) {{ v = Relu(x) c = Sin(v) y = Neg(c) }}"
    before = used()
    with nna.InferenceSession(parse_model(text), devices=DEVICE) as session:
        session.run(None, {"x": X})
        assert session.provenance.transfers == ()
    assert used() == before


def test_later_runs_do_not_overwrite_returned_arrays():
    """No later run writes to an output of the caller."""
    with nna.InferenceSession(parse_model(RETURNS), devices=DEVICE) as session:
        first = session.run(None, {"x": X})[0]
        kept = first.copy()
        session.run(None, {"x": 2 * X})
        np.testing.assert_array_equal(first, kept)
        first[...] = 0
        fed = X.copy()
        np.testing.assert_array_equal(session.run(None, {"x": fed})[0], kept)
        np.testing.assert_array_equal(fed, X)


def test_full_device_computes_from_host_arrays():
    statistics = used()
    with nna.InferenceSession(parse_model(RETURNS), devices=DEVICE) as session:
        expected = session.run(None, {"x": X})[0]
        filler = registry.open_device("fake_npu").allocate(statistics.total_bytes - used().used_bytes - 200)
        try:
            np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected)
            assert not session.provenance.fell_back
        finally:
            filler.free()
    assert used().used_bytes == statistics.used_bytes


def test_empty_values_and_dynamic_shapes():
    text = f"""{HEAD} g (float[n, 8] x) => (float[n, 8] y) {{ v = Relu(x) c = Sin(v) y = Add(v, c) }}"""
    with nna.InferenceSession(parse_model(text), devices=DEVICE, options={"fallback": "allow"}) as session:
        for size in (3, 0, 5, 7, 0):
            x = np.ones((size, 8), np.float32)
            np.testing.assert_allclose(session.run(None, {"x": x})[0], x + np.sin(x), rtol=1e-6)


def test_many_threads_share_a_session():
    failures = []
    with nna.InferenceSession(parse_model(RETURNS), devices=DEVICE) as session:
        session.run(None, {"x": X})
        before = used().used_bytes

        def work(number):
            try:
                for _ in range(20):
                    x = X * number
                    np.testing.assert_allclose(
                        session.run(None, {"x": x})[0], np.maximum(x, 0) + np.sin(np.maximum(x, 0)), rtol=1e-5
                    )
            except AssertionError as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures and used().used_bytes == before


@pytest.fixture
def acme(tmp_path, monkeypatch):
    monkeypatch.setenv("NNADAPTER_DRIVER_PATH", str(compile_acme(tmp_path).parent))
    registry.refresh()
    yield
    registry.refresh()


@needs_compiler
def test_values_stay_resident_on_a_c_driver(acme):
    before = used("acme_c").used_bytes
    with nna.InferenceSession(parse_model(RETURNS), devices="acme_c") as session:
        for _ in range(3):
            np.testing.assert_allclose(session.run(None, {"x": X})[0], np.maximum(X, 0) + np.sin(np.maximum(X, 0)))
        assert [way[:3] for way in ways(session)] == [
            ("x", "host", "acme_c"),
            ("v", "acme_c", "host"),
            ("c", "host", "acme_c"),
            ("y", "acme_c", "host"),
        ]
    assert used("acme_c").used_bytes == before


def test_failing_step_on_resident_values_falls_back():
    from tests.residing_driver import BREAKS

    session = nna.InferenceSession(parse_model(RETURNS), devices="residing")
    with session:
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected_of(RETURNS, {"x": X})[0], rtol=1e-6)
        assert [way[0] for way in ways(session)] == ["x", "v", "c", "y"]
        BREAKS.add("ADD")
        try:
            with pytest.warns(FallbackWarning, match="burnt"):
                (y,) = session.run(None, {"x": X})
        finally:
            BREAKS.clear()
        np.testing.assert_allclose(y, expected_of(RETURNS, {"x": X})[0], rtol=1e-6)
        assert session.provenance.fell_back


@pytest.mark.parametrize("whose", ["input", "output"])
def test_output_aliasing_an_input_or_output_is_refused(whose):
    from tests.residing_driver import GIVES_AGAIN

    text = f"{HEAD} g (float[4, 8] x) => (float[4, 8] y, float[4, 8] z) {{ y = Relu(x)\n z = Neg(x) }}"
    before = used("residing").used_bytes
    with nna.InferenceSession(parse_model(text), devices="residing") as session:
        value = nna.DeviceValue.from_numpy(X, "residing")
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", value)
        for name in "yz":
            binding.bind_output(name, "residing")
        GIVES_AGAIN.add(whose)
        try:
            with pytest.warns(FallbackWarning, match="memory of an input or of another output for '[yz]'"):
                session.run_with_iobinding(binding)
        finally:
            GIVES_AGAIN.clear()
        used("residing")
        for found, expected in zip(binding.copy_outputs_to_cpu(), [np.maximum(X, 0), -X], strict=True):
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(value.numpy(), X)
    del value, binding
    assert used("residing").used_bytes == before


def test_memory_with_two_owners_is_freed_once():
    memory = registry.open_device("fake_npu").allocate(X.nbytes)
    memory.copy_in(X)
    before, found = used().used_bytes, np.empty_like(X)
    first, second = (bind_to_owner(DeviceTensor(memory, X.dtype, X.shape)) for _ in range(2))
    first.memory.copy_out(found)
    np.testing.assert_array_equal(found, X)
    del first, second
    assert used().used_bytes == before - X.nbytes


@needs_compiler
@pytest.mark.parametrize("device", [DEVICE, "acme_c"])
def test_deadline_stops_steps_on_resident_values(acme, device):
    x = np.ones((4, 8), np.float32)
    with nna.InferenceSession(parse_model(RETURNS), devices=device, options={"deadline_s": 60}) as session:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], x + np.sin(x), rtol=1e-6)
        assert len(session.provenance.transfers) == 4
    name = device if isinstance(device, str) else device[0]
    before = used(name).used_bytes
    hurried = nna.InferenceSession(parse_model(RETURNS), devices=device, options={"deadline_s": 1e-9})
    with hurried, pytest.raises(CancelledError):
        hurried.run(None, {"x": x})
    assert used(name).used_bytes == before
