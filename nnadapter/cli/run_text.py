"""The facts of `nnadapter run`, as text and as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from nnadapter.cli.inputs import Feed
from nnadapter.cli.outputs import OutputFacts, dtype_name
from nnadapter.cli.run_costs import RunCosts
from nnadapter.reports.units import duration
from nnadapter.running.provenance import Provenance


@dataclass(frozen=True, slots=True)
class Times:
    """Durations, in seconds."""

    load: float
    """Reading, preparing and, where the model fixes its shapes, compiling."""
    first: float
    """The first run, with compiling where it was not done before."""
    repeats: tuple[float, ...]
    """The runs after it."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data; median and minimum are null where nothing was repeated."""
        return {
            "load": self.load,
            "first": self.first,
            "repeats": list(self.repeats),
            "median": median(self.repeats) if self.repeats else None,
            "minimum": min(self.repeats, default=None),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Everything that is printed."""

    model: str
    devices: tuple[str, ...]
    feed: Feed
    outputs: tuple[OutputFacts, ...]
    times: Times
    provenance: Provenance
    """Of the last run."""
    costs: RunCosts
    saved: tuple[str, ...]
    profile: str | None = None
    """The file of the trace, if one was written."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data.

        `model`, `devices`; `inputs`: name, dtype, shape, source; `outputs`: see `OutputFacts`; `seconds`: see `Times`;
        `steps` of the last run: segment, device, seconds, failure; `fell_back`; `cost`: see `RunCosts`; `saved`:
        paths; `profile`: a path, or null.
        """
        feed = self.feed
        return {
            "model": self.model,
            "devices": list(self.devices),
            "inputs": [
                {"name": name, "dtype": dtype_name(array), "shape": list(array.shape), "source": feed.sources[name]}
                for name, array in feed.arrays.items()
            ],
            "outputs": [output.to_dict() for output in self.outputs],
            "seconds": self.times.to_dict(),
            "steps": [
                {"segment": step.segment, "device": step.device, "seconds": step.seconds, "failure": step.failure}
                for step in self.provenance.steps
            ],
            "fell_back": self.provenance.fell_back,
            "cost": self.costs.to_dict(),
            "saved": list(self.saved),
            "profile": self.profile,
        }


def to_text(facts: RunFacts) -> str:
    """Return the facts as lines of text."""
    return "\n".join(line for part in _PARTS for line in part(facts))


def _head(facts: RunFacts) -> Iterator[str]:
    yield f"model     {facts.model}"
    yield f"devices   {', '.join(facts.devices)}"
    for name, array in facts.feed.arrays.items():
        yield f"input     {name}  {dtype_name(array)}{list(array.shape)}  {facts.feed.sources[name]}"


def _outputs(facts: RunFacts) -> Iterator[str]:
    for output in facts.outputs:
        shape = "" if output.shape is None else list(output.shape)
        yield f"output    {output.name}  {output.dtype}{shape}{_statistics(output)}"
        for index, value in output.top:
            yield f"            {index:>6}  {value:.6g}"


def _statistics(output: OutputFacts) -> str:
    strange = f"  {output.not_finite} not finite" if output.not_finite else ""
    if output.minimum is None or output.mean is None or output.maximum is None:
        return strange
    return f"  min {output.minimum:.6g}  mean {output.mean:.6g}  max {output.maximum:.6g}{strange}"


def _times(facts: RunFacts) -> Iterator[str]:
    times = facts.times
    runs = len(times.repeats)
    yield f"load      {duration(times.load)}"
    yield f"first     {duration(times.first)} (compiling included where shapes were open)"
    if runs:
        counted = f"{runs} runs" if runs > 1 else "1 run"
        middle, least = duration(median(times.repeats)), duration(min(times.repeats))
        yield f"then      median {middle}, min {least} of {counted}"


def _where(facts: RunFacts) -> Iterator[str]:
    steps = facts.provenance.steps
    for device in dict.fromkeys(step.device for step in steps):
        seconds = [step.seconds for step in steps if step.device == device]
        counted = f"{len(seconds)} segments" if len(seconds) > 1 else "1 segment"
        yield f"ran on    {device}: {counted}, {duration(sum(seconds))} in the last run"
    if not steps:
        yield "ran on    no device: each output is an input or was known before the run"
    for step in steps:
        if step.failure:
            yield f"fell back segment {step.segment} ran on {step.device}: {step.failure}"


def _costs(facts: RunFacts) -> Iterator[str]:
    yield from facts.costs.lines()


def _saved(facts: RunFacts) -> Iterator[str]:
    yield from (f"saved     {path}" for path in facts.saved)


def _profile(facts: RunFacts) -> Iterator[str]:
    if facts.profile is not None:
        yield f"profile   {facts.profile}; open it in https://ui.perfetto.dev or chrome://tracing"


_PARTS = (_head, _outputs, _times, _where, _costs, _saved, _profile)
