"""Units and their alternatives, and sessions for configurations: a choice of one alternative per unit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.costs.calibrator import Stopwatch
from nnadapter.drivers.capability import ComputePrecision, Precision
from nnadapter.drivers.registry import open_device
from nnadapter.drivers.selection import CPU, DeviceRequest, named_requests, requests_of
from nnadapter.errors import RulesError
from nnadapter.ir.operand import Array
from nnadapter.onnx.graphs import read_graph
from nnadapter.options import Options
from nnadapter.quantization.calibration import Distribution, with_outputs
from nnadapter.quantization.products import FloatModel, Product
from nnadapter.quantization.qdq import WEIGHTS_ONLY, Way, bias_shifts, quantize_nodes
from nnadapter.quantization.quantize import calibrate, quantizable
from nnadapter.records import dataclass, replace
from nnadapter.rules import Ban, Pin, Rules
from nnadapter.rules.application import Selector
from nnadapter.session.ahead_of_time import partition_report
from nnadapter.session.session import InferenceSession

if TYPE_CHECKING:
    import onnx

MOST_UNITS = 96
SIMULATED_TIME = "simulated_us"
"""Name of a segment's fact: microseconds by a simulator's clock."""
_TIMED_SAMPLES = 4
_TIMING_S = 0.5
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 200


@dataclass(frozen=True, slots=True)
class Lane:
    """Device at one floating precision."""

    name: str
    options: Mapping[str, Any]
    precision: Precision
    ways: tuple[Way, ...]
    stand_in: DeviceRequest | None = None
    """Device that replaces this one in the search."""

    @property
    def request(self) -> DeviceRequest:
        return self.name, self.options


@dataclass(frozen=True, slots=True)
class Alternative:
    """Lane of a unit, and the way it is quantized."""

    lane: int
    way: Way | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes with the same alternative: one or more products (convolutions or matrix products) and nodes after each."""

    name: str
    nodes: tuple[str, ...]
    products: tuple[str, ...]
    kind: str = ""
    """Kind of the first product. Products of one kind gain similarly by quantization."""


Configuration = tuple[int, ...]
"""Index of the alternative of each unit."""


def lanes_of(
    requests: DeviceRequest | Sequence[DeviceRequest], search_on: DeviceRequest | None = None, *, has_matrices: bool
) -> tuple[Lane, ...]:
    """Return the lanes of devices and of the CPU, which comes last. Raises errors as `InferenceSession` does.

    A request with a precision gives one lane. With `search_on`, this device replaces accelerators in the search.
    """
    lanes: list[Lane] = []
    named_devices = dict(named_requests(requests_of(requests)))
    cpu_options = named_devices.pop(CPU, None)
    for name, options in (*named_devices.items(), (CPU, cpu_options or {})):
        base, _, named = name.partition("@")
        capability = open_device(base).capability
        if not capability.role.accelerates and base != CPU:
            continue
        chosen = named or options.get("precision")
        precisions = (Precision(str(chosen)),) if chosen else capability.floating_precisions or (Precision.FLOAT32,)
        ways = tuple(way for row in capability.precisions for way in _ways(row, smooths=has_matrices))
        if base == CPU and cpu_options is None:
            ways = ()  # the CPU only fills in
        rest = {key: value for key, value in options.items() if key != "precision"}
        for precision in precisions:
            is_only = len(capability.floating_precisions) < 2
            stand_in = None if search_on is None or base == CPU else _stand_in(search_on, precision)
            lanes.append(Lane(base if is_only else f"{base}@{precision.value}", rest, precision, ways, stand_in))
    return tuple(lanes)


def _stand_in(request: DeviceRequest, precision: Precision) -> DeviceRequest:
    (name, options), *_ = named_requests(request).items()
    precisions = open_device(name).capability.floating_precisions
    return (f"{name}@{precision.value}" if precision in precisions and len(precisions) > 1 else name), options


