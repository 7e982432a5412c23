"""Checks of device memory that every driver with memory passes."""

from __future__ import annotations

import numpy as np
import pytest

from nnadapter.drivers import DeviceTensor
from nnadapter.errors import DriverError


def placed(memory, array):
    """Return the array in new device memory."""
    memory.copy_in(array)
    return DeviceTensor(memory, array.dtype, array.shape)


def taken(tensor):
    """Return the contents of a device tensor."""
    array = np.empty(tensor.shape, tensor.dtype)
    tensor.memory.copy_out(array)
    return array


def check_bytes_are_seen_as_other_types(memory):
    """Check 8 bytes: zeros until something is copied in, then readable as any type."""
    assert taken(DeviceTensor(memory, np.dtype(np.int32), (2,))).tolist() == [0, 0]
    memory.copy_in(np.array([1, 2], np.int32))
    assert taken(DeviceTensor(memory, np.dtype(np.int64), (1,))).tolist() == [1 + (2 << 32)]


def check_freed_memory_is_not_read(tensor):
    """Check that reading freed memory fails, and that freeing twice does not."""
    tensor.memory.free()
    tensor.memory.free()
    with pytest.raises(DriverError, match="freed"):
        taken(tensor)
