"""`nnadapter compare`: the devices against the CPU, output by output."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

import nnadapter
from nnadapter.cli.command import NO, Failure, ModelCommand
from nnadapter.cli.inputs import converted, feed_of
from nnadapter.cli.output import progress, to_json
from nnadapter.cli.parameters import Shapes, requests, takes_inputs, takes_model, takes_placing
from nnadapter.options import Options
from nnadapter.process.terminal import prints_to_stderr
from nnadapter.session.comparison import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE


@click.command(cls=ModelCommand)
@takes_model
@takes_placing
@takes_inputs
@click.option(
    "--rtol", type=click.FloatRange(min=0), default=RELATIVE_TOLERANCE, show_default=True,
    help="Allowed difference over the CPU's value.",
)  # fmt: skip
@click.option(
    "--atol", type=click.FloatRange(min=0), default=ABSOLUTE_TOLERANCE, show_default=True,
    help="Allowed difference beside it.",
)  # fmt: skip
@click.option(
    "--layers", is_flag=True, help="Find nodes that are wrong, and save the first as a small model with its tensors."
)
@click.option(
    "--save", metavar="DIR", help="With --layers, where to save it.  [default: the model's name with -layers behind it]"
)
@click.option(
    "--rules-out", metavar="FILE",
    help="With --layers, write the smallest set of pins found that makes the outputs agree, as --rules takes it.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON; differences that are not finite are null.")
def compare(
    model: str,
    devices: tuple[str, ...],
    options: Mapping[str, Mapping[str, str]],
    shapes: Shapes,
    settings: Options,
    sources: Mapping[str, str],
    rtol: float,
    atol: float,
    layers: bool,
    save: str | None,
    rules_out: str | None,
    as_json: bool,
) -> None:
    """Run MODEL on the devices and on the CPU alone with the same inputs.

    The exit code is 1 if outputs differ, if no node ran on the devices, or if a step fell back from one.
    """
    source = converted(model, settings)
    with prints_to_stderr(), progress("comparing"):
        result = nnadapter.compare(
            source,
            requests(devices, options),
            feed_of(source, shapes, sources).arrays,
            options=settings,
            relative_tolerance=rtol,
            absolute_tolerance=atol,
            layers=layers,
            save=save if save or not layers else f"{Path(model).stem}-layers",
            rules_out=rules_out,
        )
    click.echo(to_json(result.to_dict()) if as_json else str(result))
    if result.layers is not None and result.layers.unwritten:
        raise Failure(f"not all that was found was written: {result.layers.unwritten}; give another path")
    if not result.agrees:
        click.get_current_context().exit(NO)
