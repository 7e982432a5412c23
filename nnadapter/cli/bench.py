"""`nnadapter bench`: a session's time beside that of engines by themselves."""

from __future__ import annotations

from collections.abc import Mapping

import click

import nnadapter
from nnadapter.cli.command import NO, ModelCommand
from nnadapter.cli.inputs import converted, feed_of
from nnadapter.cli.output import progress, to_json
from nnadapter.cli.parameters import (
    OneOf,
    Shapes,
    requests,
    takes_cache,
    takes_inputs,
    takes_model,
    takes_placing,
)
from nnadapter.cli.run import run_costs
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.options import Options
from nnadapter.process.terminal import prints_to_stderr
from nnadapter.session.bench import PEERS, ROUNDS


def _against(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...] | None:
    """Callback of --against: names, some with commas."""
    kind = OneOf(PEERS)
    names = (name.strip() for value in values for name in value.split(","))
    return tuple(kind.convert(name, param, ctx) for name in names) or None


@click.command(cls=ModelCommand)
@takes_model
@takes_placing
@takes_cache
@click.option(
    "--against", multiple=True, metavar="ENGINE,...", callback=_against,
    help=f"Engines to time beside, by themselves on the CPU: {', '.join(PEERS)}.  [default: ort]",
)  # fmt: skip
@takes_inputs
@click.option(
    "--rounds", type=click.IntRange(min=1), default=ROUNDS, show_default=True, help="In which each takes a turn."
)
@click.option(
    "--format", "form", type=OneOf(("text", "json")), default="text", show_default=True, help="Of what is printed."
)
def bench(
    model: str,
    devices: tuple[str, ...],
    options: Mapping[str, Mapping[str, str]],
    shapes: Shapes,
    settings: Options,
    against: tuple[str, ...] | None,
    sources: Mapping[str, str],
    rounds: int,
    form: str,
) -> None:
    """Time MODEL on the devices beside engines by themselves: all take turns, and medians count.

    The exit code is 1 if no node ran on the devices, or if a step fell back from one: the times are not theirs then.
    """
    is_ready = kind_of(model) is SourceKind.COMPILED  # it has devices of its own, and no engine runs it
    chosen = None if is_ready and not (devices or options) else requests(devices, options)
    source = converted(model, settings)
    peers = against if against is not None else () if is_ready else ("ort",)
    with progress("preparing inputs"):
        feed = feed_of(source, shapes, sources)
    with prints_to_stderr(), progress("timing", rounds) as advance:
        result = nnadapter.bench(
            source, chosen, feed.arrays, against=peers, options=settings, rounds=rounds, advance=advance
        )
    costs = run_costs(result.report, min(result.session.round_seconds))
    if form == "json":
        click.echo(to_json({**result.to_dict(), "cost": costs.to_dict()}))
    else:
        click.echo("\n".join([str(result), *costs.lines()]))
    if not result.ran_on_devices:
        click.get_current_context().exit(NO)
