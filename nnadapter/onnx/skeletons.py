"""A serialized model without the contents of its large initializers, which stay in its file and are referred to.

The file is walked through field by field; what is passed over is not read. The fields of a message may be written in
any order, so nothing is moved: pieces are left out, others put in, and the lengths of the messages around are written
anew. Whatever is unusual (contents that are no bytes, are there twice, or do not fit their type) stays as it is.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError

from nnadapter.onnx.references import REFERRED_BYTES, fits, refer, stamp_of
from nnadapter.onnx.wire_format import GRAPH, INITIALIZER, RAW_DATA, Contents, fields, rewritten


def skeleton_of(file: BinaryIO, path: Path) -> bytes | None:
    """Return the serialized model in a file, its large initializers referring to it; None where there is none of them.

    Args:
        file: open, at its start.
        path: of the file, absolute.
    """
    status = os.fstat(file.fileno())
    if status.st_size < REFERRED_BYTES:
        return None
    try:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
            return _Writer(contents, path, stamp_of(status)).model()
    except (OSError, ValueError, IndexError, DecodeError):
        return None  # no file that can be mapped, or no model: whoever parses it says what is wrong


@dataclass(slots=True)
class _Writer:
    """Writes messages anew."""

    contents: Contents
    path: Path
    stamp: str

    def model(self) -> bytes | None:
        return rewritten(self.contents, 0, len(self.contents), GRAPH, self._graph)

    def _graph(self, start: int, end: int) -> bytes | None:
        return rewritten(self.contents, start, end, INITIALIZER, self._initializer)

    def _initializer(self, start: int, end: int) -> bytes | None:
        if end - start < REFERRED_BYTES:
            return None
        raw_fields = [
            (at, begin, stop) for tag, at, begin, stop in fields(self.contents, start, end) if tag == RAW_DATA
        ]
        if len(raw_fields) != 1 or raw_fields[0][2] > end:
            return None
        at, begin, stop = raw_fields[0]
        tensor = onnx.TensorProto.FromString(self.contents[start:at] + self.contents[stop:end])
        is_plain = tensor.data_location == onnx.TensorProto.DEFAULT and not tensor.HasField("segment")
        if not is_plain or not fits(tensor, stop - begin):
            return None
        refer(tensor, self.path, self.stamp, begin, stop - begin, is_own=True)
        written: bytes = tensor.SerializeToString()
        return written
