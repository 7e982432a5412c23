"""`nnadapter report` (also `partition-report`) and `nnadapter compare`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, TypeVar

import click

import nnadapter
from nnadapter.cli.command import NO, Failure, ModelCommand
from nnadapter.cli.parameters import (
    OneOf,
    Shapes,
    converted,
    feed_of,
    inputs,
    progress,
    requests,
    takes_cache,
    takes_inputs,
    takes_model,
    takes_models,
    takes_placing,
    to_json,
    values_of,
    write_output,
)
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.errors import NNAdapterError
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.optional_parts import optional_part
from nnadapter.options import Options
from nnadapter.process.terminal import prints_to_stderr
from nnadapter.report.report import FORMATS, Gates, broken_gates, compare_reports, formats_of, read_report
from nnadapter.report.what_if import model_sources
from nnadapter.report.what_if_facts import RENDERERS
from nnadapter.session.comparison import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def takes_gates(command: Decorated) -> Decorated:
    """Add --min-coverage, --max-segments and --max-latency."""
    for decorator in reversed(_DECORATORS):
        command = decorator(command)
    return command


def _share(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    percent = value.strip().endswith("%")
    number = _number(value.strip().removesuffix("%"))
    share = number / 100 if percent else number
    if not 0 <= share <= 1:
        raise click.BadParameter(f"{value!r} is no share of nodes; write 0.95 or 95%")
    return share


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    milliseconds = _number(value)
    if not milliseconds > 0 or math.isinf(milliseconds):
        raise click.BadParameter(f"{value!r} is no time; write milliseconds, such as 12.5")
    return milliseconds / 1e3


def _number(text: str) -> float:
    """Parse a number; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


_DECORATORS = (
    click.option(
        "--min-coverage", metavar="X", callback=_share,
        help="Exit with 1 if less than this share of the nodes runs off the CPU: 0.95 or 95%.",
    ),
    click.option(
        "--max-segments", type=click.IntRange(min=0), metavar="N",
        help="Exit with 1 if the plan has more segments, the CPU's counted.",
    ),
    click.option(
        "--max-latency", metavar="MS", callback=_seconds,
        help="Exit with 1 if the cost, by policy measured a timed one and else a predicted one, is above this many "
        "milliseconds; an error where no costs are known.",
    ),
)  # fmt: skip


_OF_ONE_PLAN: Mapping[str, str] = {
    "plan": "--plan",
    "sources": "--input",
    "save_plan": "--save-plan",
    "save_segments": "--save-segments",
    "old": "--diff",
    "min_coverage": "--min-coverage",
    "max_segments": "--max-segments",
    "max_latency": "--max-latency",
}
"""Options that require a single plan, by parameter."""


def refuse_together(parameters: Mapping[str, object], form: str) -> None:
    """Refuse options of a report that --what-if does not support."""
    for name, flag in _OF_ONE_PLAN.items():
        if parameters[name] not in (None, {}):
            raise click.UsageError(f"{flag} is of one plan, and --what-if tries many; give one of the two")
    if form not in RENDERERS:
        hint = "'--output'" if parameters["form"] is None else "'--format'"
        raise click.BadParameter(f"--what-if has no format {form}; take {', '.join(RENDERERS)}", param_hint=hint)


def what_if_text(
    models: Sequence[str], devices: Sequence[DeviceRequest], shapes: Shapes, options: Options, form: str
) -> str:
    """Return the what-if report as text; models that fail are reported on stderr."""
    number = len(model_sources(models))
    with prints_to_stderr(), progress("models", number) as advance:

        def seen(name: str, error: NNAdapterError | None) -> None:
            if error is not None and number > 1:
                click.echo(f"Error: {' '.join(f'{name}: {error}'.split())}", err=True)
            advance()

        feature_report = nnadapter.what_if(models, devices, shapes, options, on_model=seen)
    return RENDERERS[form](feature_report).rstrip("\n")


_ENDINGS = dict.fromkeys(each.endings[0] for each in FORMATS.values())


