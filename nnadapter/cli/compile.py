"""`nnadapter compile`, `nnadapter export` and `nnadapter cache`."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click

import nnadapter
from nnadapter.cli import parameters
from nnadapter.cli.command import NO, Command, ModelCommand
from nnadapter.engine.cached_plans import look_up_plans
from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.engine.file_texts import dynamic_shape_sets, reasons_against, served_shapes_texts
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.options import Options
from nnadapter.process.terminal import prints_to_stderr
from nnadapter.report.facts import plain
from nnadapter.report.report import PartitionReport
from nnadapter.report.sections import count, quantity
from nnadapter.store.bans import clear_bans, stored_bans
from nnadapter.store.folder import PROGRAMS, Folder, Listed, UnusableError, read_entry, usual_folder
from nnadapter.store.keys import PLAN


@click.command(cls=ModelCommand)
@click.argument("model", required=False)
@parameters.takes_settings_of_many
@parameters.takes_placing
@click.option("-o", "--output", metavar="FILE", help="Compiled file to write.")
@click.option(
    "--keep-model",
    is_flag=True,
    help="Also store the model, so that the CPU can run input shapes that were not compiled.",
)
@click.option(
    "--dynamic-shapes/--static-shapes",
    default=None,
    help=(
        "Compile for dynamic shapes, so that the file also runs other input shapes, or for the shapes of --shape "
        "only. Default: dynamic, if the model has dynamic shapes and there is no --shape."
    ),
)
@click.option(
    "--check", metavar="FILE",
    help=("Do not compile. Check a compiled file: exit with 1 if it would not run unchanged on this "
"machine."),
)  # fmt: skip
def compile(  # noqa: A001  the command's name
    model: str | None,
    devices: tuple[str, ...],
    options: parameters.DeviceOptions,
    shape_sets: tuple[parameters.Shapes, ...],
    settings: Options,
    output: str | None,
    keep_model: bool,
    dynamic_shapes: bool | None,
    check: str | None,
) -> None:
    """Compile MODEL for devices into one FILE, which starts faster and needs no MODEL.

    `nnadapter run` and InferenceSession accept the file in place of the model.
    """
    if check is not None:
        if model is not None or output is not None:
            raise click.UsageError("--check FILE cannot be combined with MODEL or -o: it compiles nothing")
        _check(check)
        return
    if model is None or output is None:
        raise click.UsageError("compile needs MODEL and -o FILE, or --check FILE")
    # resolved here, because /dev/stdout changes below
    output = os.path.realpath(output) if Path(output).is_symlink() else output
    source = parameters.converted(model, settings)
    with prints_to_stderr(), parameters.progress("compiling"):
        report = nnadapter.compile(
            source,
            output,
            devices=parameters.requests(devices, options),
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
    counts = Counter(segment.device for segment in report.segments)
    segments = ", ".join(f"{number} on {device}" for device, number in counts.items()) or "none"
    is_fixed = not any(plan.HasField("open") for plan in file.message.plans)
    reason = report.plans.served_shapes_text if is_fixed and report.plans is not None else ""
    served = served_shapes_texts(file, dynamic_shape_sets(file))
    shapes = (
        f" {''.join(served) or 'no inputs'}" if len(served) < 2 else "".join(f"\n  {shape_set}" for shape_set in served)
    )
    return (
        f"{output}: {quantity(size, 'B')}, for{shapes}\n"
        f"segments: {segments}; programs written by drivers: {sum(programs)}{unwritten}"
        + (f"\n{reason}" if reason else "")
    )


def _check(path: str) -> None:
    with prints_to_stderr(), parameters.progress("checking"):
        reasons = reasons_against(CompiledFile(path))
    if not reasons:
        click.echo(f"{path}: runs on this machine unchanged")
        return
    for reason in reasons:
        click.echo(reason)
    raise click.exceptions.Exit(NO)


@click.command(cls=Command)
@click.argument("model")
@click.option("-o", "--output", required=True, metavar="FILE", help="ONNX file to write.")
def export(model: str, output: str) -> None:
    """Convert MODEL, a file in adapter IR (the model format of drivers), to ONNX.

    MODEL is a file that nnadapter.ir.protobuf.save wrote. Operations that ONNX lacks become several ops. Weights of
    models of 2 GiB and more are written to FILE.data.
    """
    from nnadapter.exporting import to_onnx  # lazily: the help needs neither
    from nnadapter.ir.protobuf import load
    from nnadapter.onnx.files import save_model

    if Path(output).resolve() == Path(model).resolve():
        raise click.UsageError(f"{output!r} is the model itself; give the ONNX file another name")
    contents = load(model)
    written = to_onnx(contents)  # refers to weights in `contents`
    save_model(written, output)
    click.echo(
        f"{output}: {len(written.graph.node)} nodes for {contents.operation_count} operations, opset "
        f"{next(entry.version for entry in written.opset_import if not entry.domain)}"
    )


_takes_folder = click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), default=None,
    help=("Folder of the cache, or its parent folder, as in NNADAPTER_CACHE_DIR. Default: the folder named programs in "
"NNADAPTER_CACHE_DIR, or in the platform's cache folder."),
)  # fmt: skip


@click.group("cache")
def cache() -> None:
    """List, verify, explain and remove cached programs and plans."""


@cache.command("ls", cls=Command)
@_takes_folder
@parameters.takes_json
def list_(folder: Path | None, as_json: bool) -> None:
    """List the entries of the cache, and the bans.

    The most recently used entry is first. A ban marks a part of a model that failed on a device, which
    does not get it again.
    """
    opened = _opened(folder)
    rows = [_row(entry) for entry in reversed(opened.entries())]
    bans = stored_bans(opened.path)
    if as_json:
        ban_rows = [{**plain(ban), "since": _time(ban.since), "until": _time(ban.until)} for ban in bans]
        click.echo(parameters.to_json({"folder": str(opened.path), "entries": rows, "bans": ban_rows}))
        return
    for row in rows:
        click.echo(_line(row))
    for ban in bans:
        expired = " (expired)" if ban.until <= time.time() else ""
        click.echo(f"{_time(ban.since)}  ban{expired}: {ban.device} {ban.driver}; {ban.operations}; {ban.text}")
    missing = "" if opened.path.is_dir() else " (there is no such folder)"
    total = quantity(sum(row["bytes"] for row in rows), "B")
    click.echo(f"{opened.path}: {count(len(rows), 'entry', 'entries')}, {total}{missing}")


@cache.command(cls=Command)
@_takes_folder
@parameters.takes_json
def verify(folder: Path | None, as_json: bool) -> None:
    """Read every entry of the cache, and report damaged ones.

    The exit code is 1 if an entry cannot be used.
    """
    opened = _opened(folder)
    wrong = {entry.path.name: problem for entry in opened.entries() if (problem := _problem(entry))}
    if as_json:
        click.echo(parameters.to_json({"folder": str(opened.path), "wrong": wrong}))
    else:
        for name, problem in wrong.items():
            click.echo(f"{name}: {problem}")
        click.echo(f"{opened.path}: {len(wrong)} of {len(opened.entries())} entries cannot be used")
    if wrong:
        raise click.exceptions.Exit(NO)


@cache.command(cls=Command)
@_takes_folder
@click.option(
    "--max-bytes",
    type=click.IntRange(min=0),
    default=0,
    help="Keep the most recently used entries up to this size. Default: remove all.",
)
@click.option("--bans", "only_bans", is_flag=True, help="Remove only bans, so that devices are tried again.")
def purge(folder: Path | None, max_bytes: int, only_bans: bool) -> None:
    """Remove the entries of the cache, and the bans.

    A ban marks a part of a model that failed on a device, which does not get it again. With --max-bytes, only the
    least recently used entries are removed, and no bans.
    """
    opened = _opened(folder)
    dropped = () if only_bans else opened.shrink(max_bytes)
    cleared = clear_bans(opened.path) if only_bans or not max_bytes else 0
    total = quantity(sum(entry.nbytes for entry in dropped), "B")
    removed = f"{count(len(dropped), 'entry', 'entries')}, {total}" if not only_bans else count(cleared, "ban")
    more = f", and {count(cleared, 'ban')}" if cleared and not only_bans else ""
    click.echo(f"{opened.path}: removed {removed}{more}")


@cache.command(cls=ModelCommand)
@parameters.takes_model
@_takes_folder
@parameters.takes_json
def explain(
    model: str,
    devices: tuple[str, ...],
    options: parameters.DeviceOptions,
    shapes: parameters.Shapes,
    fallback: str,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Show which segments of MODEL have a program in the cache.

    For a segment without one, it shows how the nearest entry differs.
    """
    opened = _opened(folder)
    with prints_to_stderr():
        settings, chosen = Options(fallback=fallback, cache_dir=opened.path), parameters.requests(devices, options)
        source = parameters.converted(model, settings)
        if kind_of(source) is SourceKind.COMPILED:  # a compiled model always has its stored report
            report = nnadapter.partition_report(source, options=settings)
        else:
            report = nnadapter.partition_report(source, chosen, shapes or None, settings)
        plan = look_up_plans(source, chosen, settings, report.input_shapes if shapes else None)
    segments = [segment for segment in report.segments if segment.cache is not None]
    if as_json:
        rows = [{"segment": segment.index, "device": segment.device, **plain(segment.cache)} for segment in segments]
        click.echo(parameters.to_json({"folder": str(opened.path), "plan": plan, "segments": rows}))
        return
    for_shapes = f", for input shapes {plan.shapes}" if plan.shapes else ""
    click.echo(f"plan: {f'hit{for_shapes}' if plan.hit else f'miss, {plan.miss_reason}'}")
    by_itself = ", for these shapes separately; a session uses the plan, which has its own programs" if plan.hit else ""
    for segment in segments:
        assert segment.cache is not None
        status = "hit" if segment.cache.hit else f"miss, {segment.cache.miss_reason}{by_itself}"
        click.echo(f"segment {segment.index} on {segment.device}: {status}")
    if not segments:
        click.echo("no segment is on an accelerator, so there is nothing to cache")


