"""`nnadapter devices`: one line per device and its health check; with a name, its options."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import click
import numpy as np

import nnadapter
from nnadapter.cli.command import Command, option_row
from nnadapter.cli.output import to_json
from nnadapter.drivers.capability import DeviceInfo
from nnadapter.errors import DeviceNotFoundError, InvalidOptionError, NNAdapterError, NotDelegatedError, describe
from nnadapter.onnx.construction import parse
from nnadapter.options import Options
from nnadapter.process.terminal import prints_to_stderr
from nnadapter.session.session import InferenceSession

_MODEL = '<ir_version: 10, opset_import: ["" : 17]> health (float[4] x, float[4] y) => (float[4] z) { z = Add(x, y) }'
_OPTIONS = Options(fallback="forbid", cache_dir=False)
"""The device compiles by itself, and nobody else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What came of trying a device."""

    state: str
    """`works`, `wrong` (it computed something else), `limited` (so it did, and says that it does), `failed`,
    `refuses` (a sum is not for it), `needs options` (there is nothing it does without) or `unavailable`."""
    detail: str = ""
    """What happened, and what to do about it; empty if it works."""
    first_seconds: float | None = None
    """From nothing to the first result: opening, compiling, computing."""
    run_seconds: float | None = None
    """Of the second run."""

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "state": self.state,
            "detail": self.detail,
            "first_seconds": self.first_seconds,
            "run_seconds": self.run_seconds,
        }


def check_health(device: DeviceInfo) -> Health:
    """Compile and run a sum of two vectors on `device`, without any help of the CPU."""
    if not device.available:
        return Health(state="unavailable", detail=device.reason)
    model = parse(_MODEL)
    feed = {"x": np.arange(4, dtype=np.float32), "y": np.full(4, 0.5, np.float32)}
    started = perf_counter()
    try:
        with (
            warnings.catch_warnings(),
            InferenceSession(model, devices=device.name, options=_OPTIONS) as session,
        ):
            warnings.simplefilter("ignore")
            (first,) = session.run(None, feed)
            between = perf_counter()
            session.run(None, feed)
            ended = perf_counter()
    except NotDelegatedError as error:
        return Health(state="refuses", detail=str(error))
    except InvalidOptionError as error:
        return Health(state="needs options", detail=str(error))
    except NNAdapterError as error:
        return Health(state="failed", detail=str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  a plug-in may try to end the process, too
        return Health(state="failed", detail=f"its driver raised {describe(error)}; ask its vendor")
    expected = feed["x"] + feed["y"]
    if not np.allclose(first, expected, rtol=1e-2):
        limits = _limits_of_sums(device)
        if limits:
            return Health(state="limited", detail=f"a sum is not computed, as the device says: {limits}")
        return Health(state="wrong", detail=f"got {first.tolist()}, expected {expected.tolist()}; ask its vendor")
    return Health(state="works", first_seconds=between - started, run_seconds=ended - between)


def _limits_of_sums(device: DeviceInfo) -> str:
    rows = () if device.capability is None else device.capability.operations
    return next((row.limits for row in rows if row.type == "ADD"), "")


_WIDTH = 100
_UNKNOWN: dict[str, Any] = {
    "form": None,
    "threading": None,
    "role": None,
    "dynamic_shapes": None,
    "dimension_bounds": None,
    "checks_indices": None,
    "supports_external_initializers": None,
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
