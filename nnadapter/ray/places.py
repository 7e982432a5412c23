"""Devices as Ray's resources: what a machine has, and what an actor needs of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nnadapter.drivers.registry import device_info, devices
from nnadapter.drivers.selection import HOSTS
from nnadapter.errors import DeviceNotFoundError, DeviceUnavailableError

PREFIX = "nnadapter:"
"""What names of such resources begin with; then the device, as in `nnadapter:openvino:NPU`."""


def resources() -> dict[str, float]:
    """Return the devices of this machine that accelerate, as resources for `ray start --resources` and `ray.init`.

    Each is there once; how much of it an actor takes is `device_share` of `map_batches`.
    """
    return {f"{PREFIX}{device.name}": 1.0 for device in devices() if device.available and device.name not in HOSTS}


def needed(names: Iterable[str], share: float) -> dict[str, float]:
    """The resources that a session on these devices needs."""
    return {f"{PREFIX}{name}": share for name in names if name not in HOSTS}


def missing_devices(names: Iterable[str]) -> dict[str, str]:
    """Those of these devices that this machine lacks, with the reason of each."""
    return {name: reason for name in names if (reason := _why_missing(name))}


def _why_missing(name: str) -> str:
    try:
        info = device_info(name)
    except DeviceNotFoundError as error:
        return str(error)
    return "" if info.available else info.reason


def declared(cluster: Mapping[str, float]) -> set[str]:
    """The resources of devices that somebody told Ray of."""
    return {name for name in cluster if name.startswith(PREFIX)}


def check_declared(needs: Mapping[str, float], cluster: Mapping[str, float]) -> None:
    """Refuse what no machine of the cluster has, where machines say what they have.

    Raises:
        DeviceUnavailableError: an actor would wait for ever.
    """
    declared_names = declared(cluster)
    for name in needs.keys() - cluster.keys() if declared_names else ():
        device = name.removeprefix(PREFIX)
        raise DeviceUnavailableError(
            f"no machine of the cluster has device {device!r}; they have {', '.join(sorted(declared_names))}. "
            "Start one with "
            f"resource {name!r} (nnadapter.ray.resources() gives it), or allow the CPU by without_device='cpu'"
        )
