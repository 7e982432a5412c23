"""The devices of this machine, and the process's default one."""

from __future__ import annotations

from nnadapter.drivers.capability import DeviceInfo
from nnadapter.drivers.registry import devices as _registered
from nnadapter.drivers.registry import open_device
from nnadapter.options import default_devices, set_default_devices


def devices() -> tuple[DeviceInfo, ...]:
    """Every device of every driver, available or not, each with its reason."""
    return _registered()


def set_device(name: str) -> None:
    """Make `name` the device of sessions that name none.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: it does not exist or cannot be used.
    """
    open_device(name)
    set_default_devices([name])


def get_device() -> str:
    """The first device of sessions that name none."""
    return default_devices()[0]
