"""Messages of a .proto of ours as Python classes, and reading them without mercy.

The classes are made from a descriptor and not by protoc's own module, which runs with few versions of protobuf.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from nnadapter.errors import NNAdapterError

Message = Any
"""A message; its fields are those of the .proto."""


class Messages(NamedTuple):
    """The messages of one .proto."""

    descriptor: bytes
    """A serialized google.protobuf.FileDescriptorProto."""
    package: str
    error: type[NNAdapterError]
    """What is raised for bytes that are no such message."""
    what: str
    """What the messages are of, in words."""
    advice: str
    """What to do about one that is not what it should be."""
    largest: int
    """Bytes of the largest message that is written and read: one made to harm takes a hundred times as many."""

    def new(self, name: str) -> Message:
        """Return an empty message of the kind `name`."""
        return _class(self.descriptor, f"{self.package}.{name}")()

    def parse(self, name: str, contents: bytes | memoryview) -> Message:
        """Return `contents` as a message of the kind `name`, fields that it does not have included.

        Raises:
            NNAdapterError: of the kind `error`: they are no such message, or a larger one than any that is written.
        """
        self._refuse_large(name, len(contents))
        message = self.new(name)
        try:
            message.ParseFromString(bytes(contents))
        except DecodeError as error:
            text = f"{len(contents)} bytes are no message {name}: {error}; {self.advice}"
            raise self.error(text) from error
        return message

    def bytes_of(self, message: Message) -> bytes:
        """Return a message as bytes, the same ones for the same message.

        Raises:
            NNAdapterError: of the kind `error`: it is larger than any that is read.
        """
        contents: bytes = message.SerializeToString(deterministic=True)
        self._refuse_large(message.DESCRIPTOR.name, len(contents))
        return contents

    def _refuse_large(self, name: str, length: int) -> None:
        if length > self.largest:
            raise self.error(
                f"a message {name} of the {self.what} has {length} bytes, expected at most {self.largest}; "
                f"{self.advice}, with fewer shapes or in parts"
            )

    def parse_whole(self, name: str, contents: bytes | memoryview) -> Message:
        """As `parse`, of bytes that hold every field once, and none that is not known."""
        message = self.parse(name, contents)
        self.refuse_unknown(message)
        if message.ByteSize() != len(contents):  # protobuf takes the last of fields that stand there twice
            raise self.error(
                f"the message {name} has {len(contents)} bytes, expected {message.ByteSize()}, no field twice; "
                f"{self.advice}"
            )
        return message

    def refuse_unknown(self, message: Message) -> None:
        """Raise an error of the kind `error` if a message, or one inside it, holds fields that are not known."""
        size = message.ByteSize()
        stripped_copy = type(message)()
        stripped_copy.CopyFrom(message)
        stripped_copy.DiscardUnknownFields()
        if stripped_copy.ByteSize() != size:
            where = next(_unknown(message), "a field")
            raise self.error(f"the {self.what} holds {where}, which this format version does not have; {self.advice}")


@lru_cache(256)
def _class(descriptor: bytes, name: str) -> Any:
    return message_factory.GetMessageClass(_pool(descriptor).FindMessageTypeByName(name))


@lru_cache(16)
def _pool(descriptor: bytes) -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(descriptor)
    return pool


def _unknown(message: Message) -> Iterator[str]:
    """Unknown fields, in words."""
    for field in UnknownFieldSet(message):
        yield f"field {field.field_number} in a message {message.DESCRIPTOR.name}"
    for field, value in message.ListFields():
        if field.message_type is not None:
            inner = [value] if hasattr(value, "DESCRIPTOR") else value
            for submessage in inner:
                yield from _unknown(submessage)
