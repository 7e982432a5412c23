"""A driver's functions, and the one border where what they answer becomes an error of nnadapter's tree."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from typing import Any

from nnadapter.drivers.native.codes import Status
from nnadapter.drivers.native.structures import StructPool, read_text
from nnadapter.errors import (
    CancelledError,
    DeviceLostError,
    DeviceUnavailableError,
    DriverError,
    IncompatibleProgramError,
    NNAdapterError,
    OutOfMemoryError,
    TransientError,
)

MESSAGE_BYTES = 1024
"""Size of the buffer that a driver's message is written to."""
_TELLING: Mapping[Status, type[NNAdapterError]] = {
    Status.OUT_OF_MEMORY: OutOfMemoryError,
    Status.DEVICE_UNAVAILABLE: DeviceUnavailableError,
    Status.DEVICE_LOST: DeviceLostError,
    Status.INCOMPATIBLE_PROGRAM: IncompatibleProgramError,
    Status.CANCELLED: CancelledError,
    Status.TRANSIENT: TransientError,
}
"""Codes that mean the same error whichever function gives them."""


class _ErrorBuffer(threading.local):
    """Where a call of this thread finds its NNAdapterError. A callback may call in turn: who fails last is heard."""

    def __init__(self) -> None:
        self.message = ctypes.create_string_buffer(MESSAGE_BYTES)
        error = {"message": ctypes.addressof(self.message), "capacity": MESSAGE_BYTES}
        self._error = StructPool("Error", [error])
        (self._address,) = self._error.addresses

    def cleared(self) -> int:
        """The address, and nothing is left there of what a driver wrote."""
        self.message[0] = b"\0"
        self._error.clear()
        return self._address


_ROOM = _ErrorBuffer()
_OK = int(Status.OK)


class Functions:
    """The functions of one driver by name; optional ones that it does not have are not in it."""

    def __init__(self, driver: str, functions: Mapping[str, Any], vendor: str = "", version: str = "") -> None:
        self.driver = driver
        """The name of the driver, for messages."""
        self.vendor = vendor
        """Whose driver it is; empty if it does not say."""
        self.version = version
        """The driver's own version, as text; empty if it does not say."""
        self._functions = dict(functions)

    def __contains__(self, name: str) -> bool:
        """Whether the driver has the function."""
        return name in self._functions

    def plain(self, name: str, *arguments: Any) -> Any:
        """Call a function that cannot fail, and return what it gives."""
        return self._functions[name](*arguments)

    def call(
        self,
        name: str,
        *arguments: Any,
        failure: type[NNAdapterError] = DriverError,
        misuse: type[NNAdapterError] = DriverError,
    ) -> None:
        """Call a function that gives a status; its last argument, the error's buffer, is added.

        Args:
            name: which one.
            arguments: what it takes.
            failure: raised for FAILED and DEADLINE_EXCEEDED.
            misuse: raised for INVALID_ARGUMENT.

        Raises:
            NNAdapterError: the class that the status stands for, with the driver's message.
        """
        status = self._functions[name](*arguments, _ROOM.cleared())
        if status != _OK:
            raise self._error(name, status, failure, misuse)

    def made(self, name: str, *arguments: Any, **errors: Any) -> int:
        """Call a function whose last output is a new handle, and return that; see `call`.

        Raises:
            DriverError: it gave OK, and no handle.
        """
        handle = self.made_or_none(name, *arguments, **errors)
        if handle is None:
            raise DriverError(f"{self.driver}: {name} gave OK and a null handle; report it to the vendor")
        return handle

    def made_or_none(
        self,
        name: str,
        *arguments: Any,
        failure: type[NNAdapterError] = DriverError,
        misuse: type[NNAdapterError] = DriverError,
    ) -> int | None:
        """As `made`, for a function that may give OK and no handle: then None."""
        handle = ctypes.c_void_p()
        status = self._functions[name](*arguments, ctypes.addressof(handle), _ROOM.cleared())
        if status != _OK:
            raise self._error(name, status, failure, misuse)
        return handle.value

    def _error(
        self, name: str, status: Any, failure: type[NNAdapterError], misuse: type[NNAdapterError]
    ) -> NNAdapterError:
        """What a status stands for that this thread was given just now, see `call`."""
        kinds = {**_TELLING, Status.INVALID_ARGUMENT: misuse}
        return kinds.get(status, failure)(self._sentence(name, status, read_text(_ROOM.message.value)))

    def _sentence(self, name: str, status: int, message: str) -> str:
        status_text = (
            Status(status).name if status in Status._value2member_map_ else f"status {status}, which is none of ours"
        )
        sentence = " ".join(message.split())
        return (
            f"{self.driver}: {sentence}"
            if sentence
            else f"{self.driver}: {name} gave {status_text} and no message; ask its vendor"
        )
