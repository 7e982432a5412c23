"""A model as bytes, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from io import BytesIO

from nnadapter.errors import InvalidModelError, ModelFileError
from nnadapter.ir.model import Model, Operation
from nnadapter.ir.operand import Operand
from nnadapter.ir.operations import schema_of
from nnadapter.ir.protobuf.messages import ADVICE, Message, new, parse, refuse_unknown
from nnadapter.ir.protobuf.operands import read_operand, write_operand
from nnadapter.ir.protobuf.weights import Block, Contents, Weights, references_in, weights_of
from nnadapter.ir.schema import AttributeValue
from nnadapter.ir.verifying import check_attributes, verify

FORMAT = "nnadapter model"
"""What every file says that it is."""
VERSION = 1
"""The format's version, which files carry; newer ones are refused."""
BEGINNING = b"\x0a\x0f" + FORMAT.encode()
"""The first bytes of every file: field 1 of `File`."""


def to_bytes(model: Model, file: str = "weights") -> tuple[bytes, bytes]:
    """Return a model as bytes, and the bytes of its data file, to which it refers as `file`.

    The same model gives the same bytes. `Model.varying`, a hint to compilers, is left out.

    Raises:
        InvalidModelError: the model contradicts itself, is none, or holds a number that the format has no room for.
    """
    weights = weights_of_checked(model)
    written = BytesIO()
    weights.write(written)
    return message_of(model, weights, lambda block: (file, block.offset)), written.getvalue()


def from_bytes(contents: bytes, files: Mapping[str, bytes], *, check_contents: bool = True) -> Model:
    """Return the model that `to_bytes` wrote.

    Args:
        contents: the model.
        files: data files by name, which the model's constants look into: not to be changed as long as it lives.
        check_contents: compare the digests of constants, which reads every byte of them.

    Raises:
        ModelFileError: a data file is missing or is not what it was.
        InvalidModelError: the bytes are no model, are damaged, or of a newer version; or the model contradicts itself.
    """
    if not isinstance(files, Mapping):
        raise InvalidModelError(f"data files are {type(files).__name__}, expected bytes by name: {{'weights': data}}")

    def named(name: str) -> memoryview:
        if name not in files:
            raise ModelFileError(
                f"the model's data file {name!r} is not among those given, {sorted(map(str, files))}; pass it"
            )
        try:
            return memoryview(files[name]).toreadonly()
        except TypeError:
            raise InvalidModelError(f"data file {name!r} is {type(files[name]).__name__}, expected bytes") from None

    return read_model(contents, named, check_contents=check_contents)


def weights_of_checked(model: Model) -> Weights:
    """Return the contents of the constants of a model that is sound; raises InvalidModelError for others."""
    if not isinstance(model, Model):
        raise InvalidModelError(f"what is written is what ModelBuilder.finish gave, got {type(model).__name__}")
    verify(model)
    return weights_of(model)


def to_parts(model: Model) -> tuple[bytes, dict[str, memoryview]]:
    """Return a model as bytes, and the contents of its constants, each once, by their SHA-256 in hexadecimal digits.

    The model refers to each as to a data file of that name.

    Raises:
        InvalidModelError: as `to_bytes`.
    """
    weights = weights_of_checked(model)
    message = message_of(model, weights, lambda block: (block.digest.hex(), 0))
    return message, {block.digest.hex(): block.data.data for block in weights.blocks}


def message_of(model: Model, weights: Weights, place: Callable[[Block], tuple[str, int]]) -> bytes:
    """Return a model as the bytes of a `File` message.

    Args:
        model: a sound one.
        weights: the contents of its constants.
        place: in which data file a block lies, and from which byte on.

    Raises:
        InvalidModelError: it holds a number or a text that the format has no room for.
    """
    file_message, message = new("File"), new("Model")
    try:
        _write_model(message, model, weights, place)
    except (TypeError, ValueError) as error:
        raise InvalidModelError(f"the model cannot be written: {error}; a number or a text does not fit") from error
    file_message.format, file_message.version = FORMAT, VERSION
    file_message.model = message.SerializeToString(deterministic=True)
    file_message.sha256 = sha256(file_message.model).digest()
    written: bytes = file_message.SerializeToString(deterministic=True)
    return written


