"""Commands about devices: `nnadapter devices`, `doctor`, `ops`, `calibrate` and `new-driver`."""

from __future__ import annotations

import json
import os
import platform
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np

import nnadapter
from nnadapter.cli import parameters
from nnadapter.cli.command import NO, Command, option_row
from nnadapter.converters.registry import problems_of_packages
from nnadapter.costs.calibration import Calibration, contents_of, is_calibrated, keep_calibration
from nnadapter.costs.calibrator import ROUNDS
from nnadapter.costs.calibrator import calibrate as measure
from nnadapter.drivers.capability import Capability, DeviceInfo, MemoryStatistics, ModelForm, OperationSupport
from nnadapter.drivers.registry import LANE, device_of, open_device, sources
from nnadapter.drivers.selection import CPU, HOSTS, REFERENCE, select_one
from nnadapter.errors import DeviceNotFoundError, InvalidOptionError, NNAdapterError, NotDelegatedError, describe
from nnadapter.files.atomic_files import cache_folder, check_writable
from nnadapter.ir.operand import ANY, DataType
from nnadapter.new_driver import LANGUAGES, write_driver, write_plug_in
from nnadapter.onnx.construction import parse
from nnadapter.options import Options
from nnadapter.process.packages import has_extra, missing_extra
from nnadapter.process.terminal import prints_to_stderr
from nnadapter.records import dataclass
from nnadapter.session.session import InferenceSession

