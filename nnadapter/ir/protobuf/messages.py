"""The messages of nnadapter/ir/model.proto as Python classes, and reading them without mercy.

The classes are made from a descriptor and not by protoc's own module, which runs with few versions of protobuf.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from nnadapter.errors import InvalidModelError
from nnadapter.ir.protobuf.descriptor import DESCRIPTOR
from nnadapter.process.cache import remembered

Message = Any
"""A message; its fields are those of the .proto."""

ADVICE = "it is damaged, or from elsewhere; write it again"
"""What to do about a file that is not what it should be."""


def new(name: str) -> Message:
    """Return an empty message of the kind `name`."""
    return _class(name)()


def parse(name: str, contents: bytes | memoryview) -> Message:
    """Return `contents` as a message of the kind `name`, fields that it does not have included.

    Raises:
        InvalidModelError: they are no such message.
    """
    message = new(name)
    try:
        message.ParseFromString(bytes(contents))
    except DecodeError as error:
        raise InvalidModelError(f"{len(contents)} bytes are no message {name}: {error}; {ADVICE}") from error
    return message


def refuse_unknown(message: Message) -> None:
    """Raise InvalidModelError if a message, or one inside it, holds fields that its descriptor does not have."""
    size = message.ByteSize()
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    if known.ByteSize() != size:
        where = next(_unknown(message), "a field")
        raise InvalidModelError(f"the model holds {where}, which this format version does not have; {ADVICE}")


@remembered(256)
def _class(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(DESCRIPTOR)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"nnadapter.ir.{name}"))


def _unknown(message: Message) -> Iterator[str]:
    """Unknown fields, in words."""
    for field in UnknownFieldSet(message):
        yield f"field {field.field_number} in a message {message.DESCRIPTOR.name}"
    for field, value in message.ListFields():
        if field.message_type is not None:
            inner = [value] if hasattr(value, "DESCRIPTOR") else value
            for each in inner:
                yield from _unknown(each)