@click.command(cls=ModelCommand, context_settings={"help_option_names": ["-h", "--help"]})
@takes_models
@takes_placing
@takes_cache
@click.option(
    "--input", "sources", multiple=True, metavar="NAME=FILE.npy|NUMBER", callback=inputs,
    help="Contents of an input that chooses branches of the model: FILE.npy, or a number that all elements are (or "
    "true, or false). Without it, a condition is taken to hold.",
)  # fmt: skip
@click.option("--save-plan", metavar="FILE", help="Write the device of every node to FILE, for --plan.")
@click.option(
    "--save-segments",
    metavar="DIR",
    help="Write each segment to DIR as an ONNX file that runs alone, called as in the plan.",
)
@takes_gates
@click.option(
    "--format", "form", type=OneOf(tuple(FORMATS)),
    help=f"Of the report: {', '.join(f'{name} is {form.help}' for name, form in FORMATS.items() if form.help)}. "
    f"Default: what the name of --output says by {', '.join(_ENDINGS)}, else text.",
)  # fmt: skip
@click.option("--diff", "old", metavar="OLD.json", help="Say what changed since this report, written as json.")
@click.option(
    "--what-if", "what_if", is_flag=True,
    help="Over several MODELS and folders of them: which features the first device lacks, ranked by the time and the "
    "segments that each would save.",
)  # fmt: skip
@click.option("-o", "--output", metavar="FILE", help="Write the report to FILE instead of stdout, which - stands for.")
def report(
    models: tuple[str, ...],
    devices: tuple[str, ...],
    options: Mapping[str, Mapping[str, str]],
    shapes: Shapes,
    settings: Options,
    sources: Mapping[str, str],
    save_plan: str | None,
    save_segments: str | None,
    min_coverage: float | None,
    max_segments: int | None,
    max_latency: float | None,
    form: str | None,
    old: str | None,
    what_if: bool,
    output: str | None,
) -> None:
    """Say which part of a model would run on which device, and why not elsewhere. Nothing is compiled or run.

    With --cache-dir, also what of it is kept there.

    The exit code is 1 if a limit is broken, or if --fallback forbid finds something left for a CPU that is not named.
    """
    parameters, form = click.get_current_context().params, _form(form, output)
    on = requests(devices, options)
    if what_if:
        refuse_together(parameters, form)
        _write(what_if_text(models, on, shapes, settings, form), output)
        return
    model = _only(models)
    source = converted(model, settings)
    if old is not None and not FORMATS[form].shows_difference:
        able = ", ".join(name for name, report_format in FORMATS.items() if report_format.shows_difference)
        raise click.BadParameter(f"format {form} shows no differences; take one of {able}", param_hint="--diff")
    baseline = read_report(old) if old is not None else None
    with prints_to_stderr(), progress("placing"):
        current_report = nnadapter.partition_report(
            source,
            devices=None if kind_of(source) is SourceKind.COMPILED and not (devices or options) else on,
            input_shapes=shapes,
            options=settings,
            input_values=values_of(sources),
            save_plan=save_plan,
            save_segments=save_segments,
        )
    gates = Gates(min_coverage=min_coverage, max_segments=max_segments, max_latency_seconds=max_latency)
    broken = broken_gates(current_report, gates)
    difference = compare_reports(baseline, current_report) if baseline is not None else None
    with progress("writing"):
        text = FORMATS[form].render(current_report, PurePath(model).name, difference)
    _write(text.rstrip("\n"), output)
    for line in broken:
        click.echo(f"Error: {line}", err=True)
    if broken:
        raise click.exceptions.Exit(NO)


def _form(form: str | None, output: str | None) -> str:
    """Return the explicit format, or that of the file's suffix."""
    by_name = formats_of(output) if output is not None else ()
    if form is not None and by_name and form not in by_name:
        click.echo(f"note: {output!r} is written as {form}, as --format says, whatever its name stands for", err=True)
    return form or (by_name or ("text",))[0]


def _only(models: Sequence[str]) -> str:
    if len(models) != 1:
        raise click.UsageError(f"a report is of one model, got {len(models)}; several, and folders, go with --what-if")
    if Path(models[0]).is_dir() and not optional_part("paddle_structures")(Path(models[0])):
        raise Failure(
            f"model file {models[0]!r} cannot be read: Is a directory; give a file, or --what-if for all below it"
        )
    return models[0]


def _write(text: str, output: str | None) -> None:
    if output in (None, "-"):
        click.echo(text)
    else:
        write_output(output, lambda file: file.write(f"{text}\n".encode()))


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
