"""`nnadapter calibrate DEVICE`: measure a device once, so that nodes can be placed by what they cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from nnadapter.cli.command import Command
from nnadapter.cli.output import progress, to_json, write_output
from nnadapter.cli.parameters import device_options, requests
from nnadapter.costs.calibration import Calibration, contents_of, is_calibrated, keep_calibration
from nnadapter.costs.calibrator import ROUNDS
from nnadapter.costs.calibrator import calibrate as measure
from nnadapter.drivers.selection import CPU, HOSTS
from nnadapter.files.atomic_files import cache_folder, check_writable
from nnadapter.process.terminal import prints_to_stderr


@click.command(cls=Command)
@click.argument("device")
@click.option(
    "--option", "options", multiple=True, metavar="DEVICE.NAME=VALUE", callback=device_options,
    help="An option of the device. A calibration counts for the options that it was made with.",
)  # fmt: skip
@click.option("-o", "--output", metavar="FILE", help="Write a copy of the calibration to FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: what stands in the calibration's file.")
def calibrate(device: str, options: Mapping[str, Mapping[str, str]], output: str | None, as_json: bool) -> None:
    """Measure DEVICE: launch, transfers, and operations by class, in some 30 seconds at most.

    The CPU, against which devices are weighed, is measured too where it was not yet. Costs are kept in the folder
    calibrations of NNADAPTER_CACHE_DIR, for this version of the device's driver and the options that change its speed.
    Leave the machine alone meanwhile.
    """
    requests((device,), options)  # says which options are another device's
    check_writable(cache_folder(), "set NNADAPTER_CACHE_DIR to a folder that can be written to", folder=True)
    if output is not None:
        check_writable(Path(output))
    measured, file = _measure_and_store(device, options.get(device))
    if device not in HOSTS and not is_calibrated(CPU):
        click.echo(
            f"{CPU} was not calibrated yet and was measured too: kept in {_measure_and_store(CPU, None)[1]}", err=True
        )
    if output is not None:
        text = json.dumps(contents_of(measured), indent=2, allow_nan=False)
        write_output(output, lambda opened: opened.write(f"{text}\n".encode()))
    click.echo(to_json(contents_of(measured)) if as_json else f"{measured}\nkept in    {file}")


def _measure_and_store(device: str, options: Mapping[str, str] | None) -> tuple[Calibration, Path]:
    """What a device costs, and the file that holds it."""
    with prints_to_stderr(), progress(f"calibrating {device}", ROUNDS) as advance:
        measured = measure(device, options, advance=advance)
    return measured, keep_calibration(measured)
