"""Computations: requests that are made once and filled with addresses for every run."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nnadapter.drivers.control import Control
from nnadapter.drivers.native.blocks import Block
from nnadapter.drivers.native.codes import DATA_TYPES
from nnadapter.drivers.native.control import build_control
from nnadapter.drivers.native.memory import DeviceMemory
from nnadapter.drivers.native.models import aligned, contents
from nnadapter.drivers.native.serialized import Border
from nnadapter.drivers.native.streams import NativeStream
from nnadapter.drivers.native.structures import CLASSES, Holder, make
from nnadapter.errors import ExecutionError
from nnadapter.ir.operand import PACKED, Array, DataType, OperandType
from nnadapter.ir.packing import pack, unpack
from nnadapter.process.cache import remembered


class Request:
    """An NNAdapterComputeRequest with its tensors, but for addresses: what calls at the same sizes have in common."""

    def __init__(self, border: Border) -> None:
        every = (*border.inputs, *border.outputs)
        pattern = _pattern(*(tuple([(type_.dtype, type_.rank) for type_ in types]) for types in border))
        self.sizes = [type_.nbytes for type_ in border.inputs]
        """Bytes of the inputs."""
        self.output_sizes = [type_.nbytes for type_ in border.outputs]
        """Bytes of the outputs."""
        self.types = border
        self.rooms = [(type_.dimensions, type_.dtype.array_type) for type_ in border.outputs]
        """Dimensions and data type of arrays for the outputs."""
        self.is_packed = any(type_.dtype in PACKED for type_ in every)
        """Elements of some tensor have another form there."""
        self.may_lie_on_device = not self.is_packed and all(type_.size for type_ in every)
        """Every tensor has bytes, and the same ones there."""
        sizes = [size for type_ in every for size in type_.dimensions]
        self.block = pattern.block.with_words(pattern.sizes, [*sizes, *self.sizes, *self.output_sizes])
        self.data, self.memory = pattern.data, pattern.memory


class NativeCall:
    """One NNAdapterComputeRequest; used by one computation at a time.

    Args:
        request: all of it but addresses.
        stream: the stream's handle; None to be done when the driver returns.
        control: deadline and cancelling.
        told: the sizes that the model leaves open, as an array of C; None where it leaves none open.
    """

    def __init__(self, request: Request, stream: int | None, control: Control, sizes: Any = None) -> None:
        self._request, self._holder = request, Holder()
        words, self.request = request.block.copied()
        """Where the request is."""
        self._words = words.view(np.uint64)
        compute_request = CLASSES["ComputeRequest"].from_address(self.request)
        compute_request.stream, compute_request.control = stream, build_control(control, self._holder)
        if sizes is not None:
            compute_request.size_count, compute_request.sizes = len(sizes), ctypes.addressof(self._holder.keep(sizes))
        self._input_arrays: Sequence[Array] = ()
        self._made: Sequence[Array] = ()

    def take(self, inputs: Sequence[Array], outputs: Sequence[Array] = ()) -> None:
        """Let the request read from arrays, and write to new ones, or to `outputs` where these will do."""
        request = self._request
        if request.is_packed:
            self._input_arrays, self._made = _packed(request.types, inputs)
        else:
            self._input_arrays = list(map(aligned, inputs))
            self._made = (
                outputs if self._fit(outputs) else [np.empty(dimensions, dtype) for dimensions, dtype in request.rooms]
            )
        if [array.nbytes for array in self._input_arrays] != request.sizes:
            raise self._other_sizes(self._input_arrays)
        self._words[request.data] = [contents(array) or 0 for array in (*self._input_arrays, *self._made)]
        self._words[request.memory] = 0

    def _fit(self, outputs: Sequence[Array]) -> bool:
        """Whether the driver can write to arrays."""
        is_plain = all(array.flags.c_contiguous and array.flags.aligned for array in outputs)
        return is_plain and [array.nbytes for array in outputs] == self._request.output_sizes

    def place(self, inputs: Sequence[DeviceMemory], outputs: Sequence[DeviceMemory]) -> None:
        """Let the request read from device memory and write to it."""
        request = self._request
        if any(memory.nbytes < size for memory, size in zip(inputs, request.sizes, strict=True)):
            raise self._other_sizes(inputs)
        self._words[request.data] = 0
        self._words[request.memory] = [memory.handle or 0 for memory in (*inputs, *outputs)]

    def _other_sizes(self, inputs: Sequence[Array | DeviceMemory]) -> ExecutionError:
        """The error for inputs that the driver would read beyond; of plans, only those of forged files give any."""
        input_sizes = [buffer.nbytes for buffer in inputs]
        return ExecutionError(
            f"inputs have {input_sizes} bytes, and the program was compiled for {self._request.sizes}"
        )

    def results(self) -> Sequence[Array]:
        """The arrays that were written, which the call lets go of."""
        output_arrays, self._input_arrays, self._made = self._made, (), ()
        if not self._request.is_packed:
            return output_arrays
        return [
            unpack(array, type_.dtype, type_.dimensions) if type_.dtype in PACKED else array
            for type_, array in zip(self._request.types.outputs, output_arrays, strict=True)
        ]


def _packed(types: Border, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Arrays to read from and to write to, where some have another form in C."""
    pairs = zip(types.inputs, inputs, strict=True)
    packed_inputs = [pack(array) if type_.dtype in PACKED else aligned(array) for type_, array in pairs]
    return packed_inputs, [_room(type_) for type_ in types.outputs]


