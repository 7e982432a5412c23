"""Whether a provider starts with its options, and takes anything: found with the smallest of graphs."""

from __future__ import annotations

import numpy as np

from nnadapter.drivers.execution_providers.assignment import read_assignment
from nnadapter.drivers.execution_providers.backing import Backing
from nnadapter.drivers.execution_providers.foreign_libraries import missing_library
from nnadapter.drivers.execution_providers.names import NO_HARDWARE, has_hardware
from nnadapter.drivers.execution_providers.small_models import FLOAT, HALF, model_of_one
from nnadapter.drivers.onnxruntime.errors import brief
from nnadapter.errors import DeviceUnavailableError, InvalidOptionError

_SHAPE = (1, 4, 4, 4)


def takes_addition(backing: Backing) -> bool:
    """Return whether the provider takes a float32 addition; every accelerator has one.

    A provider that fails when it is asked for a graph's nodes is left out by ONNX Runtime, which only logs why.

    Raises:
        InvalidOptionError: the provider does not start.
        DeviceUnavailableError: nor can it, on this machine, or without a library that is missing.
    """
    try:
        assignment = read_assignment(backing.open(_addition(FLOAT)), backing.provider)
    except Exception as error:
        if not has_hardware(backing.provider):
            raise DeviceUnavailableError(f"{backing.provider} cannot be used: {NO_HARDWARE}; choose another") from error
        missing = missing_library(backing.provider)
        if missing:
            raise DeviceUnavailableError(
                f"{backing.provider} does not start: {missing} is not found; install what has it where the system's "
                "loader looks (LD_LIBRARY_PATH)"
            ) from error
        options_text = ", ".join(f"{name}={value}" for name, value in backing.options.items()) or "none"
        raise InvalidOptionError(
            f"{backing.provider} does not start: {brief(error)}; change its options, got {options_text}, or install "
            "the libraries that ONNX Runtime logs as missing"
        ) from error
    return bool(assignment.taken)


def computes_half(backing: Backing) -> bool:
    """Whether the provider's hardware adds float16: some take such nodes and fail when they are run."""
    x = np.ones(_SHAPE, np.float16)
    try:
        backing.open(_addition(HALF)).run(None, {"a": x, "b": x})
    except Exception:  # noqa: BLE001  whatever it raises is a no
        return False
    return True


def _addition(element_type: int) -> bytes:
    return model_of_one(b"Add", 2, element_type, _SHAPE)
