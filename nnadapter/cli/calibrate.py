"""`nnadapter calibrate DEVICE`: measure a device once, so that nodes can be placed by what they cost."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from nnadapter.cli.command import Command
from nnadapter.cli.parameters import device_options, requests
from nnadapter.cli.progress import progress
from nnadapter.cli.writing import to_json, write_file
from nnadapter.costs.calibrating import ROUNDS
from nnadapter.costs.calibrating import calibrate as measure
from nnadapter.costs.calibration_files import contents_of, keep_calibration


@click.command(cls=Command)
@click.argument("device")
@click.option(
    "--option", "options", multiple=True, metavar="DEVICE.NAME=VALUE", callback=device_options,
    help="An option of the device. A calibration counts for the options that it was made with.",
)  # fmt: skip
@click.option("-o", "--output", metavar="FILE", help="Write a copy of the calibration to FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: what stands in the calibration's file.")
def calibrate(device: str, options: Mapping[str, Mapping[str, str]], output: str | None, as_json: bool) -> None:
    """Measure DEVICE: launch, transfers, and operations by class, in some 20 seconds at most.

    Costs are kept in the folder calibrations of NNADAPTER_CACHE_DIR, for this version of the device's driver and the
    options that change its speed. Leave the machine alone meanwhile. cpu can be measured too.
    """
    requests((device,), options)  # says which options are another device's
    with progress(f"calibrating {device}", ROUNDS) as advance:
        measured = measure(device, options.get(device), advance=advance)
    file = keep_calibration(measured)
    if output is not None:
        text = json.dumps(contents_of(measured), indent=2, allow_nan=False)
        write_file(output, lambda opened: opened.write(f"{text}\n".encode()))
    click.echo(to_json(contents_of(measured)) if as_json else f"{measured}\nkept in    {file}")