class Sized:
    """What goes into a run and comes out of it, and what the run is told of open sizes."""

    def __init__(self, border: Border, sizes: Any = None) -> None:
        """Take the types, and an array of C; None where the model leaves no sizes open."""
        self.border, self.told = border, sizes
        self.calls: dict[object, NativeCall] = {}
        """By seat, the request that its user fills in: whatever is computed there, one thing at a time is."""

    @cached_property
    def request(self) -> Request:
        """What its calls have in common; not where types are traced."""
        return Request(self.border)


class Seat:
    """What one computation at a time has: a stream, where the driver has streams."""

    def __init__(self, stream: NativeStream | None) -> None:
        self.stream = stream

    def close(self) -> None:
        """Close the stream."""
        if self.stream is not None:
            self.stream.close()


_Kind = tuple[DataType, int]
"""Data type and rank of a tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pattern:
    """A request as far as data types and ranks say it, and the words where the rest stands, tensor by tensor."""

    block: Block
    sizes: Array
    """Dimensions of all, then the bytes of each."""
    data: Array
    memory: Array


@remembered(512)
def _pattern(inputs: tuple[_Kind, ...], outputs: tuple[_Kind, ...]) -> _Pattern:
    holder = Holder()
    tensors = [_tensor(holder, *kind) for kind in (*inputs, *outputs)]
    addresses = list(map(ctypes.addressof, tensors))
    request = holder.make(
        "ComputeRequest",
        input_count=len(inputs),
        output_count=len(outputs),
        inputs=holder.pointers(addresses[: len(inputs)]),
        outputs=holder.pointers(addresses[len(inputs) :]),
    )
    block = Block(holder, request)
    places = [
        block.place(tensor.dimensions) + axis
        for tensor, (_, rank) in zip(tensors, (*inputs, *outputs), strict=True)
        for axis in range(rank)
    ]

    def members(name: str) -> Array:
        return np.array([block.place(address, name, "Tensor") for address in addresses], np.intp)

    sizes = np.concatenate([np.array(places, np.intp), members("bytes")])
    return _Pattern(block, sizes, members("data"), members("memory"))


def _tensor(holder: Holder, dtype: DataType, rank: int) -> Any:
    dimensions = holder.values("i64", [0] * rank)
    return holder.keep(make("Tensor", data_type=DATA_TYPES[dtype], rank=rank, dimensions=dimensions))


def _room(type_: OperandType) -> Array:
    if type_.dtype in PACKED:
        return np.empty(type_.nbytes, np.uint8)
    return np.empty(type_.dimensions, type_.dtype.array_type)
