"""Conversion between messages of compiled_model.proto and Python values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter import limits
from nnadapter.drivers.capability import ModelForm, OptionValue
from nnadapter.engine.descriptor import DESCRIPTOR
from nnadapter.errors import CompiledModelError, InvalidModelError
from nnadapter.files.messages import Message, Messages
from nnadapter.ir.index_ranges import Bound, IndexCheck, Size
from nnadapter.ir.operand import Array, array_type_of
from nnadapter.onnx.signature import ModelMetadata
from nnadapter.store.container import ADVICE
from partition.graph import Value

if TYPE_CHECKING:
    import onnx

    from nnadapter.drivers.onnxruntime.sessions import Loadable
    from nnadapter.ir.model import Model
    from nnadapter.ir.symbolic_numbers import SymbolicNumber, SymbolicTrace
    from nnadapter.onnx.canonical import SeparateTensor
    from nnadapter.store.container import Container, ContainerWriter


VERSION = 6
"""Format version of compiled models; newer ones are refused."""
MESSAGES = Messages(DESCRIPTOR, "nnadapter.compiled", CompiledModelError, "compiled model", ADVICE, limits.PLAN_BYTES)


MODEL, REPORT, PROGRAM, CONSTANT = "model", "report", "program", "constant"
IR, ONNX = "segment.ir", "segment.onnx"
MOST_SIZES = 1024


def write_value(message: Message, value: Value) -> None:
    """Fill a Value message."""
    message.name, message.data_type, message.itemsize = value.name, value.dtype or "", value.itemsize
    if value.shape is not None:
        write_shape(message.shape, value.shape)


def write_check(message: Message, check: IndexCheck) -> None:
    """Fill an IndexCheck message with an index check."""
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
        message.size_of, message.axis, message.number, equal_axes = bound
        for name, axis in equal_axes:
            message.others.add(size_of=name, axis=axis)
    else:
        message.number = bound


def read_check(message: Message) -> IndexCheck:
    """Return the index check of an IndexCheck message."""
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
    equal_axes = tuple((row.size_of, row.axis) for row in message.others)
    return Size(message.size_of, message.axis, message.number, equal_axes)


def write_shape(message: Message, shape: Sequence[int | str | None]) -> None:
    """Fill a Shape message; a size is a number, the name of a dynamic dimension, or None."""
    message.SetInParent()
    for size in shape:
        row = message.dimensions.add()
        if isinstance(size, str):
            row.name = size
        elif size is not None:
            row.size = int(size)


def read_value(message: Message) -> Value:
    """Return the value of a Value message."""
    shape = read_shape(message.shape) if message.HasField("shape") else None
    return Value(message.name, message.data_type or None, shape, message.itemsize)


def read_shape(message: Message) -> tuple[int | str | None, ...]:
    """Return the shape of a Shape message; see `write_shape`."""
    return tuple(getattr(row, row.WhichOneof("known") or "", None) for row in message.dimensions)


def read_sizes(message: Message) -> tuple[int, ...]:
    """Return the static shape of a Shape message."""
    return tuple(row.size for row in message.dimensions)


def write_array(message: Message, name: str, array: Array, writer: ContainerWriter) -> None:
    """Write an array as a container part, and fill its Contents message.

    Raises CompiledModelError unless it holds numbers.
    """
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        raise CompiledModelError(f"constant {name!r} is not an array of numbers, which compiled models need; remove it")
    message.name, message.data_type = name, array.dtype.name
    message.dimensions.extend(array.shape)
    message.part = writer.add(CONSTANT, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def write_tensor(message: Message, tensor: SeparateTensor, writer: ContainerWriter) -> None:
    """Write an ONNX model's constant as a container part, and fill its Contents message."""
    message.name, message.data_type = tensor.name, tensor.dtype
    message.dimensions.extend(tensor.dimensions)
    message.part = writer.add(CONSTANT, tensor.contents.data)


def read_array(message: Message, container: Container) -> Array:
    """Return the array of a Contents message: a read-only view of the file."""
    element = array_type_of(message.data_type)
    array: Array = np.frombuffer(container.contents(message.part), np.uint8).view(element)
    return array.reshape(tuple(message.dimensions))


def write_metadata(message: Message, metadata: ModelMetadata) -> None:
    """Fill a Metadata message."""
    for name in ("producer_name", "graph_name", "domain", "description", "graph_description", "version"):
        setattr(message, name, getattr(metadata, name))
    message.custom.update(metadata.custom_metadata_map)


def read_metadata(message: Message) -> ModelMetadata:
    """Return the metadata of a Metadata message."""
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
    """Return the options of a map of Option messages."""
    return {name: _option(message) for name, message in messages.items()}


def _option(message: Message) -> OptionValue:
    kind = message.WhichOneof("value") or "string"
    value: OptionValue = tuple(message.strings.values) if kind == "strings" else getattr(message, kind)
    return value


def values_by_name(messages: Iterable[Message]) -> dict[str, Value]:
    """Return values by name from Value messages."""
    return {message.name: read_value(message) for message in messages}


