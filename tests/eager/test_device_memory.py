"""Tensors on a device with its own memory."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers import registry
from nnadapter.eager import RESIDENTS
from nnadapter.errors import NNAdapterError
from tests.c_compiler import needs_compiler

pytestmark = [needs_compiler, pytest.mark.usefixtures("acme")]


def used_bytes():
    gc.collect()
    RESIDENTS.free_orphans()  # as the next operation does
    return nna.Device.acquire("acme_c").memory_statistics().used_bytes


def test_contents_live_as_long_as_the_tensor():
    initial_bytes, initial_count = used_bytes(), len(RESIDENTS)
    x = nna.tensor(np.arange(256, dtype=np.float32), device="acme_c")
    y = x + x
    z = y + x
    np.testing.assert_array_equal(z.numpy(), 3 * np.arange(256, dtype=np.float32))
    assert used_bytes() - initial_bytes == 3 * 1024 and len(RESIDENTS) == initial_count + 3
    del y
    assert used_bytes() - initial_bytes == 2 * 1024
    del x, z
    assert used_bytes() == initial_bytes and len(RESIDENTS) == initial_count


def test_resident_operands_are_used_in_place(monkeypatch):
    """A resident operand is not copied in again."""
    from nnadapter.drivers.native import DeviceMemory

    copied = []
    inner = DeviceMemory.copy_in
    monkeypatch.setattr(DeviceMemory, "copy_in", lambda self, array: (copied.append(array.shape), inner(self, array)))
    x = nna.tensor([[1.0, -2.0], [3.0, 4.0]], device="acme_c")
    np.testing.assert_array_equal(((x @ x) + x).numpy(), np.array([[-4, -12], [18, 14]], np.float32))
    assert copied == [(2, 2)]


def test_lack_of_memory_is_reported():
    x = nna.tensor(np.zeros(256, np.float32), device="acme_c")
    initial_bytes = used_bytes()
    # enough for the operand, too little for the sum
    with registry.open_device("acme_c").allocate((1 << 30) - initial_bytes - 1024):
        with pytest.raises(NNAdapterError, match=r"1024 bytes"):
            x + x
        assert used_bytes() == 1 << 30
    assert used_bytes() == initial_bytes + 1024
    np.testing.assert_array_equal((x + x).numpy(), np.zeros(256, np.float32))


def test_many_threads():
    x = nna.tensor(np.arange(64, dtype=np.float32), device="acme_c")
    failures = []

    def work():
        try:
            for _ in range(50):
                np.testing.assert_array_equal((x + x).numpy(), 2 * np.arange(64, dtype=np.float32))
        except AssertionError as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_tensors_may_be_freed_while_the_lock_is_held():
    """A garbage collection may free tensors while the lock is held; that must not deadlock."""
    x = nna.tensor([1.0, 2.0], device="acme_c")
    y = x + x
    with RESIDENTS._lock:
        del x, y
        gc.collect()
