"""Excerpts of a model, cut between its atoms, and their trial runs on devices and on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.accuracy.tolerances import shapes_of
from nnadapter.candidates.atoms import joined, with_atoms, with_own_sources
from nnadapter.candidates.conversions import converted, prepare
from nnadapter.candidates.segments import OnnxParts
from nnadapter.engine.compilation import Compiler
from nnadapter.engine.compiled import Compiled
from nnadapter.engine.provenance import Provenance
from nnadapter.onnx.construction import OnnxIndex
from nnadapter.onnx.preparation.default_sizes import default_shapes
from nnadapter.onnx.preparation.prepare import specialize
from nnadapter.onnx.references import inlined
from nnadapter.planning.planner import Planner, prepare_for
from nnadapter.planning.setting import Constraints, SessionDevice, Setting
from nnadapter.process.resources import close_all
from nnadapter.rules.values import Ban, Rules
from nnadapter.traces.trace import SILENT
from partition.graph import Graph, GraphError, Node, Value
from partition.plan import Step

if TYPE_CHECKING:
    import onnx


Values = Mapping[str, Any]
"""Arrays by name; lists for sequences."""
_SINGLE_ATOM_SUFFIX = " alone"
"""Behind the name of a value that an atom makes while others read the CPU's."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Excerpt:
    """Some atoms of a model as a model of its own."""

    model: onnx.ModelProto
    inputs: tuple[str, ...]
    outputs: Mapping[str, str]
    """Value of the whole model -> what it is called here."""
    devices: Mapping[str, str]
    """Node -> the device that has it in the whole model; hosts left out."""


@dataclass(frozen=True, eq=False)
class Cutting:
    """A model for the shapes in hand, and where the nodes of its atoms run."""

    parts: OnnxParts
    graph: Graph
    devices: tuple[str, ...]
    """Per atom, its device; empty where nodes of it run on a host."""

    def model_node_names(self, atoms: Sequence[int], *, unshared: bool = False) -> tuple[str, ...]:
        """The model's own nodes that these atoms are; `unshared`: without those that other atoms repeat."""
        specialized = self.parts.specialized
        positions = [specialized.positions[node] for node in self._positions(atoms)]
        if unshared:
            positions = [each for each in positions if specialized.positions.count(each) == 1]
        return tuple(dict.fromkeys(specialized.model_nodes.nodes[position].name for position in positions))

    @cached_property
    def accelerated(self) -> tuple[int, ...]:
        """The atoms that run on devices other than hosts, ascending."""
        return tuple(atom for atom, device in enumerate(self.devices) if device)

    def nodes(self, atoms: Sequence[int]) -> tuple[Node, ...]:
        """The nodes of these atoms."""
        return tuple(self.graph.nodes[index] for index in self._positions(atoms))

    def visible(self, atom: int) -> tuple[str, ...]:
        """The values that others than the atom itself read, or nobody but the caller of the model."""
        return self._visible_outputs([atom])

    def size(self, atom: int) -> int:
        """Bytes of what is visible of the atom, as far as that is known before the run."""
        return sum(self.graph.value(name).nbytes or 0 for name in self.visible(atom))

    def live(self, border: int) -> frozenset[str]:
        """The values that are made before the atom at `border` and needed from there on."""
        later_nodes = self._positions(range(border, len(self.devices)))
        needed = {name for node in later_nodes for name in self.graph.nodes[node].reads} | set(self.graph.outputs)
        produced_names = {
            name for node in self._positions(range(border)) for name in self.graph.nodes[node].outputs if name
        }
        return frozenset(needed & (produced_names | set(self.graph.inputs)))

    def between(self, atoms: Sequence[int], values: Values, *, all_visible: bool = False) -> Excerpt:
        """Atoms that follow each other.

        Args:
            atoms: which.
            values: contents of the values that they read from others, whose types are taken.
            all_visible: give what any atom makes for another, not only what leaves them all.
        """
        outputs = self._visible_outputs(atoms)
        if all_visible:
            outputs = tuple(dict.fromkeys(name for atom in atoms for name in self.visible(atom)))
        return self._excerpt(atoms, self._read(atoms), outputs, values)

    def side_by_side(self, atoms: Sequence[int], values: Values) -> Excerpt:
        """The same atoms, none of which reads what another makes: they read inputs of these names in its place."""
        inputs = tuple(dict.fromkeys(name for atom in atoms for name in self._read([atom])))
        outputs = tuple(name for atom in atoms for name in self.visible(atom))
        excerpt = self._excerpt(atoms, inputs, outputs, values)
        home = {name: atom for atom in atoms for node in self.nodes([atom]) for name in node.outputs if name}
        atom_of = [self.graph.atom_of[node] for node in self._positions(atoms)]
        for proto, atom in zip(excerpt.model.graph.node, atom_of, strict=True):
            proto.input[:] = [name + _SINGLE_ATOM_SUFFIX if home.get(name) == atom else name for name in proto.input]
            proto.output[:] = [name and name + _SINGLE_ATOM_SUFFIX for name in proto.output]
        for output in excerpt.model.graph.output:
            output.name += _SINGLE_ATOM_SUFFIX
        return replace(excerpt, outputs={name: name + _SINGLE_ATOM_SUFFIX for name in outputs})

    def _positions(self, atoms: Sequence[int]) -> list[int]:
        return sorted(node for atom in atoms for node in self.graph.atoms[atom])

    def _produced_values(self, atoms: Sequence[int]) -> list[str]:
        return [name for node in self.nodes(atoms) for name in node.outputs if name]

    def _read(self, atoms: Sequence[int]) -> tuple[str, ...]:
        inside = {*self._produced_values(atoms), *self.graph.constants}
        return tuple(dict.fromkeys(name for node in self.nodes(atoms) for name in node.reads if name not in inside))

    def _visible_outputs(self, atoms: Sequence[int]) -> tuple[str, ...]:
        members = set(self._positions(atoms))
        outputs, consumers = set(self.graph.outputs), self.graph.consumers
        return tuple(
            n for n in self._produced_values(atoms) if n in outputs or not members.issuperset(consumers.get(n, ()))
        )

    def _excerpt(self, atoms: Sequence[int], inputs: Sequence[str], outputs: Sequence[str], values: Values) -> Excerpt:
        nodes = self.nodes(atoms)
        step = Step(
            segment=0,
            device="",
            nodes=tuple(self._positions(atoms)),
            inputs=tuple(inputs),
            constants=tuple(dict.fromkeys(n for node in nodes for n in node.reads if n in self.graph.constants)),
            outputs=tuple(outputs),
            released=(),
        )
        typed = {name: _value(name, values[name]) for name in inputs if isinstance(values.get(name), np.ndarray)}
        graph = self.graph.revalued({**self.graph.values, **typed})
        specialized = replace(self.parts.specialized, graph=graph)
        model = inlined(OnnxParts(specialized, self.parts.index).part(step).model)
        for proto, node in zip(model.graph.node, nodes, strict=True):
            proto.name = node.name
        homes = {self.graph.nodes[n].name: self.devices[atom] for atom in atoms for n in self.graph.atoms[atom]}
        return Excerpt(
            model=model,
            inputs=tuple(inputs),
            outputs={name: name for name in outputs},
            devices={name: device for name, device in homes.items() if device},
        )


