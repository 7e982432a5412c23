"""Localization of errors: excerpts of a model, their trial runs, and the search for wrong nodes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from enum import StrEnum
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.accuracy.tolerances import (
    ByPrecision,
    Deviation,
    ValueTolerances,
    deviation,
    largest,
    quantized_values,
    shapes_of,
)
from nnadapter.candidates.atoms import joined, with_atoms, with_own_sources
from nnadapter.candidates.conversions import converted, prepare
from nnadapter.candidates.segments import OnnxParts
from nnadapter.drivers.selection import DeviceRequest, named_requests
from nnadapter.engine.compilation import Compiler
from nnadapter.engine.compiled import Compiled
from nnadapter.engine.provenance import Provenance
from nnadapter.ir.operand import DataType
from nnadapter.onnx.construction import OnnxIndex
from nnadapter.onnx.preparation.default_sizes import default_shapes
from nnadapter.onnx.preparation.prepare import specialize
from nnadapter.onnx.references import inlined
from nnadapter.planning.planner import Planner, prepare_for
from nnadapter.planning.setting import Constraints, SessionDevice, Setting
from nnadapter.process.resources import close_all
from nnadapter.records import dataclass, replace
from nnadapter.rules.values import Ban, Rules
from nnadapter.traces.trace import SILENT
from partition import Graph, GraphError, Node, Step, Value

if TYPE_CHECKING:
    import onnx


Values = Mapping[str, Any]
"""Arrays by name; lists for sequences."""
_SINGLE_ATOM_SUFFIX = " alone"


@dataclass(frozen=True, eq=False, kw_only=True)
class Excerpt:
    """Some atoms of a model as a standalone model."""

    model: onnx.ModelProto
    inputs: tuple[str, ...]
    outputs: Mapping[str, str]
    """Name in the full model -> name in the excerpt."""
    devices: Mapping[str, str]
    """Node -> its device in the full model; nodes on hosts are omitted."""


@dataclass(frozen=True, eq=False)
class Cutting:
    """Model with concrete shapes, to be cut into excerpts."""

    parts: OnnxParts
    graph: Graph
    devices: tuple[str, ...]
    """Device of each atom; an empty text for an atom on a host."""

    def model_node_names(self, atoms: Sequence[int], *, unshared: bool = False) -> tuple[str, ...]:
        """Return the names of the atoms' original nodes; `unshared` omits nodes that several atoms share."""
        return tuple(node.name for node in self.model_nodes(atoms, unshared=unshared))

    def model_nodes(self, atoms: Sequence[int], *, unshared: bool = False) -> tuple[Node, ...]:
        specialized = self.parts.specialized
        positions = [specialized.positions[node] for node in self._positions(atoms)]
        if unshared:
            positions = [position for position in positions if specialized.positions.count(position) == 1]
        return tuple(specialized.model_nodes.nodes[position] for position in dict.fromkeys(positions))

    @cached_property
    def accelerated(self) -> tuple[int, ...]:
        return tuple(atom for atom, device in enumerate(self.devices) if device)

    def nodes(self, atoms: Sequence[int]) -> tuple[Node, ...]:
        return tuple(self.graph.nodes[index] for index in self._positions(atoms))

    def visible(self, atom: int) -> tuple[str, ...]:
        """Return the atom's outputs that are outputs of the model or inputs of other atoms."""
        return self._visible_outputs([atom])

    def size(self, atom: int) -> int:
        return sum(self.graph.value(name).nbytes or 0 for name in self.visible(atom))

    def live(self, border: int) -> frozenset[str]:
        """Return the names of the values before atom `border` that are live: read later or returned by the model."""
        later_nodes = self.nodes(range(border, len(self.devices)))
        needed = {*self.graph.outputs, *(name for node in later_nodes for name in node.reads)}
        return frozenset(needed & {*self.graph.inputs, *self._produced_values(range(border))})

    def dequantized(self, name: str, value: Any) -> Any:
        """Return a tensor's real numbers if it is quantized with constant scalar parameters, otherwise `value`."""
        nodes, producer = self.graph.nodes, self.graph.producer.get(name)
        sources = [nodes[producer]] if producer is not None and nodes[producer].op_type == "QuantizeLinear" else []
        readers = (nodes[at] for at in self.graph.consumers.get(name, ()))
        sources += (node for node in readers if node.op_type == "DequantizeLinear" and node.inputs[0] == name)
        names = filter(None, sources[0].inputs[1:3] if sources else ())
        constants = [self.parts.specialized.constants.get(each, np.empty(0)) for each in names]
        if not constants or any(each.size != 1 for each in constants):
            return value
        scale, *zero_points = (float(each.reshape(())) for each in constants)
        return scale * (value.astype(np.float64) - sum(zero_points))

    def between(self, atoms: Sequence[int], values: Values, *, all_visible: bool = False) -> Excerpt:
        """Return consecutive atoms as an excerpt, with input types from `values`.

        `all_visible` adds the visible values between atoms to the outputs, so that no device fuses the atoms.
        """
        outputs = self._visible_outputs(atoms)
        if all_visible:
            outputs = tuple(dict.fromkeys(name for atom in atoms for name in self.visible(atom)))
        return self._excerpt(atoms, self._read(atoms), outputs, values)

    def side_by_side(self, atoms: Sequence[int], values: Values) -> Excerpt:
        """Return atoms as an excerpt without connections: each atom reads only inputs."""
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
        homes = ((node.name, self.devices[atom]) for atom in atoms for node in self.nodes([atom]))
        return Excerpt(
            model=model,
            inputs=tuple(inputs),
            outputs={name: name for name in outputs},
            devices={name: device for name, device in homes if device},
        )


