"""Runs excerpts of a model, on the devices of a setting and on its host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from nnadapter.accuracy.cutting import Cutting, Excerpt, Values
from nnadapter.accuracy.tolerances import shapes_of
from nnadapter.planning.constraints import Constraints
from nnadapter.planning.planner import Planner, prepare_for
from nnadapter.planning.setting import SessionDevice, Setting
from nnadapter.process.closing import close_all
from nnadapter.rules.values import Ban, Rules
from nnadapter.running.compilation import Compiler
from nnadapter.running.compiled import Compiled
from nnadapter.running.provenance import Provenance
from nnadapter.traces.trace import SILENT

_HELD = 6
"""Borders whose values are held."""


@dataclass(frozen=True, eq=False, slots=True)
class TrialOutcome:
    """What one run of an excerpt gave."""

    values: Values
    elsewhere: frozenset[str]
    """Nodes that did not run on the device that has them in the whole model."""


class Trials:
    """The devices of a setting; what is compiled for them is counted.

    Excerpts are placed as the whole model was. Nothing of them is kept in a cache, or traced.

    Args:
        setting: whose devices are open.
    """

    def __init__(self, setting: Setting) -> None:
        self._devices = tuple(map(_bare, setting.devices))
        self._names = [device.name for device in setting.devices if device.accelerates]
        self.compilations = 0

    def run(self, excerpt: Excerpt, input_values: Values) -> TrialOutcome:
        """Run an excerpt on the devices."""
        self.compilations += 1
        bans = tuple(self._bans(excerpt))
        values, compiled, provenance = self._run(self._devices, excerpt, input_values, bans)
        return TrialOutcome(values, _elsewhere(compiled, provenance, excerpt, frozenset(self._names)))

    def run_on_host(self, excerpt: Excerpt, values: Values) -> Values:
        """Run an excerpt on the host alone."""
        if not excerpt.outputs:
            return {}
        hosts = tuple(device for device in self._devices if not device.accelerates)
        return self._run(hosts, excerpt, values, ())[0]

    def _run(
        self, devices: tuple[SessionDevice, ...], excerpt: Excerpt, values: Values, bans: tuple[Ban, ...]
    ) -> tuple[Values, Compiled, Provenance]:
        setting = Setting(devices, Constraints(fallback="allow", rules=Rules(bans=bans)), SILENT)
        planner, feed = Planner(prepare_for(excerpt.model, setting), setting), {n: values[n] for n in excerpt.inputs}
        compiler = Compiler(setting)
        compiled = compiler.compile(planner, planner.judge(shapes_of(feed)))
        try:
            inputs = {**planner.prepared.defaults, **feed}
            results, provenance = compiled.plan.run(inputs, list(excerpt.outputs.values()))
            return dict(zip(excerpt.outputs, results, strict=True)), compiled, provenance
        finally:
            close_all([compiled, compiler.arenas])
            planner.clear()

    def _bans(self, excerpt: Excerpt) -> Iterator[Ban]:
        """What keeps every node off the devices that do not have it in the whole model."""
        for node in excerpt.model.graph.node:
            home = excerpt.devices.get(node.name)
            yield from (Ban(device=name, name=node.name) for name in self._names if name != home)


class HostValues:
    """The CPU's values at borders, each computed from the nearest one before that is known."""

    def __init__(self, cutting: Cutting, trials: Trials, feed: Values) -> None:
        self._cutting, self._trials = cutting, trials
        self._feed = dict(feed)
        self._known: dict[int, Mapping[str, Any]] = {0: self._feed}

    def at(self, border: int) -> Values:
        """What is live there, and what was fed."""
        if border not in self._known:
            start = max(cached_border for cached_border in self._known if cached_border < border)
            start_values, live = self._known[start], self._cutting.live(border)
            results = self._trials.run_on_host(self._cutting.between(range(start, border), start_values), start_values)
            self._known[border] = {**self._feed, **{n: v for n, v in {**start_values, **results}.items() if n in live}}
            for evicted_border in list(self._known)[1 : len(self._known) - _HELD]:
                del self._known[evicted_border]
        return self._known[border]

    def inside(self, first: int, last: int) -> Values:
        """What is live at the border before atom `first`, and all that those before `last` make for others."""
        start_values = self.at(first)
        every = self._cutting.between(range(first, last), start_values, all_visible=True)
        return {**start_values, **self._trials.run_on_host(every, start_values)}


def _bare(device: SessionDevice) -> SessionDevice:
    """The device without its cache, and without bans: what is tried is tried, and nothing comes of it for others."""
    return replace(
        device, context=device.context if device.cache is None else device.cache.inner, cache=None, bans=None
    )


def _elsewhere(compiled: Compiled, provenance: Provenance, excerpt: Excerpt, names: Set[str]) -> frozenset[str]:
    plan = compiled.partitioning.plan
    ran = {step.segment for step in provenance.steps if not step.failure and step.device in names}
    nodes = {step.segment: [plan.graph.nodes[node].name for node in step.nodes] for step in plan.steps}
    every = {name for segment_nodes in nodes.values() for name in segment_nodes}
    executed_names = {name for segment, segment_nodes in nodes.items() if segment in ran for name in segment_nodes}
    return frozenset(
        name for name in excerpt.devices if not _parts(name, every) or _parts(name, every) - executed_names
    )


def _parts(name: str, nodes: Set[str]) -> Set[str]:
    """A node, or those of its body that stand in its place; none where it was left out."""
    return {name} if name in nodes else {node for node in nodes if node.startswith(f"{name}/")}
