"""Messages between two processes: a length as little-endian uint64, and that many bytes of pickled values.

Models arrive as they left: constants are read-only again, and what a model has worked out about itself stays behind.
Both ends are our own processes; nothing else is ever unpickled.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import IO, Any

import numpy as np

from nnadapter.ir.model import Model
from nnadapter.ir.operand import Operand

_LENGTH = struct.Struct("<Q")


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:  # the module's own name for the hook
        """See `pickle.Pickler.reducer_override`."""
        if type(value) is MappingProxyType:
            return MappingProxyType, (dict(value),)
        if type(value) is Model:
            return Model, (value.operands, value.operations, value.inputs, value.outputs, value.varying)
        if type(value) is Operand:
            return _operand, (value.name, value.type, value.lifetime, value.value)
        return NotImplemented


def send(pipe: IO[bytes], message: object) -> None:
    """Write one message.

    Raises:
        OSError: nobody reads any more.
        Exception: the message holds something that cannot be pickled; nothing is written.
    """
    contents = io.BytesIO()
    _Pickler(contents, protocol=5).dump(message)
    pipe.write(_LENGTH.pack(contents.getbuffer().nbytes))
    pipe.write(contents.getbuffer())
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Read one message.

    Raises:
        EOFError: the other side is gone.
    """
    (length,) = _LENGTH.unpack(_read(pipe, _LENGTH.size))
    return pickle.loads(_read(pipe, length))


def _read(pipe: IO[bytes], count: int) -> bytes:
    contents = pipe.read(count)
    if len(contents) < count:
        raise EOFError("the pipe ended")
    return contents


def _operand(name: str, type_: Any, lifetime: Any, value: Any) -> Operand:
    if isinstance(value, np.ndarray):
        value.setflags(write=False)
    return Operand(name, type_, lifetime, value)


Message = tuple[str, Mapping[str, Any]]
"""A request: what is to be done, and with what."""