def _write_model(message: Message, model: Model, weights: Weights, place: Callable[[Block], tuple[str, int]]) -> None:
    for index, operand in enumerate(model.operands):
        row = message.operands.add()
        write_operand(row, operand)
        block = weights.by_operand.get(index)
        if block is not None:
            row.contents.file, row.contents.offset = place(block)
            row.contents.length, row.contents.sha256 = block.data.nbytes, block.digest
    for operation in model.operations:
        _write_operation(message.operations.add(), operation)
    message.inputs.extend(model.inputs)
    message.outputs.extend(model.outputs)


def _write_operation(message: Message, operation: Operation) -> None:
    message.type = operation.type
    message.inputs.extend(operation.inputs)
    message.outputs.extend(operation.outputs)
    message.origins.extend(operation.origins)
    for attribute in schema_of(operation.type).attributes:
        row = message.attributes.add()
        row.name = attribute.name
        value = operation.attributes[attribute.name]
        if isinstance(value, tuple):  # fields are called as kinds are
            inner = getattr(row, attribute.kind.value)
            inner.SetInParent()
            inner.values.extend(value)
        else:
            setattr(row, attribute.kind.value, value)


def read_model(contents: bytes, files: Callable[[str], memoryview], *, check_contents: bool) -> Model:
    """See `from_bytes`; `files` gives a data file by its name."""
    message = _opened(contents)
    constants = Contents(files, check=check_contents)
    constants.add(references_in(message.operands))
    try:
        model = Model(
            tuple(_read_operand(row, constants) for row in message.operands),
            tuple(_read_operation(row) for row in message.operations),
            tuple(message.inputs),
            tuple(message.outputs),
        )
        verify(model)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # a shape rule met numbers beyond all sense
        raise InvalidModelError(f"the model contradicts itself: {type(error).__name__}: {error}; {ADVICE}") from error
    return model


def _opened(contents: bytes) -> Message:
    """The `Model` message in a `File`, everything about it checked that does not depend on models."""
    if not isinstance(contents, (bytes, bytearray)):
        raise InvalidModelError(f"a model is bytes, got {type(contents).__name__}; pass what `to_bytes` gave first")
    if not contents.startswith(BEGINNING):
        raise InvalidModelError(f"{contents[:17]!r}… is the beginning of no nnadapter model; write one with `save`")
    file_message = parse("File", contents)
    if not 1 <= file_message.version <= VERSION:
        raise InvalidModelError(
            f"the model has format version {file_message.version}, and this nnadapter knows 1 to {VERSION}; "
            "update nnadapter"
        )
    refuse_unknown(file_message)
    if file_message.ByteSize() != len(contents):  # protobuf takes the last of fields that stand there twice
        raise InvalidModelError(
            f"the model has {len(contents)} bytes, expected {file_message.ByteSize()}, no field twice; {ADVICE}"
        )
    if sha256(file_message.model).digest() != file_message.sha256:
        raise InvalidModelError(f"the model is not what it was: its digest is another; {ADVICE}")
    message = parse("Model", file_message.model)
    refuse_unknown(message)
    return message


def _read_operand(message: Message, contents: Contents) -> Operand:
    operand = read_operand(message)
    if not message.HasField("contents"):
        return operand
    return Operand(operand.name, operand.type, operand.lifetime, contents.array(message.contents, operand))


def _read_operation(message: Message) -> Operation:
    attributes = {row.name: _value(row) for row in message.attributes}
    if len(attributes) != len(message.attributes):
        raise InvalidModelError(f"{message.type}: an attribute stands there twice, expected each once; {ADVICE}")
    complete = check_attributes(schema_of(message.type), attributes)
    return Operation(message.type, tuple(message.inputs), tuple(message.outputs), complete, tuple(message.origins))


def _value(message: Message) -> AttributeValue:
    kind = message.WhichOneof("value")
    if kind is None:
        raise InvalidModelError(f"attribute {message.name!r} has no value, expected one; {ADVICE}")
    value: AttributeValue = getattr(message, kind)
    return tuple(value.values) if kind in ("ints", "floats") else value  # type: ignore[union-attr]
