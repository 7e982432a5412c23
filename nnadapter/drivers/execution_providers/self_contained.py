"""Whether a model that a provider compiled holds all that it needs: programs may come from anybody, and name no files.

Most hold nodes with what was compiled inside them and nothing else. That is told by their bytes: there are only fields
that are listed here, written as protobuf itself writes them, so that no reader finds another message in them. Any other
model is parsed, and looked through as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from nnadapter.onnx.wire_format import BYTES, NUMBER, varint

COMPILED = "EPContext"
"""The op of nodes that hold what was compiled, or name its file."""
_HARMLESS: Mapping[str, int | None] = {
    **dict.fromkeys(
        ("ep_cache_context", "ep_sdk_version", "hardware_architecture", "notes", "partition_name", "source")
    ),
    **dict.fromkeys(("main_context", "max_size")),
    "embed_mode": 1,
    "is_multi_soc_ep_context": 0,
}
"""Attributes that they may have, some with one number only: any other one may say where a file lies."""
_DEPENDENCIES = "external_dependencies"
"""The property of a model that lists files."""
_LONGEST = 1 << 31
"""Bytes of a message of protobuf."""

Field = tuple[int, int, int]
"""A tag, and where its value starts and stops."""


class Message(NamedTuple):
    """What may be in a message."""

    inner: Mapping[int, Message | None]
    """Tags, with the messages that are there."""
    check: Callable[[bytes, list[Field]], bool] | None
    """Whether what is there names no file."""


def external_data_text(contents: bytes) -> str:
    """Return what a model keeps in other files, in words; empty where it keeps nothing there.

    Raises:
        Exception: what protobuf raises for what is no model; ValueError for what is something else as well.
    """
    if contents[4:8] == b"ORTM":
        raise ValueError("ONNX Runtime takes it for its own form")
    return "" if is_plain(contents) else _told(contents)


def is_plain(contents: bytes) -> bool:
    """Whether a serialized ModelProto holds nothing but compiled nodes with what was compiled inside them.

    Fields that stand there twice count each time, whichever of them a reader takes.
    """
    try:
        return len(contents) < _LONGEST and _holds(contents, 0, len(contents), MODEL)
    except IndexError:
        return False


def _holds(contents: bytes, start: int, stop: int, message: Message) -> bool:
    fields = list(_written(contents, start, stop))
    if not all(tag in message.inner for tag, _, _ in fields):
        return False
    inner = ((message.inner[tag], begin, end) for tag, begin, end in fields)
    return (message.check is None or message.check(contents, fields)) and all(
        submessage is None or _holds(contents, begin, end, submessage) for submessage, begin, end in inner
    )


def _written(contents: bytes, start: int, stop: int) -> Iterator[Field]:
    at = start
    while at < stop:
        tag, begin = _number(contents, at)
        if tag & 7 not in (BYTES, NUMBER):
            raise IndexError(f"a tag of {tag}")
        number, number_end = _number(contents, begin)
        begin, end = (number_end, number_end + number) if tag & 7 == BYTES else (begin, number_end)
        if end > stop:
            raise IndexError("a field ends behind its message")
        yield tag, begin, end
        at = end


def _number(contents: bytes, at: int) -> tuple[int, int]:
    """A number that is not negative and in its shortest form, and where it ends."""
    number, end = varint(contents, at)
    if number >> 63 or (end - at > 1 and not contents[end - 1]):
        raise IndexError(f"a number of {end - at} bytes")
    return number, end


def _texts(contents: bytes, fields: list[Field], number: int) -> list[bytes]:
    return [contents[start:stop] for tag, start, stop in fields if tag == number << 3 | BYTES]


def _is_compiled(contents: bytes, fields: list[Field]) -> bool:
    return _texts(contents, fields, 4) == [COMPILED.encode()]


def _is_harmless(contents: bytes, fields: list[Field]) -> bool:
    names = [name.decode(errors="replace") for name in _texts(contents, fields, 1)]
    if len(names) != 1 or names[0] not in _HARMLESS:
        return False
    numbers = [varint(contents, start)[0] for tag, start, _ in fields if tag == 3 << 3 | NUMBER]
    return _HARMLESS[names[0]] is None or numbers == [_HARMLESS[names[0]]]


def _lists_no_files(contents: bytes, fields: list[Field]) -> bool:
    return _DEPENDENCIES.encode() not in _texts(contents, fields, 1) or not any(_texts(contents, fields, 2))


def _message(
    numbers: Iterable[int],
    texts: Iterable[int],
    messages: Mapping[int, Message] | None = None,
    check: Callable[[bytes, list[Field]], bool] | None = None,
) -> Message:
    leaves = (*(number << 3 | NUMBER for number in numbers), *(number << 3 | BYTES for number in texts))
    inner = {number << 3 | BYTES: message for number, message in (messages or {}).items()}
    return Message({**dict.fromkeys(leaves), **inner}, check)


_PROPERTY = _message((), (1, 2), check=_lists_no_files)
_OPERATOR_SET = _message((2,), (1,))
_SHAPE = _message((), (), {1: _message((1,), (2, 3))})
_TYPE = _message((), (6,), {1: _message((1,), (), {2: _SHAPE})})
_VALUE = _message((), (1, 3), {2: _TYPE, 4: _PROPERTY})
_ATTRIBUTE = _message((3, 20), (1, 4, 13), check=_is_harmless)
_NODE = _message((), (1, 2, 3, 4, 6, 7, 8), {5: _ATTRIBUTE, 9: _PROPERTY}, check=_is_compiled)
_GRAPH = _message((), (2, 10), {1: _NODE, 11: _VALUE, 12: _VALUE, 13: _VALUE, 16: _PROPERTY})
MODEL = _message((1, 5), (2, 3, 4, 6), {7: _GRAPH, 8: _OPERATOR_SET, 14: _PROPERTY})
"""A ModelProto, without all that may hold a tensor, an inner graph or a function."""


def _told(contents: bytes) -> str:
    import onnx  # most programs that are loaded need none of it

    for message in _messages(onnx.load_from_string(contents)):
        if isinstance(message, onnx.TensorProto):
            if message.data_location != onnx.TensorProto.DEFAULT or message.external_data:
                return "weights"
        elif isinstance(message, onnx.NodeProto):
            if message.op_type == COMPILED and not all(map(_is_known, message.attribute)):
                return "what was compiled"
        elif isinstance(message, onnx.StringStringEntryProto) and message.key == _DEPENDENCIES and message.value:
            return "what it needs"
    return ""


def _is_known(attribute: Any) -> bool:
    return attribute.name in _HARMLESS and _HARMLESS[attribute.name] in (None, attribute.i)


def _messages(message: Any) -> Iterator[Any]:
    """A message, and all that it holds at any depth."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for submessage in (value,) if hasattr(value, "ListFields") else value:
                yield from _messages(submessage)
