"""`nnadapter doctor`: what works here, what does not, and how to get it."""

from __future__ import annotations

import os
import platform
from importlib import metadata

import click

import nnadapter
from nnadapter.cli.command import NO, Command
from nnadapter.cli.devices import Health, check_health
from nnadapter.cli.output import to_json
from nnadapter.converters.registry import problems_of_packages
from nnadapter.process.packages import has_extra, missing_extra
from nnadapter.process.terminal import prints_to_stderr

_PACKAGES = ("nnadapter", "numpy", "onnx", "onnxruntime", "protobuf")
_VARIABLES = (
    "NNADAPTER_CACHE_DIR", "NNADAPTER_DRIVER_PATH", "NNADAPTER_DEVICES", "NNADAPTER_ISOLATE", "NNADAPTER_FAULTS",
    "NNADAPTER_LOG",
)  # fmt: skip
"""All that nnadapter reads of the environment itself."""
_EXTRAS = {"latency": "a policy that weighs costs", "demo": "a picture as input"}
"""Extras that belong to no device, and what needs them."""
_GOOD = frozenset({"works", "refuses", "limited", "needs options"})


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Try every device, and say what is missing and how to get it.

    What this machine cannot have, for its hardware or its system, is named in one line. So is each operation or
    converter of a package that is not used. The exit code is 1 if a device is there and does not work.
    """
    with prints_to_stderr():
        checked_devices = [(device, check_health(device)) for device in nnadapter.devices()]
        problems = problems_of_packages()
    versions = {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}
    environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    if as_json:
        rows = [{**device.to_dict(), "health": health.to_dict()} for device, health in checked_devices]
        click.echo(
            to_json(
                {
                    "versions": versions,
                    "system": platform.platform(),
                    "environment": environment,
                    "extras": {extra: has_extra(extra) for extra in _EXTRAS},
                    "devices": rows,
                    "packages": problems,
                }
            )
        )
    else:
        click.echo(", ".join(f"{name} {version}" for name, version in versions.items()))
        for name, value in environment.items():
            click.echo(f"{name}={value}")
        shown = [(device, health) for device, health in checked_devices if device.available or device.installable]
        width = max(len(device.name) for device, _ in shown)
        for device, health in shown:
            click.echo(f"{_mark(health)} {device.name:<{width}}  {_health_line(health)}")
        for extra in (extra for extra in _EXTRAS if not has_extra(extra)):
            click.echo(f"- extra {extra}: {missing_extra(extra, _EXTRAS[extra])}")
        for problem in problems:
            click.echo(f"! {problem}")
        unsupported_names = [
            device.name for device, _ in checked_devices if not (device.available or device.installable)
        ]
        if unsupported_names:
            click.echo(f"- not for this machine: {', '.join(unsupported_names)}; `nnadapter devices` says why")
    if any(device.available and health.state not in _GOOD for device, health in checked_devices):
        context.exit(NO)


def _mark(health: Health) -> str:
    return "+" if health.state in _GOOD else "-" if health.state == "unavailable" else "!"


def _health_line(health: Health) -> str:
    if health.first_seconds is None or health.run_seconds is None:
        return f"{health.state}: {health.detail}"
    return (
        f"works: first result after {health.first_seconds * 1e3:.1f} ms, then {health.run_seconds * 1e6:.0f} us a run"
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
