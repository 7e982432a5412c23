"""What a device says of one atom: supported, or not and why.

A refusal is a value. It carries a reason code that programs read and a detail that people read, and it
reaches the report word for word.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a device does not take an atom. The values are stable: reports and rules name them."""

    UNSUPPORTED_OPERATION = "unsupported_operation"
    """No converter, or no kernel on the device, for this op."""
    UNSUPPORTED_VERSION = "unsupported_version"
    """The op is known, this schema version of it is not."""
    UNSUPPORTED_DOMAIN = "unsupported_domain"
    """The op belongs to a domain that is not understood."""
    UNSUPPORTED_ATTRIBUTE = "unsupported_attribute"
    """The op is known, this attribute value of it is not."""
    UNSUPPORTED_DTYPE = "unsupported_dtype"
    """The device does not compute in this data type."""
    UNSUPPORTED_RANK = "unsupported_rank"
    """The device does not take tensors of this rank."""
    UNSUPPORTED_TYPE = "unsupported_type"
    """A value is not a dense tensor: a sequence, an optional, a map, a sparse tensor or strings."""
    NOT_CONSTANT = "not_constant"
    """An input must be known at compile time and is not."""
    DYNAMIC_SHAPE = "dynamic_shape"
    """A shape is not known although the shapes of all model inputs are."""
    DATA_DEPENDENT_SHAPE = "data_dependent_shape"
    """A shape depends on the values of a tensor, so it is known only after that tensor is."""
    CONTROL_FLOW = "control_flow"
    """The op runs another graph."""
    INVALID_NODE = "invalid_node"
    """The node contradicts its own schema or its shapes."""
    SWITCHED_OFF = "switched_off"
    """The person switched the op off on this device."""
    RULE = "rule"
    """A rule or a limit of the person forbids it: a ban, a pin to another device, or a segment not worth it."""
    MEMORY_LIMIT = "memory_limit"
    """The segment is too large for the device: for its memory, or in the number of its nodes. Its halves may do."""
    SEGMENT_LIMIT = "segment_limit"
    """The segment as a whole is not acceptable to the device, for another reason than memory."""
    COMPILE_FAILED = "compile_failed"
    """The device said yes and then failed to compile."""
    BANNED = "banned"
    """It failed before on this version of the device's driver, and is not given to it until a day."""
    DRIVER_ERROR = "driver_error"
    """The driver failed while it was asked."""
    WRONG_RESULT = "wrong_result"
    """The device computed something else than the CPU, when it was compared."""
    DEVICE_REFUSED = "device_refused"
    """The device's own software said no and gave no code."""


@dataclass(frozen=True, slots=True)
class Supported:
    """The device takes the atom. It is true, as every object is, so that `if verdict` reads as it should."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The device does not take the atom."""

    reason: Reason
    """The code."""
    detail: str
    """One sentence with what was found and what would be accepted."""

    def __bool__(self) -> bool:
        """False, so that `if verdict` reads as it should."""
        return False

    def __str__(self) -> str:
        """The code and the sentence."""
        return f"{self.reason.value}: {self.detail}"


Verdict = Supported | Unsupported
"""Either answer."""

SUPPORTED = Supported()
"""The one value that every yes may share."""


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the first refusal among `verdicts`, or a yes: an atom stands only if all its parts do."""
    for verdict in verdicts:
        if isinstance(verdict, Unsupported):
            return verdict
    return SUPPORTED