def cut(
    model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], homes: Mapping[str, str]
) -> tuple[Cutting, Values]:
    """Return `model` prepared for excerpts, and its inputs' defaults. `homes`: node -> device; others run on a host."""
    prepared = prepare(model)
    specialized = with_own_sources(specialize(prepared, default_shapes(prepared, shapes)))
    specialized, _ = with_atoms(specialized, converted(specialized))
    device_of = [_device_of(specialized.model_nodes.nodes[position].name, homes) for position in specialized.positions]
    graph = _parted(specialized.graph, device_of)
    parts = OnnxParts(replace(specialized, graph=graph), OnnxIndex.of(prepared.model))
    devices = tuple(device_of[atom[-1]] for atom in graph.atoms)
    return Cutting(parts, graph, devices), prepared.defaults


def _device_of(name: str, homes: Mapping[str, str]) -> str:
    if name in homes:
        return homes[name]
    body = {device for node, device in homes.items() if node.startswith(f"{name}/")}
    return body.pop() if len(body) == 1 else ""


def _parted(graph: Graph, device_of: Sequence[str]) -> Graph:
    single_device_atoms = [atom for atom in graph.atoms if len({device_of[node] for node in atom}) == 1]
    try:
        return replace(graph, atoms=joined(len(graph.nodes), single_device_atoms))
    except GraphError:
        return replace(graph, atoms=())


def _value(name: str, array: np.ndarray[Any, Any]) -> Value:
    dtype = "string" if array.dtype.kind in "OUS" else array.dtype.name
    return Value(name, dtype, array.shape, array.dtype.itemsize)


