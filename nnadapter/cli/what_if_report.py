"""`nnadapter report --what-if`: over models, what a device lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

import nnadapter
from nnadapter.cli.parameters import Shapes
from nnadapter.cli.progress import progress
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.errors import NNAdapterError
from nnadapter.options import Options
from nnadapter.process.standard_output import prints_to_stderr
from nnadapter.whatif.report import RENDERERS
from nnadapter.whatif.sources import model_sources

_OF_ONE_PLAN: Mapping[str, str] = {
    "plan": "--plan",
    "sources": "--input",
    "save_plan": "--save-plan",
    "segments": "--segments",
    "old": "--diff",
    "min_coverage": "--min-coverage",
    "max_segments": "--max-segments",
    "max_latency": "--max-latency",
}
"""Options that are of one plan, by parameter."""


def refuse_together(parameters: Mapping[str, object], form: str) -> None:
    """Refuse what goes with a report and not with what-if.

    Args:
        parameters: the command's parameters.
        form: the format.

    Raises:
        UsageError: an option of one plan is given.
        BadParameter: the format is not one of what-if's.
    """
    for name, flag in _OF_ONE_PLAN.items():
        if parameters[name] not in (None, {}):
            raise click.UsageError(f"{flag} is of one plan, and --what-if tries many; give one of the two")
    if form not in RENDERERS:
        hint = "'--output'" if parameters["form"] is None else "'--format'"
        raise click.BadParameter(f"--what-if has no format {form}; take {', '.join(RENDERERS)}", param_hint=hint)


def what_if_text(
    models: Sequence[str], devices: Sequence[DeviceRequest], shapes: Shapes, options: Options, form: str
) -> str:
    """Return what-if in a format; models that fail are told on stderr.

    Raises:
        NNAdapterError: see `nnadapter.what_if`.
    """
    number = len(model_sources(models))
    with prints_to_stderr(), progress("models", number) as advance:

        def seen(name: str, error: NNAdapterError | None) -> None:
            if error is not None and number > 1:
                click.echo(f"Error: {' '.join(f'{name}: {error}'.split())}", err=True)
            advance()

        feature_report = nnadapter.what_if(models, devices, shapes, options, seen=seen)
    return RENDERERS[form](feature_report).rstrip("\n")
