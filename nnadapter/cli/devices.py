"""`nnadapter devices`: a line for every device of every driver; with a name, one device and its options."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

import nnadapter
from nnadapter.cli.command import Command, option_row
from nnadapter.cli.health import check_health
from nnadapter.cli.writing import to_json
from nnadapter.errors import DeviceNotFoundError, NNAdapterError
from nnadapter.process.standard_output import prints_to_stderr

_WIDTH = 100
_UNKNOWN: dict[str, Any] = {
    "form": None,
    "threading": None,
    "role": None,
    "open_sizes": None,
    "size_bounds": None,
    "checks_indices": None,
    "takes_references": None,
    "domains": None,
    "memory_bytes": None,
    "options": [],
    "memory": None,
}
"""What is said of the limits of a device that is not available."""


@click.command(cls=Command)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def devices(name: str | None, as_json: bool) -> None:
    """List the devices, one on a line, available or not; with NAME, that device and its options.

    As JSON all have their options. It also says how full each device is, and whether it works: it computes a sum.
    """
    with prints_to_stderr():
        known_devices = nnadapter.devices()
        if name is not None:
            known_devices = _called(name, known_devices)
        rows = [_plain(device) for device in known_devices] if as_json else []
    if as_json:
        click.echo(to_json(rows))
        return
    width = max((len(device.name) for device in known_devices), default=0)
    for device in known_devices:
        click.echo(f"{device.name:<{width}}  {_line(device)}".rstrip())
        for option in device.capability.options if name is not None and device.capability is not None else ():
            click.echo(_indented(": ".join(option_row(option)), width + 4))


def _called(name: str, known_devices: Sequence[nnadapter.DeviceInfo]) -> tuple[nnadapter.DeviceInfo, ...]:
    """Return the devices of a name, or of a driver's name.

    Raises:
        DeviceNotFoundError: there are none.
    """
    matches = tuple(device for device in known_devices if name in (device.name, device.name.partition(":")[0]))
    if not matches:
        names = ", ".join(device.name for device in known_devices)
        raise DeviceNotFoundError(f"no device is called {name!r}; the devices are {names}")
    exact = tuple(device for device in matches if device.name == name)
    return exact or matches


def _indented(text: str, width: int) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=" " * width, subsequent_indent=" " * (width + 4))


def _line(device: nnadapter.DeviceInfo) -> str:
    words = (device.type.value, device.vendor, device.sub_type, device.version)
    description = " ".join(word for word in words if word)
    return f"{description}, available" if device.available else f"not available: {device.reason}"


def _plain(device: nnadapter.DeviceInfo) -> dict[str, Any]:
    row = {**device.to_dict(), "health": check_health(device).to_dict()}
    if device.capability is None:
        return {**row, **_UNKNOWN}
    return {**row, **device.capability.to_dict(), "memory": _memory(device.name)}


def _memory(name: str) -> dict[str, int] | None:
    """How full the device is, as far as it tells."""
    try:
        statistics = nnadapter.Device.acquire(name).memory_statistics()
    except NNAdapterError:
        return None
    return None if statistics is None else asdict(statistics)
