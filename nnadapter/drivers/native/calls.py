"""Computations: requests that are made once and filled with addresses for every run."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnadapter.drivers.control import Control
from nnadapter.drivers.native.codes import DATA_TYPES
from nnadapter.drivers.native.control import build_control
from nnadapter.drivers.native.memory import DeviceMemory
from nnadapter.drivers.native.models import aligned, contents
from nnadapter.drivers.native.packing import PACKED, pack, unpack
from nnadapter.drivers.native.serialized import Border
from nnadapter.drivers.native.streams import NativeStream
from nnadapter.drivers.native.structures import Holder, make
from nnadapter.errors import ExecutionError
from nnadapter.ir.operand import Array, OperandType


class NativeCall:
    """One NNAdapterComputeRequest with its tensors; used by one computation at a time.

    Args:
        inputs: types of the model's inputs.
        outputs: types of the model's outputs.
        stream: the stream's handle; None to be done when the driver returns.
        control: deadline and cancelling.
        told: the sizes that the model leaves open, as an array of C; None where it leaves none open.
    """

    def __init__(
        self,
        inputs: Sequence[OperandType],
        outputs: Sequence[OperandType],
        stream: int | None,
        control: Control,
        told: Any = None,
    ) -> None:
        self._types = tuple(inputs), tuple(outputs)
        self._sizes = [type_.nbytes for type_ in inputs]
        self._holder = Holder()
        self._inputs = [_tensor(self._holder, type_) for type_ in inputs]
        self._outputs = [_tensor(self._holder, type_) for type_ in outputs]
        request = make(
            "ComputeRequest",
            input_count=len(self._inputs),
            output_count=len(self._outputs),
            inputs=self._holder.pointers(map(ctypes.addressof, self._inputs)),
            outputs=self._holder.pointers(map(ctypes.addressof, self._outputs)),
            stream=stream,
            control=build_control(control, self._holder),
            size_count=0 if told is None else len(told),
            sizes=None if told is None else ctypes.addressof(self._holder.keep(told)),
        )
        self.request: int = ctypes.addressof(self._holder.keep(request))
        """Where the request is."""
        self._input_arrays: Sequence[Array] = ()
        self._made: Sequence[Array] = ()

    def take(self, inputs: Sequence[Array]) -> None:
        """Let the request read from arrays and write to new ones."""
        pairs = zip(self._types[0], inputs, strict=True)
        self._input_arrays = [pack(array) if type_.dtype in PACKED else aligned(array) for type_, array in pairs]
        self._made = [_room(type_) for type_ in self._types[1]]
        if [array.nbytes for array in self._input_arrays] != self._sizes:
            raise self._other_sizes(self._input_arrays)
        for tensor, array in zip((*self._inputs, *self._outputs), (*self._input_arrays, *self._made), strict=True):
            tensor.data, tensor.memory = contents(array), None

    def place(self, inputs: Sequence[DeviceMemory], outputs: Sequence[DeviceMemory]) -> None:
        """Let the request read from device memory and write to it."""
        if any(memory.nbytes < size for memory, size in zip(inputs, self._sizes, strict=True)):
            raise self._other_sizes(inputs)
        for tensor, memory in zip((*self._inputs, *self._outputs), (*inputs, *outputs), strict=True):
            tensor.data, tensor.memory = None, memory.handle

    def _other_sizes(self, inputs: Sequence[Array | DeviceMemory]) -> ExecutionError:
        """The error for inputs that the driver would read beyond; of plans, only those of forged files give any."""
        given = [each.nbytes for each in inputs]
        return ExecutionError(f"inputs have {given} bytes, and the program was compiled for {self._sizes}")

    def results(self) -> list[Array]:
        """The arrays that were written, which the call lets go of."""
        made, self._input_arrays, self._made = self._made, (), ()
        return [
            unpack(array, type_.dtype, type_.dimensions) if type_.dtype in PACKED else array
            for type_, array in zip(self._types[1], made, strict=True)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class Sized:
    """What goes into a run and comes out of it, and what the run is told of open sizes."""

    border: Border
    told: Any
    """An array of C; None where the model leaves no sizes open."""


class Seat:
    """What one computation at a time has: a stream, where the driver has streams."""

    def __init__(self, stream: NativeStream | None) -> None:
        self.stream = stream

    @property
    def stream_handle(self) -> int | None:
        """The driver's handle; None where there is no stream."""
        return None if self.stream is None else self.stream.handle

    def close(self) -> None:
        """Close the stream."""
        if self.stream is not None:
            self.stream.close()


def _tensor(holder: Holder, type_: OperandType) -> Any:
    tensor = make(
        "Tensor",
        data_type=DATA_TYPES[type_.dtype],
        rank=type_.rank,
        dimensions=holder.values("i64", map(int, type_.dimensions)),
        bytes=type_.nbytes,
    )
    return holder.keep(tensor)


def _room(type_: OperandType) -> Array:
    if type_.dtype in PACKED:
        return np.empty(type_.nbytes, np.uint8)
    return np.empty(type_.dimensions, type_.dtype.array_type)
