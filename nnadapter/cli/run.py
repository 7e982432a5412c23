"""`nnadapter run` and `nnadapter bench`: results, run times and devices of a model."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import isclose
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

import nnadapter
from nnadapter.cli import parameters
from nnadapter.cli.command import NO, Failure, ModelCommand
from nnadapter.drivers.selection import HOSTS, DeviceRequest
from nnadapter.engine.provenance import Provenance
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.ir.operand import Array, DataType
from nnadapter.options import Options
from nnadapter.process.terminal import prints_to_stderr
from nnadapter.records import dataclass, field, replace
from nnadapter.report.facts import CandidateFacts
from nnadapter.report.report import PartitionReport
from nnadapter.report.sections import (
    cost_sentence,
    count,
    cpu_words,
    duration,
    plan_file_lines,
    run_words,
    sources_words,
)
from nnadapter.session.bench import PEERS, ROUNDS, EngineTiming, peer_of

TOP = 5
_NUMBERS = frozenset(dtype.value for dtype in DataType)
_LONGEST_NAME = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFacts:
    """Statistics of one output, as far as applicable."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    minimum: float | None = None
    """Minimum of the finite elements. `mean` and `maximum` also ignore other elements."""
    mean: float | None = None
    maximum: float | None = None
    not_finite: int = 0
    top: tuple[tuple[int, float], ...] = ()
    """Index and value of the largest elements of an output [1, N]."""


def dtype_name(array: Array) -> str:
    return "string" if array.dtype.kind in "OUS" else array.dtype.name


def describe_output(name: str, value: object) -> OutputFacts:
    if not isinstance(value, np.ndarray):
        size = f" of {len(value)}" if isinstance(value, (list, dict)) else ""
        return OutputFacts(name=name, dtype=f"{type(value).__name__}{size}", shape=None)
    if value.dtype.name not in _NUMBERS:
        return OutputFacts(name=name, dtype=dtype_name(value), shape=value.shape)
    numbers = value.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    return OutputFacts(
        name=name,
        dtype=value.dtype.name,
        shape=value.shape,
        minimum=float(finite.min()) if finite.size else None,
        mean=float(finite.mean()) if finite.size else None,
        maximum=float(finite.max()) if finite.size else None,
        not_finite=numbers.size - finite.size,
        top=_top(numbers[0]) if value.ndim == 2 and len(value) == 1 and value.dtype != bool else (),
    )


def save_outputs(folder: str, outputs: Mapping[str, object]) -> list[Path]:
    """Write every output to `folder` as NAME.npy, and return the paths. Raises Failure.

    Unusual characters in names become underscores. Elements of a sequence are numbered.
    """
    arrays = [pair for name, value in outputs.items() for pair in _arrays(name, value)]
    parameters.make_folder(Path(folder))
    paths = []
    for stem, (_, array) in zip(_file_names(name for name, _ in arrays), arrays, strict=True):
        paths.append(Path(folder) / f"{stem}.npy")
        parameters.write_output(paths[-1], partial(np.save, arr=array, allow_pickle=False))
    return paths


def _top(numbers: Array) -> tuple[tuple[int, float], ...]:
    valid_indices = np.flatnonzero(~np.isnan(numbers))
    largest = valid_indices[np.argsort(-numbers[valid_indices], kind="stable")[:TOP]]
    return tuple((int(index), float(numbers[index])) for index in largest)


def _arrays(name: str, value: object) -> list[tuple[str, Array]]:
    if isinstance(value, np.ndarray):
        return [(name, value.astype(str) if value.dtype.kind == "O" else value)]
    if isinstance(value, list) and all(isinstance(item, np.ndarray) for item in value):
        return [pair for index, item in enumerate(value) for pair in _arrays(f"{name}.{index}", item)]
    raise Failure(f"output {name!r} is {type(value).__name__}, which has no .npy form; run without --save")


def _file_names(names: Iterable[str]) -> list[str]:
    assigned_stems: set[str] = set()
    file_names = []
    for name in names:
        plain = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).strip("._")[:_LONGEST_NAME] or "output"
        stem, number = plain, 1
        while stem.lower() in assigned_stems:
            number += 1
            stem = f"{plain}_{number}"
        assigned_stems.add(stem.lower())
        file_names.append(stem)
    return file_names