_MODEL = '<ir_version: 10, opset_import: ["" : 17]> health (float[4] x, float[4] y) => (float[4] z) { z = Add(x, y) }'
_OPTIONS = Options(fallback="forbid", cache_dir=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Result of testing a device."""

    state: str
    """`works`, `wrong` (wrong result), `limited` (wrong, as the device declares), `failed`, `refuses` (unsupported),
    `needs options` (required ones) or `unavailable`.
    """
    detail: str = ""
    """Problem and remedy; empty if it works."""
    first_seconds: float | None = None
    """Seconds to the first result: opening, compiling and running."""
    run_seconds: float | None = None


def check_health(device: DeviceInfo) -> Health:
    """Test `device` alone: compile and run the sum of two vectors."""
    if not device.available:
        return Health(state="unavailable", detail=device.reason)
    model = parse(_MODEL)
    feed = {"x": np.arange(4, dtype=np.float32), "y": np.full(4, 0.5, np.float32)}
    started = perf_counter()
    try:
        with warnings.catch_warnings(), InferenceSession(model, devices=device.name, options=_OPTIONS) as session:
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
    except BaseException as error:  # noqa: BLE001  a plug-in may even try to end the process
        return Health(state="failed", detail=f"its driver raised {describe(error)}; ask its vendor")
    expected = feed["x"] + feed["y"]
    if not np.allclose(first, expected, rtol=1e-2):
        limits = _limits_of_sums(device)
        if limits:
            return Health(
                state="limited", detail=f"the sum of two vectors is wrong; the device declares this limit: {limits}"
            )
        return Health(state="wrong", detail=f"got {first.tolist()}, expected {expected.tolist()}; ask its vendor")
    return Health(state="works", first_seconds=between - started, run_seconds=ended - between)


def _limits_of_sums(device: DeviceInfo) -> str:
    rows = () if device.capability is None else device.capability.operations
    return next((row.limits for row in rows if row.type == "ADD"), "")


_WIDTH = 100


@click.command(cls=Command)
@click.argument("name", required=False)
@parameters.takes_json
def devices(name: str | None, as_json: bool) -> None:
    """List all devices, available or not, or NAME with its options.

    With --json, the options and the memory use of every device are included, and the result of a test that adds two
    vectors on it.
    """
    with prints_to_stderr():
        known_devices = nnadapter.devices()
        if name is not None:
            known_devices = _called(device_of(name), known_devices)
            if LANE in name:
                select_one(name, {})  # raises for a precision that the device lacks
        rows = [_plain(device) for device in known_devices] if as_json else []
    if as_json:
        click.echo(parameters.to_json(rows))
        return
    width = max((len(device.name) for device in known_devices), default=0)
    for device in known_devices:
        click.echo(f"{device.name:<{width}}  {_line(device)}".rstrip())
        if name is None or device.capability is None:
            continue
        click.echo(_indented(_precisions(device.capability), width + 4))
        for option in device.capability.options:
            click.echo(_indented(": ".join(option_row(option)), width + 4))


def _called(name: str, known_devices: Sequence[nnadapter.DeviceInfo]) -> tuple[nnadapter.DeviceInfo, ...]:
    """Return the devices of a driver, or one device, by name. Raises DeviceNotFoundError."""
    matches = tuple(device for device in known_devices if name in (device.name, device.name.partition(":")[0]))
    if not matches:
        names = ", ".join(device.name for device in known_devices)
        raise DeviceNotFoundError(f"there is no device {name!r}; the devices are {names}")
    exact = tuple(device for device in matches if device.name == name)
    return exact or matches


def _indented(text: str, width: int) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=" " * width, subsequent_indent=" " * (width + 4))


def _line(device: nnadapter.DeviceInfo) -> str:
    words = (device.type.value, device.vendor, device.sub_type, device.version)
    description = " ".join(word for word in words if word)
    return f"{description}, available" if device.available else f"not available: {device.reason}"


def _precisions(capability: Capability) -> str:
    rows = [
        f"{row.precision} (segments as a whole)" if row.full_graph else row.precision for row in capability.precisions
    ]
    return f"computes in {', '.join(rows)}; by default {capability.default_precision}"


def _plain(device: nnadapter.DeviceInfo) -> dict[str, Any]:
    row = {**device.to_dict(), "health": check_health(device)}
    if device.capability is None:
        unknown = dict.fromkeys(Capability(form=ModelForm.IR).to_dict())
        return {**row, **unknown, "options": [], "memory": None}
    return {**row, **device.capability.to_dict(), "memory": _memory(device.name)}


def _memory(name: str) -> MemoryStatistics | None:
    try:
        return nnadapter.Device.acquire(name).memory_statistics()
    except NNAdapterError:
        return None


_PACKAGES = ("nnadapter", "numpy", "onnx", "onnxruntime", "protobuf")
_VARIABLES = (
    "NNADAPTER_CACHE_DIR", "NNADAPTER_DRIVER_PATH", "NNADAPTER_DEVICES", "NNADAPTER_ISOLATE", "NNADAPTER_FAULTS",
    "NNADAPTER_LOG",
)  # fmt: skip
_EXTRAS = {"latency": "a policy that uses costs", "demo": "a picture as input"}
"""Extras not tied to a device, with the feature that needs them."""
_GOOD = frozenset({"works", "refuses", "limited", "needs options"})


@click.command(cls=Command)
@parameters.takes_json
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Test every device, and report what is missing and how to get it.

    A line starts with + for a device without defects, - for one that is not available, and ! for a defect of a device
    or of an installed package. The exit code is 1 if an available device does not work.
    """
    with prints_to_stderr():
        checked_devices = [(device, check_health(device)) for device in nnadapter.devices()]
        problems = problems_of_packages()
    versions = {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}
    environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    if as_json:
        rows = [{**device.to_dict(), "health": health} for device, health in checked_devices]
        click.echo(
            parameters.to_json(
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
            click.echo(f"- not for this machine: {', '.join(unsupported_names)}; `nnadapter devices` shows the reasons")
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


_HOSTS = {
    CPU: ("cpu supports every operation that no other device runs: ONNX Runtime runs it, like any ONNX model."),
    REFERENCE: "reference supports what not even cpu runs: onnx's reference evaluator runs it, slowly.",
}


@click.command(cls=Command)
@click.argument("device", required=False)
@click.option("--describe", metavar="OPERATION", help="Describe an operation of the adapter IR, such as CONV_2D.")
@parameters.takes_json
def ops(device: str | None, describe: str | None, as_json: bool) -> None:
    """List the operations that DEVICE supports, with limits, or describe one operation.

    Operations are those of the adapter IR, the model format of drivers, or domain::op_type for devices that run ONNX.
    Data types and ranks are those of the first input.
    """
    if (device is None) is (describe is None):
        raise click.UsageError("Give either DEVICE, such as fake_npu, or --describe OPERATION, such as CONV_2D.")
    if describe is not None:
        click.echo(_described(describe, as_json))
    elif device is not None:
        _list_operations(device, as_json)


def _described(type_: str, as_json: bool) -> str:
    from nnadapter.ir.definition.reference import (  # lazily: only this command needs it
        entry_of,
        operation_called,
        to_dict,
        to_text,
    )

    entry = entry_of(operation_called(type_))
    return parameters.to_json(to_dict(entry)) if as_json else to_text(entry)


def _list_operations(device: str, as_json: bool) -> None:
    with prints_to_stderr():
        capability = open_device(device).capability
    note = "" if capability.operations else _without_table(device)
    if as_json:
        operations = [_operation_row(operation) for operation in capability.operations]
        about = {"device": device, "form": capability.form.value, "note": note, "limits": capability.limits}
        click.echo(parameters.to_json({**about, "operations": operations}))
        return
    for line in [note] if note else _lines(capability):
        click.echo(line)


def _without_table(device: str) -> str:
    name = device.partition(":")[0]
    if name in _HOSTS:
        return _HOSTS[name]
    return (
        f"device {device!r} has no table of operations: it decides for each operation of a model. See "
        f"the result with `nnadapter report MODEL -d {device}`."
    )


def _lines(capability: Capability) -> Iterator[str]:
    width = max(len(operation.type) for operation in capability.operations)
    yield f"{'operation':<{width}}  rank  data types of the first input; limits"
    for operation in capability.operations:
        text = "; ".join(filter(None, (_dtypes(operation), operation.limits)))
        head = f"{operation.type:<{width}}  {_ranks(operation):<4}  "
        yield from textwrap.wrap(
            text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False
        )
    if capability.limits:
        yield from textwrap.wrap(capability.limits, _WIDTH)


def _ranks(operation: OperationSupport) -> str:
    low, high = operation.ranks
    return str(low) if low == high else f"{low}-{high}"


def _dtypes(operation: OperationSupport) -> str:
    return "any" if operation.dtypes >= ANY else ", ".join(_ordered(operation))


def _ordered(operation: OperationSupport) -> list[str]:
    return [dtype.value for dtype in DataType if dtype in operation.dtypes]


def _operation_row(operation: OperationSupport) -> dict[str, Any]:
    return {
        "type": operation.type,
        "dtypes": _ordered(operation),
        "ranks": list(operation.ranks),
        "limits": operation.limits,
    }


@click.command(cls=Command)
@click.argument("device")
@click.option(
    "--option", "options", multiple=True, metavar="DEVICE.NAME=VALUE", callback=parameters.device_options,
    help=("Set an option of the device; `nnadapter devices DEVICE` lists them. A calibration applies only to the "
"options that it was measured with."),
)  # fmt: skip
@click.option("-o", "--output", metavar="FILE", help="Write a copy of the calibration to FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print the contents of the calibration file as JSON.")
def calibrate(device: str, options: parameters.DeviceOptions, output: str | None, as_json: bool) -> None:
    """Measure how long DEVICE takes to start programs, transfer tensors and compute, in about 30 seconds.

    The CPU is measured too if it was not yet, because devices are compared with it. Results are stored in the folder
    calibrations of NNADAPTER_CACHE_DIR, or of the platform's cache folder, for this driver version and the options that
    change the speed. Do not use the machine meanwhile.
    """
    parameters.requests((device,), options)  # reports options for other devices
    check_writable(cache_folder(), "set NNADAPTER_CACHE_DIR to a writable folder", folder=True)
    if output is not None:
        check_writable(Path(output))
    measured, file = _measure_and_store(device, options.get(device))
    if device not in HOSTS and not is_calibrated(CPU):
        click.echo(
            (f"{CPU} was not calibrated yet and was measured too: stored in {_measure_and_store(CPU, None)[1]}"),
            err=True,
        )
    if output is not None:
        text = json.dumps(contents_of(measured), indent=2, allow_nan=False)
        parameters.write_output(output, lambda opened: opened.write(f"{text}\n".encode()))
    click.echo(parameters.to_json(contents_of(measured)) if as_json else f"{measured}\nstored in  {file}")


def _measure_and_store(device: str, options: Mapping[str, str] | None) -> tuple[Calibration, Path]:
    with prints_to_stderr(), parameters.progress(f"calibrating {device}", ROUNDS) as advance:
        measured = measure(device, options, advance=advance)
    return measured, keep_calibration(measured)


@click.command("new-driver", cls=Command)
@click.argument("name")
@click.option(
    "--lang",
    "language",
    type=parameters.OneOf(LANGUAGES),
    default="python",
    show_default=True,
    help="Language in which the driver is written.",
)
@click.option(
    "--paddle",
    is_flag=True,
    help=(
        "Also create a plug-in that makes the driver a custom device of Paddle. If the device "
        "already has a driver in C, create only the plug-in."
    ),
)
@click.option("-o", "folder", type=click.Path(path_type=Path), help="Folder to create. Default: NAME.")
def new_driver(name: str, language: str, paddle: bool, folder: Path | None) -> None:
    """Create a Python package with a driver for a new device NAME.

    It is ready to install, and includes tests.
    """
    if paddle and name in sources():
        folder = folder or Path(f"paddle_{name}")
        _list_files(write_plug_in(name, folder))
        click.echo(f"\nnext:\n{_plug_in_steps(folder)}")
        return
    folder = folder or Path(name)
    _list_files(write_driver(name, folder, language, paddle=paddle))
    click.echo(
        f"\nnext:\n  pip install {_local(folder)}\n  pytest {folder / 'tests'}\n"
        f"  nnadapter report {folder / 'example.onnx'} -d {name}\n  nnadapter run {folder / 'example.onnx'} -d {name}"
    )
    if paddle:
        click.echo(_plug_in_steps(folder / "paddle"))


def _list_files(written: tuple[Path, ...]) -> None:
    for path in written:
        click.echo(path)


def _plug_in_steps(folder: Path) -> str:
    return (
        "  pip install paddlepaddle 'setuptools>=70.1'\n"
        f"  pip install --no-build-isolation {_local(folder)}\n  pytest {folder / 'tests'}"
    )


def _local(folder: Path) -> str:
    """Return the folder as a path that pip does not mistake for a package name."""
    return str(folder) if folder.is_absolute() or len(folder.parts) > 1 else f"./{folder}"
