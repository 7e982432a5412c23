"""`nnadapter report`, also installed as `partition-report`: what would run where, and why."""

from __future__ import annotations

from collections.abc import Mapping

import click

import nnadapter
from nnadapter.cli.command import ModelCommand
from nnadapter.cli.parameters import Shapes, requests, takes_model
from nnadapter.cli.writing import write_file


@click.command(cls=ModelCommand, context_settings={"help_option_names": ["-h", "--help"]})
@takes_model
@click.option(
    "--format", "form", type=click.Choice(("text", "json")), default="text", show_default=True, help="Of the report."
)
@click.option("-o", "--output", metavar="FILE", help="Write the report to FILE instead of stdout.")
def report(
    model: str,
    devices: tuple[str, ...],
    options: Mapping[str, Mapping[str, str]],
    shapes: Shapes,
    fallback: str,
    form: str,
    output: str | None,
) -> None:
    """Say which part of MODEL would run on which device, and why not elsewhere. Nothing is compiled or run.

    With --fallback forbid, the exit code is 1 if something is left for a CPU that is not named.
    """
    found = nnadapter.partition_report(
        model,
        devices=requests(devices, options),
        input_shapes=shapes,
        options=nnadapter.Options(fallback=fallback),
    )
    text = found.to_json() if form == "json" else str(found)
    if output is None:
        click.echo(text)
    else:
        write_file(output, lambda file: file.write(f"{text}\n".encode()))