_SIMULATED = "simulated_us"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCosts:
    """Costs of the plan that ran."""

    seconds: float | None = None
    sentences: tuple[str, ...] = ()
    """Sentences about the cost, its lower bound and its sources, and further remarks."""
    chosen: str = ""
    candidate_count: int = 0
    simulated_seconds: Mapping[str, float] = field(default_factory=dict)
    """Device -> simulated time of its segments."""

    def lines(self) -> Iterator[str]:
        for words in self.sentences:
            yield f"cost      {words}"
        if self.chosen:
            yield f"chosen    {self.chosen}, of {self.candidate_count} candidate plans"
        for device, seconds in self.simulated_seconds.items():
            yield f"simulated {device}: {duration(seconds)} by its own clock"


def run_costs(report: PartitionReport, best_seconds: float | None = None) -> RunCosts:
    """Return the costs in a report; `best_seconds` replaces the last run's time."""
    if HOSTS.issuperset(report.devices):
        return RunCosts()
    cost, simulated = report.cost, _simulated(report)
    if cost is None:
        return RunCosts(simulated_seconds=simulated)
    summary = f"{cost_sentence(cost)} ({sources_words(cost.sources)})"
    weighed = [candidate for candidate in cost.candidates if candidate.eligible]
    return RunCosts(
        seconds=cost.seconds,
        sentences=tuple(filter(None, (summary, cpu_words(report, cost), run_words(report, best_seconds)))),
        chosen=_chosen(weighed, cost.seconds),
        candidate_count=len(weighed),
        simulated_seconds=simulated,
    )


def _chosen(weighed: Sequence[CandidateFacts], seconds: float) -> str:
    """Return the chosen placement's name; empty if devices refused parts of the placement."""
    first = weighed[0] if len(weighed) > 1 else None  # the chosen candidate is first
    return first.name if first is not None and isclose(_seconds(first), seconds) else ""


def _seconds(candidate: CandidateFacts) -> float:
    seconds = candidate.seconds if candidate.measured_seconds is None else candidate.measured_seconds
    return float("inf") if seconds is None else seconds


def _simulated(report: PartitionReport) -> dict[str, float]:
    seconds_by_device: dict[str, float] = {}
    for segment in report.segments:
        microseconds = segment.facts.get(_SIMULATED)
        if isinstance(microseconds, (int, float)):
            seconds_by_device[segment.device] = seconds_by_device.get(segment.device, 0.0) + microseconds / 1e6
    return seconds_by_device


@dataclass(frozen=True, slots=True)
class Times:
    """Durations in seconds."""

    load: float
    """Reading, preparing and, for static shapes, compiling."""
    first: float
    repeats: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; median and minimum are null without repeats."""
        return {
            "load": self.load,
            "first": self.first,
            "repeats": self.repeats,
            "median": median(self.repeats) if self.repeats else None,
            "minimum": min(self.repeats, default=None),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Everything that the command prints."""

    model: str
    devices: tuple[str, ...]
    feed: parameters.Feed
    outputs: Mapping[str, Any]
    times: Times
    provenance: Provenance
    costs: RunCosts
    precision: tuple[str, ...] = ()
    unapplied_plan: tuple[str, ...] = ()
    """Entries of the plan file that do not apply, with reasons."""
    saved: tuple[str, ...] = ()
    profile: str | None = None

    def to_dict(self) -> dict[str, Any]:
        feed = self.feed
        return {
            "model": self.model,
            "devices": self.devices,
            "inputs": [
                {"name": name, "dtype": dtype_name(array), "shape": array.shape, "source": feed.sources[name]}
                for name, array in feed.arrays.items()
            ],
            "outputs": [describe_output(name, value) for name, value in self.outputs.items()],
            "seconds": self.times.to_dict(),
            "steps": [
                {"segment": step.segment, "device": step.device, "seconds": step.seconds, "failure": step.failure}
                for step in self.provenance.steps
            ],
            "fell_back": self.provenance.fell_back,
            "cost": self.costs,
            "precision": self.precision,
            "unapplied_plan": self.unapplied_plan,
            "saved": self.saved,
            "profile": self.profile,
        }


def to_text(facts: RunFacts) -> str:
    return "\n".join(_lines(facts))


