"""Messages of compiled_model.proto as Python classes, kinds of parts, and conversion of values and options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nnadapter import limits
from nnadapter.compiled_models.descriptor import DESCRIPTOR
from nnadapter.drivers.capability import OptionValue
from nnadapter.errors import CompiledModelError
from nnadapter.files.container.format import ADVICE
from nnadapter.files.messages import Message, Messages
from nnadapter.ir.index_ranges import Bound, IndexCheck, Size
from nnadapter.ir.operand import Array, array_type_of
from nnadapter.onnx.signature import ModelMetadata
from partition.graph import Value

if TYPE_CHECKING:
    from nnadapter.files.container.format import Container, ContainerWriter
    from nnadapter.onnx.separate_constants import SeparateTensor


VERSION = 6
"""The version of what a compiled model is made of; newer ones are refused."""
MESSAGES = Messages(DESCRIPTOR, "nnadapter.compiled", CompiledModelError, "compiled model", ADVICE, limits.PLAN_BYTES)

__all__ = ["ADVICE", "MESSAGES", "VERSION", "Message"]


MODEL, REPORT, PROGRAM, CONSTANT = "model", "report", "program", "constant"
IR, ONNX = "segment.ir", "segment.onnx"
MOST_SIZES = 1024
"""Elements of an array of sizes."""


def write_value(message: Message, value: Value) -> None:
    """Fill a Value message."""
    message.name, message.data_type, message.itemsize = value.name, value.dtype or "", value.itemsize
    if value.shape is not None:
        write_shape(message.shape, value.shape)


def write_check(message: Message, check: IndexCheck) -> None:
    """Fill an IndexCheck message."""
    message.value, message.reader, message.source = check.value, check.reader, check.source
    for low, high, exception in check.bounds:
        row = message.ranges.add()
        for bound, limit in ((low, "low"), (high, "high")):
            if bound is not None:
                _write_limit(getattr(row, limit), bound)
        if exception is not None:
            row.exception = exception
    if check.interval is not None:
        message.least = check.interval[0]
        _write_limit(message.most, check.interval[1])


def _write_limit(message: Message, bound: Bound) -> None:
    message.SetInParent()
    if isinstance(bound, Size):
        message.size_of, message.axis, message.number, others = bound
        for name, axis in others:
            message.others.add(size_of=name, axis=axis)
    else:
        message.number = bound


def read_check(message: Message) -> IndexCheck:
    """Return what an IndexCheck message says."""
    return IndexCheck(
        message.value,
        tuple(
            (
                _read_limit(row.low) if row.HasField("low") else None,
                _read_limit(row.high) if row.HasField("high") else None,
                row.exception if row.HasField("exception") else None,
            )
            for row in message.ranges
        ),
        message.reader,
        message.source,
        (message.least, _read_limit(message.most)) if message.HasField("most") else None,
    )


def _read_limit(message: Message) -> Bound:
    if not message.size_of:
        return int(message.number)
    others = tuple((row.size_of, row.axis) for row in message.others)
    return Size(message.size_of, message.axis, message.number, others)


def write_shape(message: Message, shape: Sequence[int | str | None]) -> None:
    """Fill a Shape message."""
    message.SetInParent()
    for size in shape:
        row = message.dimensions.add()
        if isinstance(size, str):
            row.name = size
        elif size is not None:
            row.size = int(size)


def read_value(message: Message) -> Value:
    """Return what a Value message says."""
    shape = read_shape(message.shape) if message.HasField("shape") else None
    return Value(message.name, message.data_type or None, shape, message.itemsize)


def read_shape(message: Message) -> tuple[int | str | None, ...]:
    """Return what a Shape message says."""
    return tuple(getattr(row, row.WhichOneof("known") or "", None) for row in message.dimensions)


def read_sizes(message: Message) -> tuple[int, ...]:
    """Return what a Shape message says, every size of which is known."""
    return tuple(row.size for row in message.dimensions)


def write_array(message: Message, name: str, array: Array, writer: ContainerWriter) -> None:
    """Write an array of numbers, and fill a Contents message that says where it is.

    Raises:
        CompiledModelError: it holds no numbers.
    """
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        raise CompiledModelError(f"{name!r} is known beforehand and holds no numbers, which no compiled model keeps")
    message.name, message.data_type = name, array.dtype.name
    message.dimensions.extend(array.shape)
    message.part = writer.add(CONSTANT, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def write_tensor(message: Message, tensor: SeparateTensor, writer: ContainerWriter) -> None:
    """Write a constant of an ONNX model, and fill a Contents message that says where it is."""
    message.name, message.data_type = tensor.name, tensor.dtype
    message.dimensions.extend(tensor.dimensions)
    message.part = writer.add(CONSTANT, tensor.contents.data)


def read_array(message: Message, container: Container) -> Array:
    """Return the array of a Contents message of a file that was checked: read-only, looking into the file.

    Raises:
        CompiledModelError: the part is not what it was.
    """
    element = array_type_of(message.data_type)
    array: Array = np.frombuffer(container.contents(message.part), np.uint8).view(element)
    return array.reshape(tuple(message.dimensions))


def write_metadata(message: Message, metadata: ModelMetadata) -> None:
    """Fill a Metadata message."""
    for name in ("producer_name", "graph_name", "domain", "description", "graph_description", "version"):
        setattr(message, name, getattr(metadata, name))
    message.custom.update(metadata.custom_metadata_map)


def read_metadata(message: Message) -> ModelMetadata:
    """Return what a Metadata message says."""
    return ModelMetadata(
        producer_name=message.producer_name,
        graph_name=message.graph_name,
        domain=message.domain,
        description=message.description,
        graph_description=message.graph_description,
        version=message.version,
        custom_metadata_map=dict(message.custom),
    )


_FIELDS: Mapping[type, str] = {bool: "bool", int: "int", float: "float", str: "string"}


def write_options(messages: Message, options: Mapping[str, OptionValue]) -> None:
    """Fill a map of Option messages."""
    for name, value in options.items():
        if isinstance(value, tuple):
            messages[name].strings.SetInParent()
            messages[name].strings.values.extend(value)
        else:
            setattr(messages[name], _FIELDS[type(value)], value)


def read_options(messages: Mapping[str, Message]) -> dict[str, OptionValue]:
    """Return what a map of Option messages says."""
    return {name: _option(message) for name, message in messages.items()}


def _option(message: Message) -> OptionValue:
    kind = message.WhichOneof("value") or "string"
    value: OptionValue = tuple(message.strings.values) if kind == "strings" else getattr(message, kind)
    return value


def values_by_name(messages: Iterable[Message]) -> dict[str, Value]:
    """Return what Value messages say, by name."""
    return {message.name: read_value(message) for message in messages}
