"""Ray's cluster: its start on this machine, and devices as Ray resources."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from importlib import import_module
from threading import current_thread, main_thread
from typing import Any, NoReturn

from nnadapter.drivers.registry import device_info, devices
from nnadapter.drivers.selection import HOSTS
from nnadapter.errors import DeviceNotFoundError, DeviceUnavailableError
from nnadapter.process.packages import missing_extra, require_extra
from nnadapter.process.terminal import deferred_termination


def require_ray(feature: str, part: str) -> None:
    """Refuse `feature` where Ray, or the part of it that `feature` needs, is missing.

    Args:
        feature: of ours is asked for.
        part: of Ray that it needs, as a module; each takes seconds to import, so no other is.

    Raises:
        MissingExtraError: it is.
    """
    require_extra("ray", feature)
    try:
        import_module(part)
    except ImportError as error:
        raise missing_extra("ray", feature) from error


def start_if_needed(**settings: Any) -> bool:
    """Start Ray on this machine alone, unless this process has one; whether it was started.

    It has no dashboard and reports nothing to anybody; who wants another one starts it before.

    Args:
        **settings: what else `ray.init` is told.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    previous_handler = signal.getsignal(signal.SIGTERM)
    is_new, is_main = not ray.is_initialized(), current_thread() is main_thread()
    with deferred_termination() if is_main else nullcontext():
        try:
            if is_new:
                ray.init(**{"include_dashboard": False, "logging_level": "warning", **settings})
        finally:
            if is_main:
                _handle_sigterm(previous_handler)
    return is_new


def _handle_sigterm(previous_handler: Any) -> None:
    """End a program without a handler for SIGTERM by exit code 143; the handler of Ray aborts with a stack trace."""
    is_rays = getattr(previous_handler, "__module__", "").startswith("ray.")
    signal.signal(signal.SIGTERM, _exit if is_rays or previous_handler in (None, signal.SIG_DFL) else previous_handler)


def _exit(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
    raise SystemExit(128 + number)


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