def _lines(facts: RunFacts) -> Iterator[str]:
    yield f"model     {facts.model}"
    yield f"devices   {', '.join(facts.devices)}"
    for name, array in facts.feed.arrays.items():
        yield f"input     {name}  {dtype_name(array)}{list(array.shape)}  {facts.feed.sources[name]}"
    yield from _outputs(facts)
    yield from _times(facts)
    yield from _where(facts)
    yield from facts.costs.lines()
    for remark in facts.precision:
        yield f"precision {remark}"
    yield from facts.unapplied_plan
    for path in facts.saved:
        yield f"saved     {path}"
    if facts.profile is not None:
        yield f"profile   {facts.profile}; open it in https://ui.perfetto.dev or chrome://tracing"


def _outputs(facts: RunFacts) -> Iterator[str]:
    for name, value in facts.outputs.items():
        output = describe_output(name, value)
        shape = "" if output.shape is None else list(output.shape)
        yield f"output    {output.name}  {output.dtype}{shape}{_statistics(output)}"
        for index, number in output.top:
            yield f"            {index:>6}  {number:.6g}"


def _statistics(output: OutputFacts) -> str:
    strange = f"  {output.not_finite} not finite" if output.not_finite else ""
    if output.minimum is None or output.mean is None or output.maximum is None:
        return strange
    return f"  min {output.minimum:.6g}  mean {output.mean:.6g}  max {output.maximum:.6g}{strange}"


def _times(facts: RunFacts) -> Iterator[str]:
    times = facts.times
    runs = len(times.repeats)
    yield f"load      {duration(times.load)}"
    yield f"first     {duration(times.first)} (if shapes are dynamic, this includes compilation)"
    if runs:
        middle, least = duration(median(times.repeats)), duration(min(times.repeats))
        yield f"then      median {middle}, min {least} of {count(runs, 'run')}"


def _where(facts: RunFacts) -> Iterator[str]:
    steps = facts.provenance.steps
    for device in dict.fromkeys(step.device for step in steps):
        seconds = [step.seconds for step in steps if step.device == device]
        yield f"ran on    {device}: {count(len(seconds), 'segment')}, {duration(sum(seconds))} in the last run"
    if not steps:
        yield "ran on    no device: each output is an input or was computed before the run"
    for step in steps:
        if step.failure:
            yield f"fell back segment {step.segment} ran on {step.device}: {step.failure}"


@click.command(cls=ModelCommand)
@parameters.takes_model
@parameters.takes_placing
@parameters.takes_cache
@click.option(
    "--input", "sources", multiple=True, metavar="NAME=FILE|NUMBER|random", callback=parameters.inputs,
    help=("Contents of an input: FILE.npy, a picture, one number, true or false for all elements, or random "
"numbers, which are the default (the same in every run)."),
)  # fmt: skip
@click.option(
    "--repeat",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Number of timed runs after the first one.",
)
@click.option("--save", metavar="DIR", help="Write every output to DIR/NAME.npy.")
@click.option(
    "--profile", metavar="FILE",
    help="Write a trace of events and times to FILE, in JSON for ui.perfetto.dev and chrome://tracing.",
)  # fmt: skip
@parameters.takes_format
def run(
    model: str,
    devices: tuple[str, ...],
    options: parameters.DeviceOptions,
    shapes: parameters.Shapes,
    settings: Options,
    sources: Mapping[str, str],
    repeat: int,
    save: str | None,
    profile: str | None,
    form: str,
) -> None:
    """Run MODEL, and print statistics of its outputs, times and devices.

    A picture given by --input (PNG, JPEG, ...; requires Pillow) is rotated upright, converted to RGB, or to gray for an
    input with one channel, resized to the input's height and width regardless of its proportions, scaled to 0..1
    (except for uint8), and laid out like the input, as [N, C, H, W] or [N, H, W, C].
    """
    chosen, settings = parameters.requests_for(model, devices, options), replace(settings, trace=profile)
    source = parameters.converted(model, settings)
    with parameters.progress("preparing inputs"):
        feed = parameters.feed_of(source, shapes, sources)
    with prints_to_stderr():
        facts = _run(model, source, chosen, settings, feed, repeat)
    if save is not None:
        facts = replace(facts, saved=tuple(map(str, save_outputs(save, facts.outputs))))
    click.echo(parameters.to_json(facts.to_dict()) if form == "json" else to_text(facts))


