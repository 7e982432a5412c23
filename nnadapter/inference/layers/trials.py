"""Runs excerpts of a model, on the devices and on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from nnadapter.drivers.onnxruntime.values import declared
from nnadapter.drivers.selection import CPU, HOSTS, DeviceRequest
from nnadapter.inference.layers.cutting import Cutting, Excerpt, Values
from nnadapter.inference.session import InferenceSession
from nnadapter.options import Options
from nnadapter.rules.values import Ban, Rules

_HELD = 6
"""Borders whose values are held."""


@dataclass(frozen=True, eq=False, slots=True)
class TrialOutcome:
    """What one run of an excerpt gave."""

    values: Values
    elsewhere: frozenset[str]
    """Nodes that did not run on the device that has them in the whole model."""


class Trials:
    """The devices; what is compiled for them is counted.

    Args:
        requests: the devices.
        names: what they are called, without hosts.
        options: those of the comparison. Excerpts are placed as the whole model was.
    """

    def __init__(self, requests: Sequence[DeviceRequest], names: Sequence[str], options: Options) -> None:
        self._requests = requests
        self._names = names
        self._options = replace(options, policy="priority", plan=None, fallback="allow", rules=Rules())
        self.compilations = 0

    def run(self, excerpt: Excerpt, known: Values) -> TrialOutcome:
        """Run an excerpt on the devices."""
        self.compilations += 1
        options = replace(self._options, rules=Rules(bans=tuple(self._bans(excerpt))))
        with InferenceSession(excerpt.model, devices=self._requests, options=options) as session:
            results = session.run(list(excerpt.outputs.values()), {name: known[name] for name in excerpt.inputs})
            return TrialOutcome(dict(zip(excerpt.outputs, results, strict=True)), self._elsewhere(session, excerpt))

    def _bans(self, excerpt: Excerpt) -> Iterator[Ban]:
        """What keeps every node off the devices that do not have it in the whole model."""
        for node in excerpt.model.graph.node:
            home = excerpt.devices.get(node.name)
            yield from (Ban(device=name, name=node.name) for name in self._names if name != home)

    def _elsewhere(self, session: InferenceSession, excerpt: Excerpt) -> frozenset[str]:
        provenance = session.provenance
        assert provenance is not None, "a run leaves its provenance"
        ran = {step.segment for step in provenance.steps if not step.failure and step.device not in HOSTS}
        segments = session.report().segments
        every = {node for segment in segments for node in segment.nodes}
        there = {node for segment in segments if segment.index in ran for node in segment.nodes}
        return frozenset(name for name in excerpt.devices if not _parts(name, every) or _parts(name, every) - there)


class HostValues:
    """The CPU's values at borders, each computed from the nearest one before that is known."""

    def __init__(self, cutting: Cutting, feed: Values) -> None:
        self._cutting = cutting
        self._feed = dict(feed)
        self._known: dict[int, Mapping[str, Any]] = {0: self._feed}

    def at(self, border: int) -> Values:
        """What is live there, and what was fed."""
        if border not in self._known:
            start = max(known for known in self._known if known < border)
            before, live = self._known[start], self._cutting.live(border)
            made = run_on_cpu(self._cutting.between(range(start, border), before), before)
            self._known[border] = {**self._feed, **{n: v for n, v in {**before, **made}.items() if n in live}}
            for old in list(self._known)[1 : len(self._known) - _HELD]:
                del self._known[old]
        return self._known[border]

    def inside(self, first: int, last: int) -> Values:
        """What is live at the border before atom `first`, and all that those before `last` make for others."""
        before = self.at(first)
        return {**before, **run_on_cpu(self._cutting.between(range(first, last), before, all_visible=True), before)}


def _parts(name: str, nodes: Set[str]) -> Set[str]:
    """A node, or those of its body that stand in its place; none where it was left out."""
    return {name} if name in nodes else {node for node in nodes if node.startswith(f"{name}/")}


def run_on_cpu(excerpt: Excerpt, known: Values) -> Values:
    """Run an excerpt on the CPU alone."""
    if not excerpt.outputs:
        return {}
    with InferenceSession(excerpt.model, devices=CPU) as session:
        results = results_of(session, {name: known[name] for name in excerpt.inputs})
        made = {output.name: result for output, result in zip(session.get_outputs(), results, strict=True)}
        return {name: made[inner] for name, inner in excerpt.outputs.items()}


def results_of(session: InferenceSession, feed: Values) -> list[Any]:
    """What a session on the CPU alone gives, in the types that sessions on devices give."""
    results = zip(session.run(None, feed), session.get_outputs(), strict=True)
    return [declared(result, output.type) for result, output in results]
