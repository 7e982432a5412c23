"""What memory of every device does, for tests of drivers that have some."""

from __future__ import annotations

import numpy as np
import pytest

from nnadapter.drivers import DeviceTensor
from nnadapter.errors import DriverError


def placed(memory, array):
    """An array in new memory of a device."""
    memory.copy_in(array)
    return DeviceTensor(memory, array.dtype, array.shape)


def taken(tensor):
    """What a tensor on a device holds."""
    array = np.empty(tensor.shape, tensor.dtype)
    tensor.memory.copy_out(array)
    return array


def check_bytes_are_seen_as_other_types(memory):
    """Of 8 bytes: zeros as long as nothing was copied in, then what was, as any type."""
    assert taken(DeviceTensor(memory, np.dtype(np.int32), (2,))).tolist() == [0, 0]
    memory.copy_in(np.array([1, 2], np.int32))
    assert taken(DeviceTensor(memory, np.dtype(np.int64), (1,))).tolist() == [1 + (2 << 32)]


def check_freed_memory_is_not_read(tensor):
    """Freed twice, which is no error."""
    tensor.memory.free()
    tensor.memory.free()
    with pytest.raises(DriverError, match="freed"):
        taken(tensor)