def _opened(folder: Path | None) -> Folder:
    max_bytes = Options().max_cache_bytes
    if folder is None:
        return Folder(usual_folder().absolute(), max_bytes)
    chosen, programs = Folder(folder.absolute(), max_bytes), folder.absolute() / PROGRAMS
    is_parent = programs.is_dir() and not chosen.entries() and not stored_bans(chosen.path)
    return Folder(programs, max_bytes) if is_parent else chosen


def _row(listed: Listed) -> dict[str, Any]:
    row: dict[str, Any] = {"name": listed.path.name, "bytes": listed.nbytes, "used": _time(listed.used)}
    try:
        entry = read_entry(listed.path)
    except (OSError, UnusableError) as error:
        return {**row, "problem": str(error)}
    key = {name: dict(part.words) for name, part in entry.parts.items()}
    return {**row, "kind": entry.kind, "seconds": entry.seconds, "key": key}


def _line(row: Mapping[str, Any]) -> str:
    description = row.get("problem")
    if not description:
        key = row["key"]
        try:
            description = "; ".join((row["kind"], key["device"]["name"], *_of_model(row["kind"], key)))
        except (KeyError, ValueError):  # written by another program
            description = "its key names neither a device nor a model"
    return f"{row['used']}  {quantity(row['bytes'], 'B'):>10}  {row['name'][:12]}  {description}"


def _of_model(kind: str, key: parameters.DeviceOptions) -> tuple[str, str]:
    if kind == PLAN:
        constants = key["constants"]
        return (
            f"a model of {quantity(int(constants['bytes']), 'B')} in {count(int(constants['files']), 'file')}",
            "all shapes",
        )
    return key["structure"]["operations"], key["shapes"]["inputs"]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _problem(listed: Listed) -> str:
    try:
        read_entry(listed.path).verify()
    except FileNotFoundError:
        return ""
    except (OSError, UnusableError) as error:
        return str(error)
    return ""