def _run(
    model: str, source: Any, devices: list[DeviceRequest] | None, options: Options, feed: parameters.Feed, repeat: int
) -> RunFacts:
    started = time.perf_counter()
    with parameters.progress("loading and compiling"):
        session = nnadapter.InferenceSession(source, devices=devices, options=options)
        loaded = time.perf_counter()
    with session:
        with parameters.progress("first run"):
            results = session.run(None, feed.arrays)
        first, repeats, of_steps = time.perf_counter() - loaded, list[float](), list[float]()
        with parameters.progress("running", repeat) as advance:
            for _ in range(repeat):
                run_start = time.perf_counter()
                results = session.run(None, feed.arrays)
                repeats.append(time.perf_counter() - run_start)
                of_steps.append(_provenance(session).seconds)
                advance()
        names = [output.name for output in session.get_outputs()]
        report = session.report()
        return RunFacts(
            model=model,
            devices=session.devices,
            feed=feed,
            outputs=dict(zip(names, results, strict=True)),
            times=Times(loaded - started, first, tuple(repeats)),
            provenance=_provenance(session),
            costs=run_costs(report, min(of_steps, default=None)),
            precision=report.precision_remarks,
            unapplied_plan=tuple(filter(None, plan_file_lines(report))) if _is_unapplied(report) else (),
            profile=None if options.trace is None else os.fspath(options.trace),
        )


def _is_unapplied(report: PartitionReport) -> bool:
    return report.plan_file is not None and bool(report.plan_file.unmatched_entries)


def _provenance(session: nnadapter.InferenceSession) -> Provenance:
    provenance = session.provenance
    assert provenance is not None, "a run leaves its provenance"
    return provenance


def _against(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...] | None:
    kind = parameters.OneOf(PEERS)
    names = (name.strip() for value in values for name in value.split(","))
    return tuple(kind.convert(name, param, ctx) for name in names) or None


_UNCOMPARED = "not compared with ort, which cannot run a compiled model; give the original model to compare"


@click.command(cls=ModelCommand)
@parameters.takes_model
@parameters.takes_placing
@parameters.takes_cache
@click.option(
    "--against", multiple=True, metavar="ENGINE,...", callback=_against,
    help=f"Engines to compare with: {', '.join(PEERS)} (ort is ONNX Runtime).  [default: ort]",
)  # fmt: skip
@parameters.takes_inputs
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=ROUNDS,
    show_default=True,
    help="Number of rounds; each engine runs once per round.",
)
@parameters.takes_format
def bench(
    model: str,
    devices: tuple[str, ...],
    options: parameters.DeviceOptions,
    shapes: parameters.Shapes,
    settings: Options,
    against: tuple[str, ...] | None,
    sources: Mapping[str, str],
    rounds: int,
    form: str,
) -> None:
    """Compare the speed of MODEL on devices with other inference engines on the CPU.

    All engines run in turns, and medians are compared. The exit code is 1 if no node ran on the devices, or if a device
    fell back to the CPU, because the times are then not those of the devices. A compiled model is timed alone, because
    other engines cannot run it.
    """
    chosen = parameters.requests_for(model, devices, options)
    source = parameters.converted(model, settings)
    is_alone = against is None and kind_of(model) is SourceKind.COMPILED
    if against is None:
        against = () if is_alone else ("ort",)
    with parameters.progress("preparing inputs"):
        feed = parameters.feed_of(source, shapes, sources)
    with prints_to_stderr(), parameters.progress("timing", rounds) as advance:
        result = nnadapter.bench(
            source, chosen, feed.arrays, against=against, options=settings, rounds=rounds, advance=advance
        )
    if is_alone:
        result = replace(result, baselines=(EngineTiming("ort", peer_of("ort").version, failure=_UNCOMPARED),))
    costs = run_costs(result.report, min(result.session.round_seconds))
    if form == "json":
        click.echo(parameters.to_json({**result.to_dict(), "cost": costs}))
    else:
        click.echo("\n".join([str(result), *costs.lines()]))
    if not result.ran_on_devices:
        click.get_current_context().exit(NO)
