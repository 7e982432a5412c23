"""What a compiled program takes for granted of its context, kept with it, so that no other context deserializes it."""

from __future__ import annotations

from dataclasses import dataclass

from nnadapter.drivers.fake_npu.options import FakeNpuOptions
from nnadapter.errors import IncompatibleProgramError


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the context that compiled a program had to give."""

    half_precision: bool
    """Whether it rounds as the option precision says."""
    memory_bytes: int
    """Bytes of device memory for weights, the arena, inputs and outputs."""
    operations: tuple[str, ...]
    """Adapter IR types that must not be switched off, sorted."""


def check_needs(needs: Needs, options: FakeNpuOptions) -> None:
    """Check that a context of these options would have compiled the program, and to the same.

    Raises:
        IncompatibleProgramError: another precision, too little memory, or an operation that is switched off.
    """
    wrong = _precision(needs, options) or _memory(needs, options) or _operations(needs, options)
    if wrong:
        raise IncompatibleProgramError(f"the program {wrong}; compile the model again, or change the option")


def _precision(needs: Needs, options: FakeNpuOptions) -> str:
    if needs.half_precision is options.half_precision:
        return ""
    return (
        f"computes in {_PRECISIONS[needs.half_precision]}, got a context with precision "
        f"{_PRECISIONS[options.half_precision]!r}"
    )


def _memory(needs: Needs, options: FakeNpuOptions) -> str:
    if needs.memory_bytes <= options.memory_bytes:
        return ""
    return f"needs {needs.memory_bytes} bytes of device memory, got a context with memory_bytes {options.memory_bytes}"


def _operations(needs: Needs, options: FakeNpuOptions) -> str:
    off = [operation for operation in needs.operations if operation in options.switched_off]
    return f"has {', '.join(off)}, got a context with it in switched_off" if off else ""


_PRECISIONS = {False: "float32", True: "float16"}
