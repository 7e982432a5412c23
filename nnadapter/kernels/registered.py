"""The kernels that people registered, by themselves: most processes have none, and need nothing else of this room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnadapter.process.forking import new_lock

if TYPE_CHECKING:
    from nnadapter.drivers.kernel import Kernel

_lock = new_lock()
_registered: list[Kernel] = []


def add_kernel(kernel: Kernel) -> None:
    """Remember a kernel."""
    with _lock:
        _registered.append(kernel)


def remove_kernel(kernel: Kernel) -> None:
    """Forget a kernel; one that is not there is passed over."""
    with _lock:
        _registered[:] = [registered_kernel for registered_kernel in _registered if registered_kernel is not kernel]


def registered_kernels() -> tuple[Kernel, ...]:
    """Every kernel that was registered by a person, in that order."""
    with _lock:
        return tuple(_registered)
