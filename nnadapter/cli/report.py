"""`nnadapter report` (also `partition-report`) and `nnadapter compare`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

import click

import nnadapter
from nnadapter.cli import parameters
from nnadapter.cli.command import NO, Failure, ModelCommand
from nnadapter.drivers.selection import CPU, DeviceRequest
from nnadapter.errors import NNAdapterError
from nnadapter.optional_parts import optional_part
from nnadapter.options import Options
from nnadapter.process.terminal import prints_to_stderr
from nnadapter.records import replace
from nnadapter.report.report import FORMATS, Gates, broken_gates, compare_reports, formats_of, read_report
from nnadapter.report.what_if import model_sources
from nnadapter.report.what_if_facts import RENDERERS
from nnadapter.session.comparison import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE


def _share(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    percent = value.strip().endswith("%")
    number = _number(value.strip().removesuffix("%"))
    share = number / 100 if percent else number
    if not 0 <= share <= 1:
        raise click.BadParameter(f"{value!r} is not a share of nodes; write 0.95 or 95%")
    return share


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    milliseconds = _number(value)
    if not milliseconds > 0 or math.isinf(milliseconds):
        raise click.BadParameter(f"{value!r} is not a time; write milliseconds, such as 12.5")
    return milliseconds / 1e3


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


takes_gates = parameters.composed(
    click.option(
        "--min-coverage", metavar="X", callback=_share,
        help=("Exit with code 1 if less than this share of the nodes, such as 0.95 or 95%, runs on devices other "
"than the CPU."),
    ),
    click.option(
        "--max-segments", type=click.IntRange(min=0), metavar="N",
        help="Exit with code 1 if the plan has more segments, including those on the CPU.",
    ),
    click.option(
        "--max-latency", metavar="MS", callback=_seconds,
        help=("Exit with code 1 if a run takes more milliseconds: measured with --policy measured, otherwise "
"predicted. It is an error if the costs of a device are not known."),
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


def refuse_together(arguments: Mapping[str, object], form: str) -> None:
    """Refuse options of a report that --what-if does not support."""
    for name, flag in _OF_ONE_PLAN.items():
        if arguments[name] not in (None, {}):
            raise click.UsageError(f"{flag} requires a single plan, but --what-if tries many; use one of the two")
    if form not in RENDERERS:
        hint = "'--output'" if arguments["form"] is None else "'--format'"
        raise click.BadParameter(f"--what-if has no format {form}; use {', '.join(RENDERERS)}", param_hint=hint)


def what_if_text(
    models: Sequence[str], devices: Sequence[DeviceRequest], shapes: parameters.Shapes, options: Options, form: str
) -> str:
    """Return the what-if report in a format; models that fail are reported on stderr."""
    number = len(model_sources(models))
    with prints_to_stderr(), parameters.progress("models", number) as advance:

        def on_model(name: str, error: NNAdapterError | None) -> None:
            if error is not None and number > 1:
                click.echo(f"Error: {' '.join(f'{name}: {error}'.split())}", err=True)
            advance()

        feature_report = nnadapter.what_if(models, devices, shapes, options, on_model=on_model)
    return RENDERERS[form](feature_report).rstrip("\n")


_ENDINGS = dict.fromkeys(form.endings[0] for form in FORMATS.values())


@click.command(cls=ModelCommand, context_settings={"help_option_names": ["-h", "--help"]})
@parameters.takes_models
@parameters.takes_placing
@parameters.takes_cache
@click.option(
    "--input", "sources", multiple=True, metavar="NAME=FILE.npy|NUMBER", callback=parameters.inputs,
    help=("Contents of an input that decides which branches of If nodes run: FILE.npy, or a number, true or false for "
"all elements. Default: conditions of If nodes are true."),
)  # fmt: skip
@click.option("--save-plan", metavar="FILE", help="Write the device of every node to FILE, for --plan.")
@click.option(
    "--save-segments", metavar="DIR", help="Write each segment to the folder DIR, as an ONNX file that runs on its own."
)
@takes_gates
@click.option(
    "--format", "form", type=parameters.OneOf(tuple(FORMATS)),
    help=("Format of the report: "
f"{', '.join(f'{name} is {form.help}' for name, form in FORMATS.items() if form.help)}. "
f"Default: the format for the file name of --output ({', '.join(_ENDINGS)}), otherwise text."),
)  # fmt: skip
@click.option(
    "--diff", "old", metavar="OLD.json", help="Also report changes since this older report, written with --format json."
)
@click.option(
    "--what-if", "what_if", is_flag=True,
    help=("Report instead which operations, data types and other features the first device lacks for one or more "
"MODELS, or folders with models, ranked by the time and the segments that each would save."),
)  # fmt: skip
@click.option("-o", "--output", metavar="FILE", help="File for the report. Default: - for standard output.")
def report(
    models: tuple[str, ...],
    devices: tuple[str, ...],
    options: parameters.DeviceOptions,
    shapes: parameters.Shapes,
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
    """Report which device would run each node of a model, and why. Nothing is compiled or run.

    A segment is a part of the model that one device runs as one program. With --cache-dir, the report also shows which
    segments are cached.

    The exit code is 1 if a limit is exceeded, or if --fallback forbid is set and nodes would fall back to the CPU.
    """
    arguments, form = click.get_current_context().params, _form(form, output)
    on = parameters.requests(devices, options)
    if what_if:
        refuse_together(arguments, form)
        _write(what_if_text(models, on, shapes, settings, form), output)
        return
    model = _only(models)
    source = parameters.converted(model, settings)
    if old is not None and not FORMATS[form].shows_difference:
        able = ", ".join(name for name, report_format in FORMATS.items() if report_format.shows_difference)
        raise click.BadParameter(f"format {form} cannot show differences; use one of {able}", param_hint="--diff")
    baseline = read_report(old) if old is not None else None
    with prints_to_stderr(), parameters.progress("placing"):
        current_report = nnadapter.partition_report(
            source,
            devices=parameters.requests_for(source, devices, options),
            input_shapes=shapes,
            options=settings,
            input_values=parameters.values_of(sources),
            save_plan=save_plan,
            save_segments=save_segments,
        )
    gates = Gates(min_coverage=min_coverage, max_segments=max_segments, max_latency_seconds=max_latency)
    broken = broken_gates(current_report, gates)
    difference = compare_reports(baseline, current_report) if baseline is not None else None
    with parameters.progress("writing"):
        text = FORMATS[form].render(current_report, PurePath(model).name, difference)
    _write(text.rstrip("\n"), output)
    for line in broken:
        click.echo(f"Error: {line}", err=True)
    if broken:
        raise click.exceptions.Exit(NO)


def _form(form: str | None, output: str | None) -> str:
    by_name = formats_of(output) if output is not None else ()
    if form is not None and by_name and form not in by_name:
        click.echo(f"note: {output!r} is written as {form}, as --format requires, regardless of its name", err=True)
    return form or (by_name or ("text",))[0]


def _only(models: Sequence[str]) -> str:
    if len(models) != 1:
        raise click.UsageError(f"a report needs one model, got {len(models)}; use --what-if for several")
    if Path(models[0]).is_dir() and not optional_part("paddle_structures")(Path(models[0])):
        raise Failure(
            f"model file {models[0]!r} cannot be read: Is a directory; "
            "give a file, or use --what-if for all models in it"
        )
    return models[0]


def _write(text: str, output: str | None) -> None:
    if output in (None, "-"):
        click.echo(text)
    else:
        parameters.write_output(output, lambda file: file.write(f"{text}\n".encode()))


def _picture(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.lower().endswith((".svg", ".html", ".htm")):
        raise click.BadParameter(f"{value!r} ends neither in .svg nor in .html")
    return value


@click.command(cls=ModelCommand)
@parameters.takes_model
@parameters.takes_placing
@parameters.takes_inputs
@click.option(
    "--rtol", type=click.FloatRange(min=0), default=RELATIVE_TOLERANCE, show_default=True,
    help="Allowed difference relative to the CPU's value.",
)  # fmt: skip
@click.option(
    "--atol", type=click.FloatRange(min=0), default=ABSOLUTE_TOLERANCE, show_default=True,
    help="Allowed absolute difference, in addition to --rtol.",
)  # fmt: skip
@click.option(
    "--reference", metavar="MODEL",
    help="Model that the CPU runs instead, such as the float model of a quantized one. Then the default device is cpu.",
)  # fmt: skip
@click.option(
    "--layers", is_flag=True,
    help=("Measure the error of each layer (SQNR, in dB). Without --reference, also find the nodes that compute wrong "
"values on a device, and save the first one as a small model with its tensors."),
)  # fmt: skip
@click.option(
    "--order", type=parameters.OneOf(("worst", "graph")), default="worst", show_default=True,
    help="With --layers, the order of layers in the table: largest error first, or as in the graph.",
)  # fmt: skip
@click.option(
    "--picture", metavar="FILE.svg|FILE.html", callback=_picture,
    help="With --layers, write a chart of the SQNR of each layer, or a page with the chart and a table.",
)  # fmt: skip
@click.option(
    "--save",
    metavar="DIR",
    help="With --layers, the folder for the small model.  [default: the model's name followed by -layers]",
)
@click.option(
    "--rules-out", metavar="FILE",
    help=("With --layers, write a rules file for --rules, which pins as few nodes to the CPU as were found "
"necessary to make the outputs agree."),
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON; non-finite differences are null.")
def compare(
    model: str,
    devices: tuple[str, ...],
    options: parameters.DeviceOptions,
    shapes: parameters.Shapes,
    settings: Options,
    sources: Mapping[str, str],
    rtol: float,
    atol: float,
    reference: str | None,
    layers: bool,
    order: str,
    picture: str | None,
    save: str | None,
    rules_out: str | None,
    as_json: bool,
) -> None:
    """Run MODEL on devices and on the CPU with the same inputs, and compare the outputs.

    The exit code is 1 if outputs differ, if no node ran on the devices, or if a device fell back to the CPU.
    """
    if picture is not None and not layers:
        raise click.UsageError("--picture requires --layers")
    source = parameters.converted(model, settings)
    named = (CPU,) if reference is not None and not devices else devices
    with prints_to_stderr(), parameters.progress("comparing"):
        result = nnadapter.compare(
            source,
            parameters.requests(named, options),
            parameters.feed_of(source, shapes, sources).arrays,
            reference=reference,
            options=settings,
            relative_tolerance=rtol,
            absolute_tolerance=atol,
            layers=layers,
            save=save if save or not layers or reference is not None else f"{Path(model).stem}-layers",
            rules_out=rules_out,
        )
    if order == "graph" and result.layer_distances is not None:
        in_order = sorted(result.layer_distances, key=lambda layer: layer.position)
        result = replace(result, layer_distances=tuple(in_order))
    if picture is not None:
        text = (result.to_svg if picture.lower().endswith(".svg") else result.to_html)(PurePath(model).name)
        parameters.write_output(picture, lambda file: file.write(text.encode()))
    click.echo(parameters.to_json(result.to_dict()) if as_json else str(result))
    if result.layers is not None and result.layers.unwritten:
        raise Failure(f"not all results could be written: {result.layers.unwritten}; give another path")
    if not result.agrees:
        click.get_current_context().exit(NO)
