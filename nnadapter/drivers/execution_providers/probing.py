"""Whether a provider starts with its options, and takes anything: found with the smallest of graphs."""

from __future__ import annotations

from nnadapter.drivers.execution_providers.assignment import read_assignment
from nnadapter.drivers.execution_providers.backing import Backing
from nnadapter.drivers.onnxruntime.errors import brief
from nnadapter.errors import InvalidOptionError
from nnadapter.onnx.building import parse


def takes_addition(backing: Backing) -> bool:
    """Return whether the provider takes a float32 addition; every accelerator has one.

    A provider that fails when it is asked for a graph's nodes is left out by ONNX Runtime, which only logs why.

    Raises:
        InvalidOptionError: the provider does not start.
    """
    try:
        assignment = read_assignment(backing.open(_addition()), backing.provider)
    except Exception as error:
        options_text = ", ".join(f"{name}={value}" for name, value in backing.options.items()) or "none"
        raise InvalidOptionError(
            f"{backing.provider} does not start: {brief(error)}; change its options, got {options_text}"
        ) from error
    return bool(assignment.taken)


def _addition() -> bytes:
    model = parse(
        """<ir_version: 8, opset_import: ["" : 13]>
        probe (float[1, 4, 4, 4] a, float[1, 4, 4, 4] b) => (float[1, 4, 4, 4] c) { ["nnadapter:0:0"] c = Add(a, b) }"""
    )
    contents: bytes = model.SerializeToString()
    return contents
