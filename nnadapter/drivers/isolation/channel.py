"""One way between two processes: messages in both directions, one at a time, with descriptors beside them.

A message is its length as little-endian uint64, and that many bytes.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Sequence

_LENGTH = struct.Struct("<Q")
_PIECE = 1 << 16
_SOON_S = 1.5e-4
"""To be woken takes a third of it."""
_PATIENT = 4
"""So many messages are slept for after one that did not come soon: others need the processor."""
MOST_DESCRIPTORS = 16
"""Beside one message."""


class End(socket.socket):
    """One of a pair. It is closed with the last who holds it: an interrupt may have come before anybody else could."""

    def __del__(self) -> None:
        """Close it."""
        self.close()


def ends() -> tuple[End, End]:
    """Return both of a pair."""
    local_end, other = socket.socketpair()
    return End(fileno=local_end.detach()), End(fileno=other.detach())


class Channel:
    """One end. Whoever uses it does so alone."""

    def __init__(self, end: End) -> None:
        self._socket = end
        self._to_sleep_for = 0

    def send(self, contents: bytes, descriptors: Sequence[int] = (), end: float | None = None) -> None:
        """Send a message.

        Args:
            contents: of the message.
            descriptors: that the other side gets copies of.
            end: by when it has to be gone, by `time.monotonic`.

        Raises:
            TimeoutError: the other side takes nothing.
            OSError: it is gone.
        """
        self._socket.settimeout(_left(end))
        message = _LENGTH.pack(len(contents)) + contents
        if not descriptors:
            self._socket.sendall(message)
            return
        sent = socket.send_fds(self._socket, [message[:_PIECE]], list(descriptors))
        self._socket.sendall(memoryview(message)[sent:])

    def receive(self, end: float | None = None, *, is_alone: bool = False) -> bytes:
        """Wait for a message.

        Args:
            end: by when, by `time.monotonic`.
            is_alone: nobody else waits for the other side, so that to stay awake for what may come soon is worth it.

        Raises:
            TimeoutError: none came in time; what has come of it is lost.
            EOFError: the other side is gone.
        """
        first = self._soon() if is_alone else None
        if first is None:
            self._socket.settimeout(_left(end))
            first = self._socket.recv(_PIECE)
        return self._whole(first, end)

    def is_readable(self, seconds: float) -> bool:
        """Wait so long for something to come, or for the other side to go."""
        self._socket.settimeout(max(seconds, 0.0))
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return False
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def receive_with_descriptors(self) -> tuple[bytes, list[int]]:
        """As `receive`, with what came beside the message."""
        self._socket.settimeout(None)
        first, descriptors, _, _ = socket.recv_fds(self._socket, _PIECE, MOST_DESCRIPTORS)
        return self._whole(first, None), descriptors

    def close(self) -> None:
        """Close this end; who waits at the other one learns of it, if no process that was forked has it, too."""
        self._socket.close()

    def _soon(self) -> bytes | None:
        """What comes within moments, without going to sleep; None where nothing does, or did lately."""
        if self._to_sleep_for:
            self._to_sleep_for -= 1
            return None
        self._socket.settimeout(0.0)
        until = time.perf_counter() + _SOON_S
        while time.perf_counter() < until:
            with contextlib.suppress(BlockingIOError):
                return self._socket.recv(_PIECE)
        self._to_sleep_for = _PATIENT
        return None

    def _whole(self, first: bytes, end: float | None) -> bytes:
        if len(first) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(first)
            if len(first) == _LENGTH.size + length:  # nearly always
                return first[_LENGTH.size :]
        pieces = bytearray(first)
        total_length: int | None = None
        while total_length is None or len(pieces) < total_length:
            if total_length is None and len(pieces) >= _LENGTH.size:
                total_length = _LENGTH.size + _LENGTH.unpack_from(pieces)[0]
                continue
            self._socket.settimeout(_left(end))
            piece = self._socket.recv(min(_PIECE if total_length is None else total_length - len(pieces), 1 << 20))
            if not piece:
                raise EOFError("the other side is gone")
            pieces += piece
        return bytes(memoryview(pieces)[_LENGTH.size : total_length])


def pair() -> tuple[Channel, End]:
    """Return one end, and the other one, whose descriptor is to be given away."""
    local_end, other = ends()
    return Channel(local_end), other


def from_descriptor(descriptor: int) -> Channel:
    """Return the end that a descriptor stands for, which it takes."""
    return Channel(End(fileno=descriptor))


def can_share() -> bool:
    """Whether descriptors can be passed here."""
    return hasattr(socket, "send_fds") and hasattr(socket, "AF_UNIX")


def _left(end: float | None) -> float | None:
    return None if end is None else max(end - time.monotonic(), 1e-6)
