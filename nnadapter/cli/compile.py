"""`nnadapter compile`: compile a model ahead of time, or see whether what was compiled runs here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click

import nnadapter
from nnadapter.cli.command import NO, ModelCommand
from nnadapter.cli.inputs import converted
from nnadapter.cli.output import progress
from nnadapter.cli.parameters import Shapes, requests, takes_placing, takes_settings_of_many
from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.engine.file_texts import plans_held, reasons_against, served_sets
from nnadapter.options import Options
from nnadapter.process.terminal import prints_to_stderr
from nnadapter.report.report import PartitionReport


@click.command(cls=ModelCommand)
@click.argument("model", required=False)
@takes_settings_of_many
@takes_placing
@click.option("-o", "--output", metavar="FILE", help="The file to write.")
@click.option("--keep-model", is_flag=True, help="The model goes in too: the CPU runs it at other shapes.")
@click.option(
    "--dynamic-shapes/--static-shapes",
    default=None,
    help="Whether plans serve all shapes that are of one class with those given, or these alone. Default: all, where "
    "the model leaves sizes open and no --shape is given.",
)
@click.option(
    "--check", metavar="FILE",
    help="Compile nothing: exit with 1 where this file, which was compiled, would not run here as it is.",
)  # fmt: skip
def compile(  # noqa: A001  the command's name
    model: str | None,
    devices: tuple[str, ...],
    options: Mapping[str, Mapping[str, str]],
    shape_sets: tuple[Shapes, ...],
    settings: Options,
    output: str | None,
    keep_model: bool,
    dynamic_shapes: bool | None,
    check: str | None,
) -> None:
    """Compile MODEL for devices into one FILE, which `nnadapter run` and InferenceSession take in its place."""
    if check is not None:
        if model is not None or output is not None:
            raise click.UsageError("--check FILE stands alone: it compiles nothing")
        _check(check)
        return
    if model is None or output is None:
        raise click.UsageError("compile takes a MODEL and -o FILE, or --check FILE")
    output = os.path.realpath(output) if Path(output).is_symlink() else output  # /dev/stdout is another one below
    source = converted(model, settings)
    with prints_to_stderr(), progress("compiling"):
        report = nnadapter.compile(
            source,
            output,
            devices=requests(devices, options),
            input_shapes=shape_sets or None,
            options=settings,
            keep_model=keep_model,
            dynamic_shapes=dynamic_shapes,
        )
    click.echo(_summary(output, report))


def _summary(output: str, report: PartitionReport) -> str:
    size, file = Path(output).stat().st_size, CompiledFile(output)
    programs = [step.HasField("program") or len(step.filled) for plan in file.message.plans for step in plan.steps]
    unwritten = f", compiled when loaded: {programs.count(0)}" if 0 in programs else ""
    segments = ", ".join(
        f"{sum(segment.device == device for segment in report.segments)} on {device}"
        for device in _segment_devices(report)
    )
    segments = segments or "none"
    is_fixed = not any(plan.HasField("open") for plan in file.message.plans)
    reason = report.plans.served_shapes_text if is_fixed and report.plans is not None else ""
    served = served_sets(file, plans_held(file))
    shapes = (
        f" {''.join(served) or 'no inputs'}" if len(served) < 2 else "".join(f"\n  {shape_set}" for shape_set in served)
    )
    return (
        f"{output}: {size / 1e6:.1f} MB, for{shapes}\n"
        f"segments: {segments}; programs written by drivers: {sum(programs)}{unwritten}"
        + (f"\n{reason}" if reason else "")
    )


def _segment_devices(report: PartitionReport) -> list[str]:
    return list(dict.fromkeys(segment.device for segment in report.segments))


def _check(path: str) -> None:
    with prints_to_stderr(), progress("checking"):
        reasons = reasons_against(CompiledFile(path))
    if not reasons:
        click.echo(f"{path}: runs here as it is")
        return
    for reason in reasons:
        click.echo(reason)
    raise click.exceptions.Exit(NO)
