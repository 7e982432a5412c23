"""Whether a provider starts with its options, and takes anything: found with the smallest of graphs."""

from __future__ import annotations

import numpy as np

from nnadapter.drivers.execution_providers.assignment import read_assignment
from nnadapter.drivers.execution_providers.backing import Backing
from nnadapter.drivers.execution_providers.names import NO_HARDWARE, has_hardware
from nnadapter.drivers.onnxruntime.errors import brief
from nnadapter.errors import DeviceUnavailableError, InvalidOptionError
from nnadapter.onnx.wire_format import BYTES, varint_bytes

_IR_VERSION, _OPSET, _FLOAT, _HALF = 8, 13, 1, 10


def takes_addition(backing: Backing) -> bool:
    """Return whether the provider takes a float32 addition; every accelerator has one.

    A provider that fails when it is asked for a graph's nodes is left out by ONNX Runtime, which only logs why.

    Raises:
        InvalidOptionError: the provider does not start.
        DeviceUnavailableError: nor can it, on this machine.
    """
    try:
        assignment = read_assignment(backing.open(_addition()), backing.provider)
    except Exception as error:
        if not has_hardware(backing.provider):
            raise DeviceUnavailableError(f"{backing.provider} cannot be used: {NO_HARDWARE}; choose another") from error
        options_text = ", ".join(f"{name}={value}" for name, value in backing.options.items()) or "none"
        raise InvalidOptionError(
            f"{backing.provider} does not start: {brief(error)}; change its options, got {options_text}, or install "
            "the libraries that ONNX Runtime logs as missing"
        ) from error
    return bool(assignment.taken)


def computes_half(backing: Backing) -> bool:
    """Whether the provider's hardware adds float16: some take such nodes and fail when they are run."""
    x = np.ones((1, 4, 4, 4), np.float16)
    try:
        backing.open(_addition(_HALF)).run(None, {"a": x, "b": x})
    except Exception:  # noqa: BLE001  whatever it raises is a no
        return False
    return True


def _addition(dtype: int = _FLOAT) -> bytes:
    """A serialized model, written by hand: a program that is loaded needs nothing else that has to do with models."""
    shape = _message(*((1, _message((1, size))) for size in (1, 4, 4, 4)))
    type_ = _message((1, _message((1, dtype), (2, shape))))
    node = _message((1, b"a"), (1, b"b"), (2, b"c"), (3, b"nnadapter:0:0"), (4, b"Add"), (7, b""))
    a, b, c = (_message((1, name), (2, type_)) for name in (b"a", b"b", b"c"))
    graph = _message((1, node), (2, b"probe"), (11, a), (11, b), (12, c))
    return _message((1, _IR_VERSION), (7, graph), (8, _message((1, b""), (2, _OPSET))))


def _message(*fields: tuple[int, int | bytes]) -> bytes:
    """Return a message with these fields: their numbers, and what they hold."""
    return b"".join(
        varint_bytes(number << 3) + varint_bytes(value)
        if isinstance(value, int)
        else varint_bytes(number << 3 | BYTES) + varint_bytes(len(value)) + value
        for number, value in fields
    )