def cut(
    model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], homes: Mapping[str, str]
) -> tuple[Cutting, Values]:
    """Return `model` ready to be cut, and what its inputs hold that need not be fed.

    Args:
        model: the model.
        shapes: of what is fed.
        homes: node of the model, or of a function's body that ran in its place -> its device, hosts left out.
    """
    prepared = prepare(model)
    specialized = with_own_sources(specialize(prepared, default_shapes(prepared, shapes)))
    specialized, _ = with_atoms(specialized, converted(specialized))
    device_of = [_device_of(specialized.model_nodes.nodes[position].name, homes) for position in specialized.positions]
    graph = _parted(specialized.graph, device_of)
    parts = OnnxParts(replace(specialized, graph=graph), OnnxIndex.of(prepared.model))
    devices = tuple(device_of[atom[-1]] for atom in graph.atoms)
    return Cutting(parts, graph, devices), prepared.defaults


def _device_of(name: str, homes: Mapping[str, str]) -> str:
    """The device of a node, or of all the nodes of its body."""
    if name in homes:
        return homes[name]
    body = {device for node, device in homes.items() if node.startswith(f"{name}/")}
    return body.pop() if len(body) == 1 else ""


def _parted(graph: Graph, device_of: Sequence[str]) -> Graph:
    """The graph without those atoms that run on several devices."""
    single_device_atoms = [atom for atom in graph.atoms if len({device_of[node] for node in atom}) == 1]
    try:
        return replace(graph, atoms=joined(len(graph.nodes), single_device_atoms))
    except GraphError:
        return replace(graph, atoms=())


def _value(name: str, array: np.ndarray[Any, Any]) -> Value:
    dtype = "string" if array.dtype.kind in "OUS" else array.dtype.name
    return Value(name, dtype, array.shape, array.dtype.itemsize)


def pieces(cutting: Cutting, most_bytes: int) -> Iterator[tuple[int, int]]:
    """First atom and the one behind the last of parts whose visible values fit in so many bytes, or of one atom."""
    first, piece_bytes = 0, 0
    for atom in range(len(cutting.devices)):
        size = cutting.size(atom)
        if atom > first and piece_bytes + size > most_bytes:
            yield first, atom
            first, piece_bytes = atom, 0
        piece_bytes += size
    yield first, len(cutting.devices)


_RETAINED_BOUNDARIES = 6
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
            for evicted_border in list(self._known)[1 : len(self._known) - _RETAINED_BOUNDARIES]:
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
