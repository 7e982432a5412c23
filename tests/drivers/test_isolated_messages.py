"""Messages of an isolated device: only plain values and valid memory references are unpickled."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from nnadapter.drivers import Reason, Unsupported, shared_memory
from nnadapter.drivers.isolation import read_answer, type_named, written
from nnadapter.drivers.isolation.channels import _result
from nnadapter.drivers.shared_memory import Block, place_of, shared_bytes
from nnadapter.errors import DriverError, OutOfMemoryError
from nnadapter.ir.operand import array_type_of
from partition.graph import DTYPE_OF_ELEMENT_TYPE


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


class Sly:
    def __reduce__(self):
        return Block, (1 << 40,)


@pytest.mark.parametrize("message", [pickle.dumps(Evil()), pickle.dumps(Sly()), b"", b"\x80\x05garbage"])
def test_unpickling_calls_nothing(message):
    with pytest.raises(DriverError, match="an unreadable answer"):
        read_answer(message, "npu")


def test_plain_values_and_our_types_round_trip():
    verdict = Unsupported(Reason.UNSUPPORTED_OPERATION, "why")
    message = (True, [verdict, np.arange(3), {"a": (1, b"x")}, np.asarray(["x"], object)])
    good, (heard, array, mapping, texts) = read_answer(written(message), "npu")
    assert good is True and heard == verdict and mapping == {"a": (1, b"x")} and texts[0] == "x"
    np.testing.assert_array_equal(array, np.arange(3))


def test_arrays_of_every_data_type_round_trip():
    for name in DTYPE_OF_ELEMENT_TYPE.values():
        array = np.zeros(3, array_type_of(name)) if name != "string" else np.asarray(["x"], object)
        heard = read_answer(written((True, array)), "npu")[1]
        assert heard.dtype == array.dtype and heard.shape == array.shape


@pytest.mark.parametrize(
    "spec",
    [
        ("float32", (1 << 40,), 64),
        ("float32", (4,), 4096),
        ("float32", (4,), -64),
        ("float32", (4,), 0),
        ("float32", (-4, -4), 64),
        ("float32", (1 << 33, 1 << 33), 64),
        ("float32", (True,), 64),
        ("float32", (1,) * 65, 64),
        ("O", (4,), 64),
        ("f4,f4", (4,), 64),
        ("no type", (4,), 64),
        (),
        None,
    ],
)
def test_results_outside_of_shared_memory_are_refused(spec):
    with pytest.raises(DriverError, match="invalid result"):
        _result(Block(4096), spec, "npu")


def test_types_are_found_by_name():
    assert [type_named(name).itemsize for name in ("float32", "bfloat16", "bool")] == [4, 2, 1]


def test_shared_memory_is_found_by_address():
    shared_memory, other = shared_bytes(10_000), np.empty(10_000, np.uint8)
    piece = shared_memory[4096:8192].view(np.float32).reshape(32, 32)
    block, offset = place_of(piece)
    assert offset == 4096 and block.address == shared_memory.__array_interface__["data"][0]
    assert place_of(other) is None and place_of(piece.T) is None and place_of(piece[:, 1:]) is None
    with pytest.raises(PermissionError):  # the file cannot shrink
        os.ftruncate(block.descriptor, 0)


def test_failed_mapping_closes_its_descriptor(monkeypatch):
    descriptors = []

    def too_small(nbytes):
        descriptors.append(os.open("/dev/null", os.O_RDWR))
        return descriptors[-1]

    monkeypatch.setattr(shared_memory, "_descriptor", too_small)
    with pytest.raises(OutOfMemoryError, match="cannot allocate"):
        Block(1 << 16)
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptors[0])