def _ways(row: ComputePrecision, *, smooths: bool) -> Iterator[Way]:
    precision = row.precision
    if precision.is_floating:
        return
    plain = Way(precision=precision, per_channel=row.per_channel, symmetric=not row.asymmetric)
    mse = replace(plain, ranges="mse")
    if precision in WEIGHTS_ONLY:
        yield plain
    elif row.full_graph:
        yield from (replace(way, every_operator=True) for way in (mse, plain))
    else:
        reduced = precision is Precision.W8A8
        for results in (False, True):
            yield replace(mse, results=results)
            if reduced:
                yield replace(mse, results=results, reduced=True)
        yield replace(plain, results=False)
        yield replace(mse, reduced=reduced, every_operator=True)
        if smooths:
            yield replace(mse, smooth=0.75, reduced=reduced, results=False)


def units_of(model: FloatModel, most: int = MOST_UNITS) -> tuple[Unit, ...]:
    """Divide a model into at most `most` units, of one product each if that suffices."""
    products = {product.node: product for product in model.products}
    per_unit = -(-max(1, len(products)) // most)
    units: list[list[str]] = [[]]
    count = 0
    for node in model.model.graph.node:
        if node.name in products:
            if count and count % per_unit == 0:
                units.append([])
            count += 1
        units[-1].append(node.name)
    made = []
    for names in filter(None, units):
        inside = tuple(name for name in names if name in products)
        kind = _kind(model, products[inside[0]]) if inside else ""
        made.append(Unit(inside[0] if inside else names[0], tuple(names), inside, kind))
    return tuple(made)


def _kind(model: FloatModel, product: Product) -> str:
    if not product.weight:
        return f"{product.op_type} of activations"
    is_depthwise = product.op_type == "Conv" and model.array(product.weight).shape[1] == 1
    return f"depthwise {product.op_type}" if is_depthwise else product.op_type


class Workshop:
    """Factory of models and sessions for configurations, which repeats no work for equal ways to quantize."""

    def __init__(
        self, model: FloatModel, lanes: Sequence[Lane], feeds: Sequence[Mapping[str, Array]],
        calibration: Sequence[Mapping[str, Array]], rules: Rules,
    ) -> None:  # fmt: skip
        self.model, self.lanes, self.feeds = model, tuple(lanes), feeds
        self._rules, self._calibration = rules, calibration
        self.units = units_of(model)
        self._known: dict[Way, frozenset[str]] = {}
        self._shifts: dict[Way, dict[str, Array]] = {}
        self.alternatives: list[Alternative] = []
        for at, lane in enumerate(self.lanes):
            self.alternatives.append(Alternative(at))
            self.alternatives += [
                Alternative(at, way) for way in lane.ways if self._quantizable(replace(way, every_operator=False))
            ]

    @cached_property
    def able(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """[units, alternatives] True if there is something to quantize, and rules permit it. Raises RulesError."""
        ways = [alternative.way for alternative in self.alternatives]
        rows = [[way is None or bool(self._nodes(unit, way)) for way in ways] for unit in self.units]
        able = np.array(rows, np.bool_)
        if len(self._rules.pins) + len(self._rules.bans):
            self._apply_rules(able)
        return able

    def _apply_rules(self, able: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        graph = read_graph(self.model.model)
        selector = Selector(graph)
        for rule in self._rules:
            names = {graph.nodes[node].name for node in selector.select(rule)}
            if not names:
                raise RulesError(f"{self._rules.entry_location(rule)} selects nothing: {selector.why_nothing(rule)}")
            units = [unit for unit, facts in enumerate(self.units) if not names.isdisjoint(facts.nodes)]
            meant = np.array([self._is_meant(rule, alternative) for alternative in self.alternatives])
            able[units] &= meant if isinstance(rule, Pin) else ~meant
        stuck = np.flatnonzero(~able.any(axis=1))
        if len(stuck):
            raise RulesError(
                f"rules in {self._rules.source} permit no device and precision for node {self.units[stuck[0]].name!r}; "
                "name another device, or leave a rule out"
            )

    def _is_meant(self, rule: Pin | Ban, alternative: Alternative) -> bool:
        lane = self.lanes[alternative.lane]
        if rule.device not in (None, lane.name, lane.name.partition("@")[0]):
            return False
        precision = lane.precision if alternative.way is None else alternative.way.precision
        return rule.precision in (None, precision)

    def text(self, alternative: Alternative) -> str:
        lane = self.lanes[alternative.lane]
        return lane.precision.value if alternative.way is None else f"{alternative.way} over {lane.precision.value}"

    def is_quantized(self, alternative: int) -> bool:
        return self.alternatives[alternative].way is not None

    def floating(self, alternative: int) -> int:
        """Return the alternative of the same lane that quantizes nothing."""
        return self.alternatives.index(Alternative(self.alternatives[alternative].lane))

    def uniform(self, alternative: int) -> Configuration:
        """Return the configuration with one alternative; units that lack it get its lane's floating alternative."""
        wanted = (alternative, self.floating(alternative))
        return tuple(next((at for at in wanted if able[at]), int(able.argmax())) for able in self.able)

    def quantized(self, configuration: Configuration) -> onnx.ModelProto:
        ways: dict[str, Way] = {}
        shifts: dict[str, Array] = {}
        for unit, at in zip(self.units, configuration, strict=True):
            way = self.alternatives[at].way
            if way is not None:
                names, known = self._nodes(unit, way), self._bias_shifts(way)
                ways.update(dict.fromkeys(names, way))
                shifts.update((name, known[name]) for name in names if name in known)
        if not ways:
            return self.model.model
        return quantize_nodes(self.model, ways, self._values, shifts)

    def requests(self, configuration: Configuration) -> list[DeviceRequest]:
        return [lane.request for lane in self._used(configuration)]

    def device_names(self, configuration: Configuration) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.lanes[self.alternatives[at].lane].name for at in configuration))

    def has_stand_in(self, configuration: Sequence[int]) -> bool:
        return any(lane.stand_in is not None for lane in self._used(configuration))

    def _used(self, configuration: Sequence[int]) -> list[Lane]:
        return [self.lanes[at] for at in sorted({self.alternatives[at].lane for at in configuration})]

    def options(self, configuration: Configuration, model: onnx.ModelProto) -> Options:
        """Return session options that pin units to their lanes."""
        lanes = {self.alternatives[at].lane for at in configuration}
        rules = Rules(pins=tuple(self._pins(configuration, model))) if len(lanes) > 1 else None
        return Options(fallback="allow", rules=rules)

    def open(self, configuration: Configuration, *, on_stand_in: bool = True) -> InferenceSession:
        """Return a session of a configuration, by default on stand-in devices."""
        model, lanes = self.quantized(configuration), self._used(configuration)
        if not on_stand_in or not self.has_stand_in(configuration):
            options = self.options(configuration, model)
            return InferenceSession(model, devices=[lane.request for lane in lanes], options=options)
        requests = {str(lane.stand_in or lane.request): lane.stand_in or lane.request for lane in lanes}
        return InferenceSession(model, devices=[*requests.values()], options=Options(fallback="allow"))

    def flops(self) -> dict[str, int]:
        """Return the FLOP of nodes at the first sample's shapes."""
        shapes = {name: array.shape for name, array in self.feeds[0].items()}
        report = partition_report(self.model.model, CPU, shapes)
        return {node.name: node.flops for node in report.nodes if node.flops}

    def crossings(self) -> Iterator[tuple[int, int, int]]:
        """Yield producing unit, reading unit and bytes of values between units."""
        unit_of = {name: at for at, unit in enumerate(self.units) for name in unit.nodes}
        producers = {name: unit_of[node.name] for node in self.model.model.graph.node for name in node.output if name}
        pairs = dict.fromkeys(
            (name, producers[name], unit_of[node.name])
            for node in self.model.model.graph.node
            for name in node.input
            if name in producers and producers[name] != unit_of[node.name]
        )
        names = [*dict.fromkeys(name for name, _, _ in pairs)]
        if names:
            with InferenceSession(with_outputs(self.model.model, names), devices=CPU) as session:
                values = dict(zip(names, session.run(names, self.feeds[0]), strict=True))
            yield from ((producer, reader, np.asarray(values[name]).nbytes) for name, producer, reader in pairs)

    def _pins(self, configuration: Configuration, model: onnx.ModelProto) -> list[Pin]:
        """Return a pin per node; added nodes go to their first reader's lane."""
        lane_of = {
            name: self.lanes[self.alternatives[at].lane].name
            for unit, at in zip(self.units, configuration, strict=True)
            for name in unit.nodes
        }
        first_reader: dict[str, str] = {}
        for node in reversed(model.graph.node):
            readers = (first_reader[name] for name in node.output if name in first_reader)
            lane = lane_of.setdefault(node.name, next(readers, self.lanes[0].name))
            first_reader.update(dict.fromkeys(node.input, lane))
        return [Pin(device=lane, name=name) for name, lane in lane_of.items()]

    def _nodes(self, unit: Unit, way: Way) -> frozenset[str]:
        return self._quantizable(way).intersection(unit.nodes if way.every_operator else unit.products)

    def _quantizable(self, way: Way) -> frozenset[str]:
        if way not in self._known:
            self._known[way] = frozenset(quantizable(self.model, way))
        return self._known[way]

    @cached_property
    def _values(self) -> dict[str, Distribution]:
        ways = [alternative.way for alternative in self.alternatives if alternative.way is not None]
        way = Way(every_operator=any(way.every_operator for way in ways))
        return calibrate(self.model, dict.fromkeys(self._quantizable(way), way), self._calibration)

    def _bias_shifts(self, way: Way) -> dict[str, Array]:
        if way not in self._shifts:
            ways = dict.fromkeys(self._quantizable(way), way)
            self._shifts[way] = bias_shifts(self.model, ways, self._values, self._calibration)
        return self._shifts[way]


def run_seconds(sessions: Sequence[InferenceSession], feeds: Sequence[Mapping[str, Array]]) -> list[float]:
    """Return each session's seconds per feed: the mean of the feeds' median times. Sessions run in turns."""
    chosen, watch = _timed(feeds), Stopwatch()
    for session in sessions:
        for feed in chosen:
            session.run(None, feed)  # compiles
    turns: list[list[list[float]]] = [[[] for _ in chosen] for _ in sessions]
    started = time.perf_counter()
    for number in range(_MOST_ROUNDS):
        for session, times in zip(sessions, turns, strict=True):
            watch.wait_until_process_idle()  # threads of the last turn may still spin
            for feed, of_feed in zip(chosen, times, strict=True):
                begun = time.perf_counter()
                session.run(None, feed)
                of_feed.append(time.perf_counter() - begun)
        if number + 1 >= _LEAST_ROUNDS and time.perf_counter() - started > _TIMING_S * len(sessions):
            break
    return [float(np.mean([np.median(of_feed) for of_feed in times])) for times in turns]


def simulated_seconds(session: InferenceSession, feeds: Sequence[Mapping[str, Array]]) -> float | None:
    """Return the mean time by the clock of simulated segments; None without them."""
    total = 0.0
    for feed in _timed(feeds):
        session.run(None, feed)
        clocks = {segment.index: segment.facts.get(SIMULATED_TIME) for segment in session.report().segments}
        if not any(isinstance(clock, (int, float)) for clock in clocks.values()) or session.provenance is None:
            return None
        for step in session.provenance.steps:
            clock = clocks.get(step.segment)
            total += clock / 1e6 if isinstance(clock, (int, float)) else step.seconds
    return total / len(_timed(feeds))


def _timed(feeds: Sequence[Mapping[str, Array]]) -> Sequence[Mapping[str, Array]]:
    return feeds[:: -(-len(feeds) // _TIMED_SAMPLES)]
