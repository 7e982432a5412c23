"""Kinds of machines: those on which what is compiled is the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from nnadapter.caching.fingerprints import surroundings
from nnadapter.drivers.registry import device_info
from nnadapter.drivers.selection import CPU, HOSTS, DeviceRequest
from nnadapter.errors import DeviceUnavailableError
from nnadapter.ray.places import missing_devices

_SHOWN_DIGITS = 12
_THREADS = "threads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What decides on a machine what a model becomes there."""

    name: str
    """Digits that are the same where all of it is."""
    devices: tuple[DeviceRequest, ...]
    """That are there, of those that were asked for; the CPU at least."""
    missing: Mapping[str, str]
    """The others, with the reason of each."""
    words: Mapping[str, str]
    """For people: processor, versions."""


def local_kind(requested_devices: Mapping[str, Mapping[str, Any]], *, allows_cpu: bool, threads: int) -> Kind:
    """Return the kind of this machine.

    Args:
        requested_devices: devices with their options, in order of preference.
        allows_cpu: a machine that lacks a device does without.
        threads: for devices that have an option of this name, unless theirs was given.

    Raises:
        DeviceUnavailableError: a device is not here, and the CPU is not allowed.
    """
    missing = missing_devices(requested_devices)
    for name, reason in () if allows_cpu else missing.items():
        raise DeviceUnavailableError(
            f"device {name!r} is not on this machine: {reason}; start machines that have it with its resource "
            "(nnadapter.ray.resources()), or allow the CPU by without_device='cpu'"
        )
    available_devices = {name: options for name, options in requested_devices.items() if name not in missing} or {
        CPU: {}
    }
    parts = {name: surroundings(name, takes_onnx=True) for name in (*available_devices, CPU)}
    devices = tuple((name, _with_threads(name, options, threads)) for name, options in available_devices.items())
    facts = [
        (name, part, facts.digest)
        for name, device_parts in parts.items()
        for part, facts in sorted(device_parts.items())
    ]
    name = sha256(repr((facts, devices)).encode()).hexdigest()[:_SHOWN_DIGITS]
    machine = parts[CPU]["machine"].words
    versions = {
        device: parts[device]["driver"].words.get("version", "") for device in available_devices if device not in HOSTS
    }
    return Kind(name=name, devices=devices, missing=missing, words={**machine, **versions})


def _with_threads(name: str, options: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """The options of a device; as many threads as the actor has processors, where it asks how many."""
    capability = device_info(name).capability
    asks = capability is not None and any(option.name == _THREADS for option in capability.options)
    return {_THREADS: threads, **options} if asks and threads else dict(options)
