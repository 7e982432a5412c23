"""`nnadapter run`: run a model, and say what came out, how long it took and where it ran."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click

import nnadapter
from nnadapter.cli.command import ModelCommand
from nnadapter.cli.inputs import Feed, converted, feed_of
from nnadapter.cli.outputs import describe_output, save_outputs
from nnadapter.cli.parameters import OneOf, Shapes, inputs, placing, requests, takes_cache, takes_model, takes_placing
from nnadapter.cli.progress import progress
from nnadapter.cli.run_costs import RunCosts, run_costs
from nnadapter.cli.run_text import RunFacts, Times, to_text
from nnadapter.cli.writing import to_json
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.process.standard_output import prints_to_stderr
from nnadapter.running.provenance import Provenance


@dataclass(frozen=True, slots=True)
class _RunResult:
    outputs: Mapping[str, Any]
    times: Times
    devices: tuple[str, ...]
    provenance: Provenance
    costs: RunCosts


@click.command(cls=ModelCommand)
@takes_model
@takes_placing
@takes_cache
@click.option(
    "--input", "sources", multiple=True, metavar="NAME=FILE|NUMBER|random", callback=inputs,
    help="Contents of an input: FILE.npy, a picture, a number that all elements are (or true, or false), or random, "
    "which is the default (always the same numbers).",
)  # fmt: skip
@click.option(
    "--repeat", type=click.IntRange(min=0), default=1, show_default=True, help="Timed runs after the first one."
)
@click.option("--save", metavar="DIR", help="Write every output to DIR/NAME.npy.")
@click.option(
    "--profile", metavar="FILE",
    help="Write what happened, and when, to FILE: a trace in JSON, which opens in ui.perfetto.dev and chrome://tracing.",
)  # fmt: skip
@click.option(
    "--format",
    "form",
    type=OneOf(("text", "json")),
    default="text",
    show_default=True,
    help="Of what is printed.",
)
def run(
    model: str,
    devices: tuple[str, ...],
    options: Mapping[str, Mapping[str, str]],
    shapes: Shapes,
    fallback: str,
    policy: str,
    rules: str | None,
    plan: str | None,
    cache_dir: str | None,
    sources: Mapping[str, str],
    repeat: int,
    save: str | None,
    profile: str | None,
    form: str,
) -> None:
    """Run MODEL; print its outputs in a few numbers, the times, and where it ran.

    A picture (PNG, JPEG, ...; needs Pillow) is turned upright, made RGB, or gray for an input of one channel, resized
    to the input's height and width without regard to its proportions, scaled to 0..1 (not for uint8), and laid out as
    [N, C, H, W] or [N, H, W, C], as the input is.
    """
    is_ready = kind_of(model) is SourceKind.COMPILED and not (devices or options)  # it has devices of its own
    chosen = None if is_ready else requests(devices, options)
    settings = replace(placing(policy, rules, plan, fallback), trace=profile, cache_dir=cache_dir)
    source = converted(model, settings)
    with progress("preparing inputs"):
        feed = feed_of(source, shapes, sources)
    with prints_to_stderr():
        ran = _run(source, chosen, settings, feed, repeat)
    saved = save_outputs(save, ran.outputs) if save is not None else []
    facts = RunFacts(
        model=model,
        devices=ran.devices,
        feed=feed,
        outputs=tuple(describe_output(name, value) for name, value in ran.outputs.items()),
        times=ran.times,
        provenance=ran.provenance,
        costs=ran.costs,
        saved=tuple(map(str, saved)),
        profile=profile,
    )
    click.echo(to_json(facts.to_dict()) if form == "json" else to_text(facts))


def _run(
    model: Any, devices: list[DeviceRequest] | None, options: nnadapter.Options, feed: Feed, repeat: int
) -> _RunResult:
    started = time.perf_counter()
    with progress("loading and compiling"):
        session = nnadapter.InferenceSession(model, devices=devices, options=options)
        loaded = time.perf_counter()
    with session:
        with progress("first run"):
            results = session.run(None, feed.arrays)
        times, of_steps = [loaded - started, time.perf_counter() - loaded], list[float]()
        with progress("running", repeat) as advance:
            for _ in range(repeat):
                run_start = time.perf_counter()
                results = session.run(None, feed.arrays)
                times.append(time.perf_counter() - run_start)
                of_steps.append(_provenance(session).seconds)
                advance()
        names = [output.name for output in session.get_outputs()]
        outputs = dict(zip(names, results, strict=True))
        costs = run_costs(session.report(), min(of_steps, default=None))
        provenance = _provenance(session)
        return _RunResult(outputs, Times(times[0], times[1], tuple(times[2:])), session.devices, provenance, costs)


def _provenance(session: nnadapter.InferenceSession) -> Provenance:
    provenance = session.provenance
    assert provenance is not None, "a run leaves its provenance"
    return provenance
