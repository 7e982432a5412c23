"""Memory of devices, and tensors in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


class Memory(ABC):
    """Bytes on a device."""

    nbytes: int

    @abstractmethod
    def copy_in(self, array: Array) -> None:
        """Copy a contiguous array to the device, done on return."""

    @abstractmethod
    def copy_out(self, array: Array) -> None:
        """Fill a contiguous, writable array from the device, done on return."""

    @abstractmethod
    def free(self) -> None:
        """Free it; nothing happens the second time."""

    def dlpack_device(self) -> tuple[int, int] | None:
        """Where it is, as DLPack numbers devices; None where what lies there is given over in the host's memory."""
        return None

    def dlpack(self, dtype: np.dtype[Any], shape: tuple[int, ...], **asked: Any) -> Any:
        """A copy of the tensor that lies there as DLPack's capsule, asked for only where `dlpack_device` says where.

        Args:
            dtype: of its elements.
            shape: its dimensions.
            asked: `stream` and `dl_device` of `__dlpack__`.
        """
        raise NotImplementedError(f"{type(self).__name__} gives nothing over by DLPack")


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class DeviceTensor:
    """A tensor in memory of a device: row-major, without gaps, from the first byte on."""

    memory: Memory
    """At least as many bytes as the tensor has."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_given_up: bool = False
    """Whoever computes with it may make results in its memory: nobody else reads it, and nothing need be left there."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * self.dtype.itemsize