def write_ir(message: Message, model: Model, inputs: Sequence[str], writer: ContainerWriter) -> None:
    """Write a segment in adapter IR to the container, and fill its Segment message.

    The container gets size hints in place of symbolic numbers. The message gets the positions of these numbers in model
    and trace.
    """
    from nnadapter.ir.protobuf.serialization import read_model, to_parts
    from nnadapter.ir.structure import numbers, with_numbers
    from nnadapter.ir.symbolic_numbers import SymbolicNumber, size_hint

    all_numbers = numbers(model)
    sized_model = with_numbers(model, list(map(size_hint, all_numbers))) if model.has_dynamic_shapes else model
    contents, constants = to_parts(sized_model)
    for data in constants.values():
        writer.add(CONSTANT, data)
    if model.has_dynamic_shapes:
        read = read_model(contents, constants.__getitem__, check_contents=False)
        assert numbers(read) == numbers(sized_model), "numbers keep their places"
        places = [place for place, number in enumerate(all_numbers) if isinstance(number, SymbolicNumber)]
        message.places.extend(places)
        message.numbers.extend(all_numbers[place].number for place in places)
    message.form = ModelForm.IR.value
    message.inputs.extend(inputs)
    message.part = writer.add(IR, contents)


def write_onnx(
    message: Message, model: onnx.ModelProto, inputs: Sequence[str], without: Sequence[str], writer: ContainerWriter
) -> None:
    """Write a segment in ONNX, with separate constants, to the container, and fill its Segment message.

    ONNX Runtime must not use the optimizers `without`.
    """
    from nnadapter.onnx.canonical import separated

    contents, constants = separated(model)
    for tensor in constants:
        write_tensor(message.constants.add(), tensor, writer)
    message.form = ModelForm.ONNX.value
    message.inputs.extend(inputs)
    message.part = writer.add(ONNX, contents)
    message.without.extend(without)


class Segments:
    """Reader of the segments of a compiled file."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self._numbers = {part.sha256.hex(): number for number, part in enumerate(container.parts)}

    def model(self, message: Message, trace: SymbolicTrace | None = None) -> Any:
        """Return a segment in the form that a driver compiles; `trace` belongs to its plan."""
        if message.form == ModelForm.ONNX.value:
            contents, constants = self.onnx(message)
            from nnadapter.onnx.canonical import joined

            return joined(contents, [_tensor(name, array) for name, array in constants.items()])
        if message.form == ModelForm.IR.value:
            return self.dynamic_model(message, trace) if message.places else self._ir(message)
        raise self.container.damaged(f"a segment has form {message.form!r}, expected 'ir' or 'onnx'")

    def onnx(self, message: Message) -> tuple[bytes, dict[str, Array]]:
        """Return a segment in ONNX without constants, and constants by name, as views of the file."""
        if message.form != ModelForm.ONNX.value:
            raise self.container.damaged(f"a segment has form {message.form!r}, expected 'onnx'")
        constants = {row.name: read_array(row, self.container) for row in message.constants}
        return bytes(self.container.contents(message.part, ONNX)), constants

    def dynamic_model(self, message: Message, trace: SymbolicTrace | None) -> Model:
        """Return a segment in adapter IR with symbolic sizes; CompiledModelError if they contradict the trace."""
        if trace is None or message.form != ModelForm.IR.value:
            raise self.container.damaged("a segment has dynamic shapes, but its plan is static or its form is not 'ir'")
        from nnadapter.ir.structure import numbers, with_numbers
        from nnadapter.ir.symbolic_numbers import size_hint
        from nnadapter.ir.verification import verify

        model = self._ir(message)
        plain = numbers(model)
        traced = traced_numbers(message, len(plain), trace, self.container)
        if any(plain[place] != size_hint(number) for place, number in traced.items()):
            raise self.container.damaged("sizes in a segment differ from those of its plan")
        dynamic_model = with_numbers(model, [traced.get(place, number) for place, number in enumerate(plain)])
        try:
            verify(dynamic_model)
        except InvalidModelError as error:
            raise self.container.damaged(f"a segment is invalid for its sizes: {error}") from error
        return dynamic_model

    def _ir(self, message: Message) -> Model:
        from nnadapter.ir.protobuf.serialization import read_model

        contents = bytes(self.container.contents(message.part, IR))
        try:
            return read_model(contents, self._constant, check_contents=False)
        except CompiledModelError:
            raise
        except InvalidModelError as error:
            raise self.container.damaged(f"a segment cannot be read: {error}") from error

    def _constant(self, digest: str) -> memoryview:
        if digest not in self._numbers:
            raise self.container.damaged(f"a constant of SHA-256 {digest!r} is missing")
        return self.container.contents(self._numbers[digest])


def _tensor(name: str, array: Array) -> SeparateTensor:
    from nnadapter.onnx.canonical import SeparateTensor

    return SeparateTensor(name, array.dtype.name, array.shape, array.reshape(-1).view(np.uint8))


def loadable_part(message: Message, segments: Segments, session_options: object) -> Loadable:
    """Return a segment for ONNX Runtime.

    Weights are separate unless the caller has session options, which would retain separate weights.
    """
    from nnadapter.drivers.onnxruntime.sessions import Loadable
    from nnadapter.onnx.canonical import joined_bytes

    contents, constants = segments.onnx(message)
    return Loadable(contents, constants) if session_options is None else Loadable(joined_bytes(contents, constants))


def traced_numbers(
    message: Message, count: int, trace: SymbolicTrace, container: Container
) -> dict[int, SymbolicNumber]:
    """Return a message's symbolic numbers, by position among the `count` numbers of a model or array.

    Raises CompiledModelError for positions or numbers that do not exist.
    """
    from nnadapter.ir.symbolic_numbers import SymbolicNumber

    places, numbers = list(message.places), list(message.numbers)
    is_sound = len(places) == len(numbers) == len(set(places))
    if not is_sound or any(place >= count for place in places) or any(number >= trace.count for number in numbers):
        raise container.damaged("symbolic sizes refer to positions or numbers that do not exist")
    return {place: SymbolicNumber(trace, number) for place, number in zip(places, numbers, strict=True)}
