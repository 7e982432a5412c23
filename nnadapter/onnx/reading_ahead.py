"""The contents of many initializers, read by several threads.

Most of what it takes to read weights is memory that the system hands out and copies into, which threads do at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from threading import Thread

from onnx import TensorProto

from nnadapter.errors import ModelFileError
from nnadapter.ir.operand import Array
from nnadapter.onnx.references import array_of, bytes_of, is_held, is_read

_LEAST_BYTES = 1 << 24
"""Fewer are read before threads have started."""
_MOST_THREADS = 4


class ReadingAhead:
    """Reads those tensors that are read from the model's own file, where these are many bytes, from now on.

    As long as somebody holds the arrays, `array_of` gives the same ones. What cannot be read is left to that.
    """

    def __init__(self, tensors: Iterable[TensorProto]) -> None:
        pending_tensors = [tensor for tensor in tensors if is_read(tensor) and not is_held(tensor)]
        if sum(map(bytes_of, pending_tensors)) < _LEAST_BYTES:
            pending_tensors = []
        self._left = pending_tensors
        self._arrays: list[Array] = []
        self._helpers = [
            Thread(target=_read_pending, args=(pending_tensors, self._arrays), daemon=True)
            for _ in range(min(os.cpu_count() or 1, _MOST_THREADS, len(pending_tensors)) - 1)
        ]
        pending_tensors.reverse()  # they are taken from its end
        try:
            for helper in self._helpers:
                helper.start()
        except BaseException:
            self.stop()
            raise

    def finish(self) -> list[Array]:
        """Return the arrays, when all are read."""
        try:
            _read_pending(self._left, self._arrays)
        finally:
            self.stop()
        for thread in self._helpers:
            thread.join()
        return self._arrays

    def stop(self) -> None:
        """Have no more read: who helps ends behind the tensor that it reads."""
        self._left.clear()


def read_ahead(tensors: Iterable[TensorProto]) -> list[Array]:
    """Return the contents of those tensors that are read from the model's own file, as `ReadingAhead` reads them."""
    return ReadingAhead(tensors).finish()


def _read_pending(pending_tensors: list[TensorProto], arrays: list[Array]) -> None:
    """Read one after the other until none is left; several threads share the list."""
    while pending_tensors:
        try:
            arrays.append(array_of(pending_tensors.pop()))
        except IndexError:  # another thread took the last one
            return
        except MemoryError:
            pending_tensors.clear()
        except (ModelFileError, TypeError, ValueError, KeyError):
            continue
