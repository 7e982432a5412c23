"""What a compiled program takes for granted of its context, kept with it, so that no other context deserializes it."""

from __future__ import annotations

from typing import NamedTuple

from nnadapter.drivers.fake_npu.limits import Arithmetic
from nnadapter.drivers.fake_npu.options import FakeNpuOptions
from nnadapter.errors import IncompatibleProgramError


class ProgramNeeds(NamedTuple):
    """What the context that compiled a program had to give."""

    arithmetic: Arithmetic
    """How it rounds."""
    memory_bytes: int
    """Bytes of device memory for weights, the arena, inputs and outputs."""
    operations: tuple[str, ...]
    """Adapter IR types that must not be switched off, sorted."""


def check_needs(needs: ProgramNeeds, options: FakeNpuOptions) -> None:
    """Check that a context of these options would have compiled the program, and to the same.

    Raises:
        IncompatibleProgramError: another arithmetic, too little memory, or an operation that is switched off.
    """
    wrong = _arithmetic(needs, options) or _memory(needs, options) or _operations(needs, options)
    if wrong:
        raise IncompatibleProgramError(f"the program {wrong}; compile the model again, or change the option")


def _arithmetic(needs: ProgramNeeds, options: FakeNpuOptions) -> str:
    same = needs.arithmetic == options.arithmetic
    return "" if same else f"computes with {needs.arithmetic}, got a context with {options.arithmetic}"


def _memory(needs: ProgramNeeds, options: FakeNpuOptions) -> str:
    if needs.memory_bytes <= options.memory_bytes:
        return ""
    return f"needs {needs.memory_bytes} bytes of device memory, got a context with memory_bytes {options.memory_bytes}"


def _operations(needs: ProgramNeeds, options: FakeNpuOptions) -> str:
    off = [operation for operation in needs.operations if operation in options.switched_off]
    return f"has {', '.join(off)}, got a context with it in switched_off" if off else ""
