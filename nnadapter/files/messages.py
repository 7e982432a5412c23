"""Strict protobuf messages.

Message classes are created from a descriptor, because code from protoc works only with few versions of protobuf.
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


class Messages(NamedTuple):
    """Parser and serializer of the messages of one .proto."""

    descriptor: bytes
    package: str
    error: type[NNAdapterError]
    """Error class for malformed bytes."""
    what: str
    """Name of the contents in error messages."""
    advice: str
    largest: int
    """Maximum bytes of a message, since parsing a malicious one takes a hundred times its size."""

    def new(self, name: str) -> Message:
        return _class(self.descriptor, f"{self.package}.{name}")()

    def parse(self, name: str, contents: bytes | memoryview) -> Message:
        """Parse a message of type `name`; unknown fields are allowed. Raises `error`."""
        self._refuse_large(name, len(contents))
        message = self.new(name)
        try:
            message.ParseFromString(bytes(contents))
        except DecodeError as error:
            text = f"{len(contents)} bytes are not a valid message {name}: {error}; {self.advice}"
            raise self.error(text) from error
        return message

    def bytes_of(self, message: Message) -> bytes:
        """Serialize deterministically. Raises `error` if too large."""
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
        """Parse like `parse`, but also raise `error` for unknown and duplicate fields."""
        message = self.parse(name, contents)
        self.refuse_unknown(message)
        if message.ByteSize() != len(contents):  # protobuf keeps the last of duplicate fields
            raise self.error(
                f"the message {name} has {len(contents)} bytes, but {message.ByteSize()} without duplicate "
                f"fields; {self.advice}"
            )
        return message

    def refuse_unknown(self, message: Message) -> None:
        """Raise `error` for unknown fields, at any depth."""
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
    for field in UnknownFieldSet(message):
        yield f"field {field.field_number} in a message {message.DESCRIPTOR.name}"
    for field, value in message.ListFields():
        if field.message_type is not None:
            inner = [value] if hasattr(value, "DESCRIPTOR") else value
            for submessage in inner:
                yield from _unknown(submessage)