def pieces(cutting: Cutting, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of each range of consecutive atoms.

    A range is one atom, or several with at most `most_bytes` of visible outputs.
    """
    first, piece_bytes = 0, 0
    for atom in range(len(cutting.devices)):
        size = cutting.size(atom)
        if atom > first and piece_bytes + size > most_bytes:
            yield first, atom
            first, piece_bytes = atom, 0
        piece_bytes += size
    yield first, len(cutting.devices)


_RETAINED_BOUNDARIES = 6


@dataclass(frozen=True, eq=False, slots=True)
class TrialOutcome:
    """Results of one run of an excerpt."""

    values: Values
    elsewhere: frozenset[str]
    """Nodes that ran on a device other than theirs in the full model."""


class Trials:
    """Runs of excerpts on the devices of a session, without cache or trace."""

    def __init__(self, setting: Setting) -> None:
        self._devices = tuple(map(_bare, setting.devices))
        self._names = [device.name for device in setting.devices if device.accelerates]
        self.compilations = 0

    def run(self, excerpt: Excerpt, input_values: Values) -> TrialOutcome:
        self.compilations += 1
        bans = tuple(self._bans(excerpt))
        values, compiled, provenance = self._run(self._devices, excerpt, input_values, bans)
        return TrialOutcome(values, _elsewhere(compiled, provenance, excerpt, self._names))

    def run_on_host(self, excerpt: Excerpt, values: Values) -> Values:
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
        for node in excerpt.model.graph.node:
            home = excerpt.devices.get(node.name)
            yield from (Ban(device=name, name=node.name) for name in self._names if name != home)


class HostValues:
    """The CPU's values between atoms, computed from the closest earlier boundary in the cache."""

    def __init__(self, cutting: Cutting, trials: Trials, feed: Values) -> None:
        self._cutting, self._trials = cutting, trials
        self._feed = dict(feed)
        self._known: dict[int, Mapping[str, Any]] = {0: self._feed}

    def at(self, border: int) -> Values:
        """Return the values at the boundary before atom `border`: model inputs and live results."""
        if border not in self._known:
            start = max(cached_border for cached_border in self._known if cached_border < border)
            start_values, live = self._known[start], self._cutting.live(border)
            results = self._trials.run_on_host(self._cutting.between(range(start, border), start_values), start_values)
            self._known[border] = {**self._feed, **{n: v for n, v in {**start_values, **results}.items() if n in live}}
            for evicted_border in list(self._known)[1 : len(self._known) - _RETAINED_BOUNDARIES]:
                del self._known[evicted_border]
        return self._known[border]

    def inside(self, first: int, last: int) -> Values:
        """Return the values at `first`, and all visible outputs of the atoms `first`, ..., `last` - 1."""
        start_values = self.at(first)
        every = self._cutting.between(range(first, last), start_values, all_visible=True)
        return {**start_values, **self._trials.run_on_host(every, start_values)}


def _bare(device: SessionDevice) -> SessionDevice:
    return replace(
        device, context=device.context if device.cache is None else device.cache.inner, cache=None, bans=None
    )


def _elsewhere(compiled: Compiled, provenance: Provenance, excerpt: Excerpt, names: Sequence[str]) -> frozenset[str]:
    plan = compiled.partitioning.plan
    ran = {step.segment for step in provenance.steps if not step.failure and step.device in names}
    nodes = {step.segment: [plan.graph.nodes[node].name for node in step.nodes] for step in plan.steps}
    every = {name for segment_nodes in nodes.values() for name in segment_nodes}
    executed_names = {name for segment, segment_nodes in nodes.items() if segment in ran for name in segment_nodes}
    return frozenset(
        name for name in excerpt.devices if not _parts(name, every) or _parts(name, every) - executed_names
    )


def _parts(name: str, nodes: Set[str]) -> Set[str]:
    return {name} if name in nodes else {node for node in nodes if node.startswith(f"{name}/")}


_PIECE_BYTES = 1 << 28
_MOST_HALVES = 32


def first_true(low: int, high: int, test: Callable[[int], bool]) -> int:
    """Bisect for a number in (`low`, `high`] at which `test` becomes true, possibly one of several."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if test(middle) else (middle, high)
    return high


@dataclass(frozen=True, eq=False, slots=True)
class Stretch:
    """Results of consecutive atoms on their devices, and the CPU's for comparison."""

    start: int
    end: int
    excerpt: Excerpt
    feed: Values
    got: Values
    expected: Values
    deviation: Deviation


@dataclass(frozen=True, eq=False, slots=True)
class Piece:
    """Consecutive atoms, with the CPU's values.

    `alone` has each atom's outputs, computed by its device from inputs that the CPU computed.
    """

    first: int
    last: int
    expected: Values
    alone: Mapping[int, Values]


@dataclass(frozen=True, eq=False)
class Search:
    """Search for wrong parts of a model by comparison with the CPU."""

    cutting: Cutting
    tolerances: ValueTolerances
    trials: Trials
    host: HostValues

    def local_errors(
        self, observe: Callable[[Piece], None] = lambda piece: None
    ) -> tuple[Mapping[int, Deviation], tuple[int, ...]]:
        """Return each atom's deviation for inputs from the CPU, and atoms that could not run individually.

        Call `observe` with every piece.
        """
        deviations: dict[int, Deviation] = {}
        unchecked_atoms: list[int] = []
        for first, last in pieces(self.cutting, _PIECE_BYTES):
            atoms = [atom for atom in self.cutting.accelerated if first <= atom < last]
            values = self.host.inside(first, last) if atoms else {}
            alone = dict(self._side_by_side(atoms, values)) if atoms else {}
            unchecked_atoms += [atom for atom in atoms if atom not in alone]
            alone.update(self._run_halved(self._wrong(alone, values), values))
            deviations.update((atom, self._error(atom, got, values)) for atom, got in alone.items())
            observe(Piece(first, last, values, alone))
        return deviations, tuple(unchecked_atoms)

    def accumulated(self) -> Stretch:
        """Return the shortest stretch from the model's start that deviates, by bisection."""
        atoms = self.cutting.accelerated
        stretches: dict[int, Stretch] = {}

        def differs(number: int) -> bool:
            stretches[number] = self.stretch(0, atoms[number] + 1)
            return stretches[number].deviation.beyond > 0

        number = first_true(-1, len(atoms) - 1, differs)
        return stretches.get(number) or self.stretch(0, atoms[number] + 1)

    def shortest_deviating_stretch(self, stretch: Stretch) -> Stretch:
        """Return the shortest deviating stretch that bisection finds with the same end as `stretch`."""
        atoms = [atom for atom in self.cutting.accelerated if atom < stretch.end]
        stretches: dict[int, Stretch] = {}

        def agrees(number: int) -> bool:
            stretches[number] = self.stretch(atoms[number], stretch.end)
            return not stretches[number].deviation.beyond

        number = first_true(0, len(atoms) - 1, agrees) - 1
        return stretches.get(number) or self.stretch(atoms[0], stretch.end)

    def stretch(self, start: int, end: int, *, all_visible: bool = False) -> Stretch:
        """Compare atoms on their devices with the CPU, for inputs from the CPU. `all_visible` prevents fusion."""
        start_values = self.host.at(start)
        excerpt = self.cutting.between(range(start, end), start_values, all_visible=all_visible)
        got, end_values = self.trials.run(excerpt, start_values).values, self.host.at(end)
        expected = {name: end_values[name] for name in got if name in end_values}
        feed = {name: start_values[name] for name in excerpt.inputs}
        return Stretch(start, end, excerpt, feed, got, expected, self._largest(got, expected))

    def _side_by_side(self, atoms: Sequence[int], values: Values) -> Iterator[tuple[int, Values]]:
        """Run unconnected atoms in one model, and yield each with the outputs.

        Atoms that ran on another device are run again in two models; an atom that ran alone is omitted.
        """
        excerpt = self.cutting.side_by_side(atoms, values)
        outcome = self.trials.run(excerpt, values)
        missed = []
        for atom in atoms:
            if {node.name for node in self.cutting.nodes([atom])} & outcome.elsewhere:
                missed.append(atom)
            else:
                yield atom, outcome.values
        if missed and len(atoms) > 1:
            half = (len(missed) + 1) // 2
            for part in (missed[:half], missed[half:]):
                if part:
                    yield from self._side_by_side(part, values)

    def _run_halved(self, atoms: Sequence[int], values: Values) -> Mapping[int, Values]:
        """Run wrong atoms again in smaller models, because a wrong atom may change others' results.

        Each group is halved. The wrong atoms of each half form a later group.
        """
        outputs: dict[int, Values] = {}
        groups = [atoms]
        for group in groups:
            half = len(group) // 2
            for part in (group[:half], group[half:]) if half and len(groups) < _MOST_HALVES else ():
                alone = dict(self._side_by_side(part, values))
                outputs.update(alone)
                groups.append(self._wrong(alone, values))
        return outputs

    def _wrong(self, alone: Mapping[int, Values], values: Values) -> list[int]:
        return sorted(atom for atom, got in alone.items() if self._error(atom, got, values).beyond)

    def _error(self, atom: int, got: Values, values: Values) -> Deviation:
        return self._largest(got, {name: values[name] for name in self.cutting.visible(atom)})

    def _largest(self, got: Values, expected: Values) -> Deviation:
        compared = [
            deviation(name, got[name], expected_value, self.tolerances.of(name))
            for name, expected_value in expected.items()
        ]
        return largest(compared or [Deviation(value="")])


MODEL = "model.onnx"
COMMAND = "command.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFindings:
    """Files that reproduce a deviation."""

    folder: str
    command: str


def save_stretch(
    folder: Path, stretch: Stretch, requests: Sequence[DeviceRequest], relative: float, absolute: float
) -> SavedFindings:
    """Write files that reproduce `stretch`. Raises OSError.

    1. `model.onnx`: the nodes as a standalone model.
    2. `input_0.npy` and so on: the CPU's inputs; `expected_0.npy` and `got_0.npy`: outputs of the CPU and the device.
    3. `command.txt`: the command that shows the difference.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL).write_bytes(stretch.excerpt.model.SerializeToString())
    inputs = _write(folder, "input", stretch.feed)
    _write(folder, "expected", stretch.expected)
    _write(folder, "got", stretch.got)
    devices = {*stretch.excerpt.devices.values()}
    requested = {name: options for name, options in named_requests(requests).items() if name in devices}
    words = ["nnadapter", "compare", str(folder / MODEL), *_device_words(requested)]
    words += [word for name, path in inputs for word in ("--input", f"{name}={path}")]
    words += ["--rtol", f"{relative:g}", "--atol", f"{absolute:g}"]
    command = shlex.join(words)
    (folder / COMMAND).write_text(f"{command}\n")
    return SavedFindings(folder=str(folder), command=command)


def _write(folder: Path, kind: str, values: Values) -> list[tuple[str, Path]]:
    paths = [(name, folder / f"{kind}_{number}.npy") for number, name in enumerate(values)]
    for name, path in paths:
        np.save(path, values[name])
    return paths


def _device_words(requests: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name in requests:
        yield from ("-d", name)
    for name, options in requests.items():
        for option, value in options.items():
            text = ",".join(value) if isinstance(value, (list, tuple)) else str(value)
            yield from ("--option", f"{name}.{option}={text}")


_MOST_TRIED = 8
_GROSS = 10.0
"""Multiple of the tolerance that rounding in fused nodes cannot explain."""


class ErrorCause(StrEnum):
    """Cause of a step's deviation."""

    NODES = "nodes"
    """Individual nodes are wrong."""
    TOGETHER = "together"
    """Nodes are wrong when fused, or could not be checked individually."""
    PROGRAM = "program"
    """The program or this run is wrong; a new program is correct."""
    NOTHING = "nothing"
    """Every node is within tolerance; deviations accumulate."""


@dataclass(frozen=True, eq=False, slots=True)
class ErrorLocation:
    """Result of locating a step's deviation."""

    blame: ErrorCause
    nodes: tuple[str, ...] = ()
    deviation: Deviation | None = None
    stretches: tuple[Stretch, ...] = ()
    reproducer: str = ""
    """Folder of a saved reproducer, or empty."""


def locate(
    setting: Setting, model: onnx.ModelProto, device: str, inputs: Mapping[str, Any], precision: DataType
) -> ErrorLocation:
    """Search for the nodes that make a step deviate on these `inputs`."""
    homes = {node.name: device for node in model.graph.node}
    cutting, defaults = cut(_at(model, inputs), shapes_of(inputs), homes)
    dtypes = {name: value.dtype or "" for name, value in cutting.graph.values.items()}
    allowed = ByPrecision(precision=precision, dtypes=dtypes, quantized=quantized_values(cutting.graph))
    trials = Trials(setting)
    search = Search(cutting, allowed, trials, HostValues(cutting, trials, {**defaults, **inputs}))
    errors, unchecked = search.local_errors()
    beyond = [atom for atom, error in sorted(errors.items()) if error.beyond]
    if len(beyond) <= _MOST_TRIED:
        stretches = tuple(
            filter(lambda stretch: stretch.deviation.beyond, (search.stretch(at, at + 1) for at in beyond))
        )
        if stretches:
            return _located(ErrorCause.NODES, cutting, stretches)
    full_stretch = search.stretch(0, len(cutting.devices))
    if not full_stretch.deviation.beyond:
        return ErrorLocation(ErrorCause.PROGRAM)
    if len(beyond) > _MOST_TRIED:
        return _located(ErrorCause.TOGETHER, cutting, (full_stretch,))
    accumulated_stretch = search.accumulated()
    joint = search.shortest_deviating_stretch(accumulated_stretch)
    inside = set(range(joint.start, joint.end))
    # rounding cannot explain that finite values became NaN or infinite
    is_no_number = _is_real(cutting, joint) and joint.deviation.tolerances == inf
    if not inside.isdisjoint(unchecked) or is_no_number or _only_fused(search, cutting, joint):
        return _located(ErrorCause.TOGETHER, cutting, (joint,))
    return ErrorLocation(ErrorCause.NOTHING, deviation=joint.deviation)


def _is_real(cutting: Cutting, joint: Stretch) -> bool:
    value = cutting.graph.values.get(joint.deviation.value)
    return value is not None and "float" in (value.dtype or "")


def _only_fused(search: Search, cutting: Cutting, joint: Stretch) -> bool:
    is_gross = _is_real(cutting, joint) and joint.deviation.tolerances > _GROSS and not quantized_values(cutting.graph)
    return is_gross and not search.stretch(joint.start, joint.end, all_visible=True).deviation.beyond


def _located(blame: ErrorCause, cutting: Cutting, stretches: Sequence[Stretch]) -> ErrorLocation:
    atoms = [atom for stretch in stretches for atom in range(stretch.start, stretch.end)]
    worst = max((stretch.deviation for stretch in stretches), key=lambda stretch: stretch.tolerances)
    return ErrorLocation(blame, cutting.model_node_names(atoms), worst, tuple(stretches))


def _at(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> onnx.ModelProto:
    sized = type(model)()
    sized.CopyFrom(model)
    del sized.graph.value_info[:]
    for row in sized.graph.input:
        if row.name in inputs and row.type.HasField("tensor_type"):
            shape = row.type.tensor_type.shape
            del shape.dim[:]
            for size in shapes_of({row.name: inputs[row.name]}).get(row.name, ()):
                shape.dim.add().dim_value = size
    for row in sized.graph.output:
        if row.type.HasField("tensor_type"):
            row.type.tensor_type.ClearField("shape")
    return sized
