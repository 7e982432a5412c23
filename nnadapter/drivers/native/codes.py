"""The numbers that stand for things in the C interface, and what they stand for here."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

from nnadapter.drivers.capability import DeviceType, OpenSizes, Threading
from nnadapter.drivers.interface import Compatibility
from nnadapter.ir.operand import DataType, Layout, Lifetime
from partition.verdict import Reason


class Status(IntEnum):
    """NNAdapterStatus."""

    OK = 0
    FAILED = 1
    INVALID_ARGUMENT = 2
    OUT_OF_MEMORY = 3
    DEVICE_UNAVAILABLE = 4
    DEVICE_LOST = 5
    INCOMPATIBLE_PROGRAM = 6
    CANCELLED = 7
    DEADLINE_EXCEEDED = 8
    TRANSIENT = 9


class AttributeCode(IntEnum):
    """Kinds of attributes and options."""

    KIND_BOOL = 1
    KIND_INT = 2
    KIND_FLOAT = 3
    KIND_STRING = 4
    KIND_INTS = 5
    KIND_FLOATS = 6
    KIND_STRINGS = 7


DATA_TYPES: Mapping[DataType, int] = MappingProxyType({each: code for code, each in enumerate(DataType, start=1)})
LAYOUTS: Mapping[Layout, int] = MappingProxyType({Layout.NCHW: 1, Layout.NHWC: 2})
LIFETIMES: Mapping[Lifetime, int] = MappingProxyType({each: code for code, each in enumerate(Lifetime, start=1)})
DEVICE_TYPES: Mapping[int, DeviceType] = MappingProxyType(dict(enumerate(DeviceType, start=1)))
THREADINGS: Mapping[int, Threading] = MappingProxyType(dict(enumerate(Threading, start=1)))
COMPATIBILITIES: Mapping[int, Compatibility] = MappingProxyType(dict(enumerate(Compatibility, start=1)))
OPEN_SIZES: Mapping[int, OpenSizes] = MappingProxyType(dict(enumerate(OpenSizes)))
REASONS: Mapping[int, Reason] = MappingProxyType(
    dict(
        enumerate(
            (
                Reason.UNSUPPORTED_OPERATION,
                Reason.UNSUPPORTED_ATTRIBUTE,
                Reason.UNSUPPORTED_DTYPE,
                Reason.UNSUPPORTED_RANK,
                Reason.NOT_CONSTANT,
                Reason.SWITCHED_OFF,
                Reason.MEMORY_LIMIT,
                Reason.SEGMENT_LIMIT,
                Reason.DEVICE_REFUSED,
            ),
            start=1,
        )
    )
)
"""Why a driver refuses. Other reasons are the host's to give."""
