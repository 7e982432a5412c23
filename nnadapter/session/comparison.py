"""Comparison of devices with the CPU, output by output and layer by layer: `nnadapter.compare`."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.accuracy import localization
from nnadapter.accuracy.layers import LayerDistance, LayerMeasurement, distance_of_values, layer_lines, worst_first
from nnadapter.accuracy.tolerances import Deviation, Tolerance, Tolerances, deviation, quantized_values, shapes_of
from nnadapter.candidates.conversions import prepare
from nnadapter.candidates.random_feeds import random_feed
from nnadapter.drivers.onnxruntime.failures import FEWER_OPTIMIZATIONS, unoptimized
from nnadapter.drivers.onnxruntime.values import declared
from nnadapter.drivers.selection import CPU, HOSTS, DeviceRequest, requests_of
from nnadapter.engine.file_loading import NO_STORED_PROGRAM
from nnadapter.engine.observed import KEEPING_NOTES
from nnadapter.engine.provenance import Provenance
from nnadapter.errors import InvalidOptionError, NNAdapterError
from nnadapter.files.atomic_files import check_writable
from nnadapter.ir.operand import Array
from nnadapter.onnx.files import load_model
from nnadapter.onnx.preparation.default_sizes import default_shapes
from nnadapter.onnx.preparation.prepare import specialize
from nnadapter.onnx.quantized_layers import QuantizedLayers, with_outputs
from nnadapter.onnx.references import inlined
from nnadapter.optional_parts import optional_part
from nnadapter.options import Options, options_from
from nnadapter.planning.setting import Setting, open_setting
from nnadapter.records import dataclass, replace
from nnadapter.report.layer_chart import to_page, to_svg
from nnadapter.report.report import PartitionReport
from nnadapter.report.sections import count, first_of
from nnadapter.rules import Pin, Rules, read_rules
from nnadapter.session.session import InferenceSession

if TYPE_CHECKING:
    import onnx

    from nnadapter.session.session import ModelSource


@dataclass(frozen=True, eq=False, kw_only=True)
class ComparedRun:
    """Model, devices and feed of a comparison, and the CPU's outputs."""

    model: ModelSource
    requests: Sequence[DeviceRequest]
    options: Options
    tolerances: Tolerances
    feed: localization.Values
    expected: localization.Values
    agrees: bool
    report: PartitionReport


_LISTED = 10
_MOST_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Consecutive nodes on devices, and their largest difference from the CPU."""

    nodes: tuple[str, ...]
    op_types: tuple[str, ...]
    devices: tuple[str, ...]
    deviation: Deviation

    def __str__(self) -> str:
        off, length = self.deviation, len(self.nodes)
        kinds, places = (", ".join(dict.fromkeys(names)) for names in (self.op_types, self.devices))
        ends = ", ".join(map(repr, self.nodes)) if length < 4 else f"{self.nodes[0]!r} to {self.nodes[-1]!r}"
        kinds = kinds if length < 4 else f"{length} nodes"
        times = "infinitely many" if off.tolerances == inf else f"{off.tolerances:.3g}"
        return f"{ends} ({kinds}) on {places}: {off.value!r} is off by {off.largest_absolute:.3g}, {times} tolerances"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """Rules file with pins to the CPU that make the outputs agree."""

    path: str
    pins: tuple[str, ...]
    agrees: bool
    """False if the outputs differ even with every node on the CPU."""
    compilations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReport:
    """Result of the search for nodes with results other than the CPU's."""

    atoms: int
    outputs_agree: bool
    local_errors: tuple[Finding, ...]
    """Nodes beyond tolerance with inputs computed on the CPU."""
    first_accumulated_error: Finding | None
    """First nodes with results beyond tolerance if the device also computes all nodes before them."""
    shortest_deviating_stretch: Finding | None
    """Nodes that are beyond tolerance together, although none is alone."""
    fused: bool
    """True if the nodes of `shortest_deviating_stretch` differ only when fused."""
    largest: Finding | None
    """Largest local error, within tolerance or not."""
    unchecked: tuple[str, ...]
    """Nodes that the device could not run separately."""
    compilations: int
    """Number of compilations in the search; `saved` and `ruled_out` are not included."""
    saved: localization.SavedFindings | None = None
    ruled_out: RuledOut | None = None
    unwritten: str = ""

    @property
    def first(self) -> Finding | None:
        return next(iter(self.local_errors), None) or self.shortest_deviating_stretch

    def to_dict(self) -> dict[str, Any]:
        first = self.first
        return {**asdict(self), "first": None if first is None else asdict(first)}

    def __str__(self) -> str:
        return "\n".join(f"  {line}" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        if not self.atoms:
            yield "layers: no node ran on a device other than cpu and reference, so nothing was checked"
            return
        yield f"layers: {self.atoms} on devices, {count(self.compilations, 'compilation')}"
        yield from self._culprits()
        if self.local_errors and self.outputs_agree:
            yield "the outputs agree, although an inner node differs"
        if self.first_accumulated_error is not None:
            yield f"the device's own values first differ after {self.first_accumulated_error}"
        if self.unchecked:
            names = first_of([*map(repr, self.unchecked)], _LISTED)
            yield f"not checked alone, because the device did not run it separately: {names}"
        if self.saved is not None:
            yield f"saved in {self.saved.folder}; reproduce it with: {self.saved.command}"
        if self.ruled_out is not None:
            yield _ruled_out(self.ruled_out)
        if self.unwritten:
            yield f"a file could not be written: {self.unwritten}"

    def _culprits(self) -> Iterator[str]:
        if self.local_errors:
            yield f"wrong on its own: {self.local_errors[0]}"
            yield from (f"also wrong on its own: {finding}" for finding in self.local_errors[1:_LISTED])
            if len(self.local_errors) > _LISTED:
                yield f"and {len(self.local_errors) - _LISTED} more"
        if self.shortest_deviating_stretch is not None:
            yield f"{self._how()}: {self.shortest_deviating_stretch}"
        if not self.local_errors and self.largest is not None:
            which = "no node that could be checked alone" if self.unchecked else "no node"
            off = self.largest.deviation.largest_absolute
            nearest = f"largest difference: {self.largest}" if off else "results are exactly equal to the CPU's"
            yield f"{which} is beyond the tolerance on its own; {nearest}"

    def _how(self) -> str:
        stretch = self.shortest_deviating_stretch
        if stretch is not None and not {*stretch.nodes}.isdisjoint(self.unchecked):
            return "wrong, including nodes that could not be checked alone"
        return "wrong only when the device fuses them" if self.fused else "error accumulates over"


def _ruled_out(ruled_out: RuledOut) -> str:
    pins, compilations = count(len(ruled_out.pins), "pin"), count(ruled_out.compilations, "compilation")
    if ruled_out.agrees:
        outcome = f"make{'s' if len(ruled_out.pins) == 1 else ''} the outputs agree"
    else:
        outcome = "do not make the outputs agree, even with every node on the CPU"
    return f"{ruled_out.path}: {pins} to the CPU {outcome}; {compilations}"


_MOST_REMOVALS = 64

Group = Sequence[str]


def rule_out(path: Path, compared: ComparedRun, suspects: Sequence[Group]) -> RuledOut:
    """Write a rules file that pins few nodes to the CPU, so that the outputs agree, and test it. Raises OSError.

    1. Find the fewest of the first `suspects` that suffice, by doubling and bisection.
    2. Remove pins while the outputs agree: half of them, then a quarter, down to single ones.
    """
    trying = _Trying(compared)
    chosen: list[Group] = [] if compared.agrees else without_surplus(_fewest(suspects, trying.agrees), trying.agrees)
    names = tuple(dict.fromkeys(name for group in chosen for name in group))
    path.write_text(_text(names), encoding="utf-8")
    return RuledOut(
        path=str(path), pins=names, agrees=trying.agrees_by(read_rules(path)), compilations=trying.compilations
    )


def without_surplus(pins: list[Group], agrees: Callable[[Sequence[Group]], bool]) -> list[Group]:
    """Remove unneeded pins. Source: A. Zeller, R. Hildebrandt, Simplifying failure-inducing input, 2002."""
    size, budget = len(pins) // 2, _MOST_REMOVALS
    while size and budget > 0:
        start = 0
        while start < len(pins) and budget > 0:
            fewer = pins[:start] + pins[start + size :]
            budget -= 1
            if fewer and agrees(fewer):
                pins = fewer
            else:
                start += size
        size //= 2
    return pins


def _fewest(suspects: Sequence[Group], agrees: Callable[[Sequence[Group]], bool]) -> list[Group]:
    low, high = 0, 1
    while high < len(suspects) and not agrees(suspects[:high]):
        low, high = high, 2 * high
    high = min(high, len(suspects))
    return list(suspects[: localization.first_true(low, high, lambda number: agrees(suspects[:number]))])


class _Trying:
    def __init__(self, compared: ComparedRun) -> None:
        self._compared = compared
        self._rules = Rules() if compared.options.rules is None else read_rules(compared.options.rules)
        self.compilations = 0

    def agrees(self, groups: Sequence[Group]) -> bool:
        return self.agrees_by(Rules(pins=tuple(Pin(device=CPU, name=name) for group in groups for name in group)))

    def agrees_by(self, rules: Rules) -> bool:
        self.compilations += 1
        compared, user_rules = self._compared, self._rules
        options = replace(
            compared.options, rules=replace(user_rules, pins=(*user_rules.pins, *rules.pins)), fallback="allow"
        )
        with InferenceSession(compared.model, devices=compared.requests, options=options) as session:
            got = session.run(list(compared.expected), compared.feed)
        pairs = zip(compared.expected.items(), got, strict=True)
        allowed = compared.tolerances.of
        return not any(deviation(name, actual, expected, allowed(name)).beyond for (name, expected), actual in pairs)


def _text(names: Sequence[str]) -> str:
    head = "# With these nodes on the CPU the outputs agree; found by `nnadapter compare --layers --rules-out`.\n"
    quoted = (json.dumps(name, ensure_ascii=False) for name in names)
    return head + "".join(f'\n[[pin]]\ndevice = "{CPU}"\nname = {name}\n' for name in quoted)


_MOST_VERIFIED = 4


def search_layers(
    compared: ComparedRun, save: str | os.PathLike[str] | None = None, rules_out: str | os.PathLike[str] | None = None
) -> tuple[LayerReport, Sequence[LayerDistance]]:
    """Find the nodes that compute wrong values, and measure the distance of all layers.

    `save` and `rules_out` are as in `compare`.
    """
    with closing(open_setting(compared.requests, compared.options)) as setting:
        return _look(compared, _search(compared, setting), save, rules_out)


def _look(
    compared: ComparedRun,
    search: localization.Search,
    save: str | os.PathLike[str] | None,
    rules_out: str | os.PathLike[str] | None,
) -> tuple[LayerReport, Sequence[LayerDistance]]:
    cutting, measurement = search.cutting, LayerMeasurement(search)
    errors, unchecked = search.local_errors(measurement.add)
    wrong, shown = _verified(search, [atom for atom, error in sorted(errors.items()) if error.beyond])
    stretch = search.accumulated() if errors and not compared.agrees else None
    explained = stretch is None or any(atom < stretch.end for atom in wrong)
    joint = None if stretch is None or explained else search.shortest_deviating_stretch(stretch)
    fused = joint is not None and not search.stretch(joint.start, joint.end, all_visible=True).deviation.beyond
    members = [] if joint is None else [atom for atom in cutting.accelerated if joint.start <= atom < joint.end]
    ranked = sorted(errors, key=lambda atom: errors[atom].tolerances, reverse=True)
    report = LayerReport(
        atoms=len(cutting.accelerated),
        outputs_agree=compared.agrees,
        local_errors=tuple(_finding(cutting, [atom], errors[atom]) for atom in wrong),
        first_accumulated_error=None if stretch is None else _finding(cutting, [stretch.end - 1], stretch.deviation),
        shortest_deviating_stretch=None if joint is None else _finding(cutting, members, joint.deviation),
        fused=fused,
        largest=_finding(cutting, ranked[:1], errors[ranked[0]]) if errors else None,
        unchecked=cutting.model_node_names(unchecked),
        compilations=search.trials.compilations,
    )
    shown, tolerances = shown or joint, compared.tolerances
    suspects = dict.fromkeys([*wrong, *members, *ranked, *cutting.accelerated])
    try:
        if save is not None and shown is not None:
            report = replace(
                report,
                saved=localization.save_stretch(
                    Path(save), shown, compared.requests, tolerances.relative, tolerances.absolute
                ),
            )
        if rules_out is not None:
            report = replace(report, ruled_out=rule_out(Path(rules_out), compared, _pins(cutting, [*suspects])))
    except (OSError, ValueError) as error:  # ValueError: a sequence of different shapes is not an array
        report = replace(report, unwritten=str(error))
    return report, measurement.layers


def _search(compared: ComparedRun, setting: Setting) -> localization.Search:
    homes = {node.name: node.device for node in compared.report.nodes if node.device not in ("", *HOSTS)}
    cutting, defaults = localization.cut(load_model(compared.model), shapes_of(compared.feed), homes)
    base_tolerances = compared.tolerances
    tolerances = replace(
        base_tolerances, quantized=base_tolerances.quantized | quantized_values(cutting.graph) - base_tolerances.outputs
    )
    trials = localization.Trials(setting)
    return localization.Search(
        cutting, tolerances, trials, localization.HostValues(cutting, trials, {**defaults, **compared.feed})
    )


def _verified(search: localization.Search, atoms: Sequence[int]) -> tuple[Sequence[int], localization.Stretch | None]:
    """Run each atom alone until one is wrong.

    Return the atoms without the correct ones, and the result of the wrong one, if any.
    """
    for number, atom in enumerate(atoms[:_MOST_VERIFIED]):
        stretch = search.stretch(atom, atom + 1)
        if stretch.deviation.beyond:
            return atoms[number:], stretch
    return atoms[_MOST_VERIFIED:], None


def _finding(cutting: localization.Cutting, atoms: Sequence[int], error: Deviation) -> Finding:
    return Finding(
        nodes=cutting.model_node_names(atoms),
        op_types=tuple(node.op_type for node in cutting.nodes(atoms)),
        devices=tuple(dict.fromkeys(cutting.devices[atom] for atom in atoms)),
        deviation=error,
    )


def _pins(cutting: localization.Cutting, atoms: Sequence[int]) -> Sequence[Sequence[str]]:
    return [cutting.model_node_names([atom], unshared=True) or cutting.model_node_names([atom]) for atom in atoms]


RELATIVE_TOLERANCE = 1e-3
ABSOLUTE_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDifference:
    """Difference of one output from the CPU's, for one feed."""

    feed: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    largest_absolute: float
    """Largest absolute difference; infinite if one side is not finite, or shapes, types or strings differ."""
    largest_relative: float
    """Largest difference divided by the CPU's nonzero value."""
    beyond: int
    agrees: bool
    steps: int = 0
    """Allowed difference of quantized integers in steps; other integers must be equal."""
    constant: str = ""
    """Reason why agreement proves little: a constant, or equal elements."""
    cpu_differs: bool = False
    """True if graph optimizations change the CPU's value beyond tolerance; the reference is the unoptimized value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReport:
    """Differences of every output of every feed, and the devices that ran the nodes.

    If an output differs and graph optimizations change its value on the CPU, the unoptimized value is the reference, so
    the device is not blamed.
    """

    devices: tuple[str, ...]
    relative_tolerance: float
    absolute_tolerance: float
    differences: tuple[OutputDifference, ...]
    nodes: tuple[Mapping[str, int], ...]
    failures: tuple[str, ...] = ()
    """Notes on fallbacks: work that a device accepted, but something else did."""
    layers: LayerReport | None = None
    layer_distances: tuple[LayerDistance, ...] | None = None
    """Distance of each layer, worst first, if requested."""
    reference: str = CPU
    """Source of the expected values."""

    @property
    def compared(self) -> int:
        """Number of nodes on the compared devices, for the feed with the fewest."""
        return min((sum(map(counts.__getitem__, self._compared_devices)) for counts in self.nodes), default=0)

    @property
    def agrees(self) -> bool:
        """True if nodes ran on the devices for every feed, nothing fell back, and every output agrees."""
        within = all(difference.agrees for difference in self.differences)
        return within and self.compared > 0 and not self.failures

    @property
    def _compared_devices(self) -> tuple[str, ...]:
        return self.devices[: self.devices.index(CPU)] or self.devices

    def to_dict(self) -> dict[str, Any]:
        return {
            "devices": list(self.devices),
            "relative_tolerance": self.relative_tolerance,
            "absolute_tolerance": self.absolute_tolerance,
            "agrees": self.agrees,
            "nodes": [dict(counts) for counts in self.nodes],
            "failures": list(self.failures),
            "reference": self.reference,
            **({} if self.layers is None else {"layers": self.layers.to_dict()}),
            **({} if self.layer_distances is None else {"layer_distances": [*map(asdict, self.layer_distances)]}),
            "outputs": [asdict(difference) for difference in self.differences],
        }

    def __str__(self) -> str:
        tolerance = f"{self.relative_tolerance:g} relative + {self.absolute_tolerance:g}"
        head = f"{', '.join(self.devices)} against {self.reference}, tolerance {tolerance}"
        failures = (f"  fell back: {failure}" for failure in self.failures)
        layers = [] if self.layers is None else [str(self.layers)]
        table = layer_lines(self.layer_distances or (), _MOST_ROWS)
        return "\n".join([self._where(), head, *failures, *map(_line, self.differences), *layers, *table])

    def to_svg(self, title: str = "model") -> str:
        """Return a chart of the SQNR of each layer."""
        return to_svg(self.layer_distances or (), title)

    def to_html(self, title: str = "model") -> str:
        """Return a page with the chart and a table."""
        return to_page(self.layer_distances or (), title, f"{', '.join(self.devices)} against {self.reference}")

    def _where(self) -> str:
        devices = self._compared_devices
        counts = min(self.nodes, key=lambda counts: sum(map(counts.__getitem__, devices)), default=Counter[str]())
        total = sum(counts.values())
        if not self.compared:
            names = ", ".join(devices)
            return f"none of {total} nodes ran on {names}: nothing was compared; `nnadapter report` shows why"
        first, *remaining_devices = devices
        spare = (device for device, number in counts.items() if number and device not in devices)
        ran = f"{counts[first]} of {total} nodes ran on {first}"
        return ", ".join((ran, *(f"{counts[device]} on {device}" for device in (*remaining_devices, *spare))))


def compare(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    devices: DeviceRequest | Sequence[DeviceRequest] = CPU,
    feeds: Mapping[str, Array] | Iterable[Mapping[str, Array]] | None = None,
    *,
    reference: str | os.PathLike[str] | bytes | onnx.ModelProto | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    options: Options | Mapping[str, Any] | None = None,
    relative_tolerance: float = RELATIVE_TOLERANCE,
    absolute_tolerance: float = ABSOLUTE_TOLERANCE,
    layers: bool = False,
    save: str | os.PathLike[str] | None = None,
    rules_out: str | os.PathLike[str] | None = None,
) -> CompareReport:
    """Run `model` on devices and on the CPU alone, and compare every output.

    Args:
        model: path, bytes, or `onnx.ModelProto`.
        devices: as in `InferenceSession`.
        feeds: one feed or several; None for seeded random numbers.
        reference: another model to run on the CPU instead, such as the float model of a quantized one.
        input_shapes: shapes of dynamic inputs for random feeds.
        options: options of the session on the devices.
        relative_tolerance: allowed difference relative to the CPU's value.
        absolute_tolerance: allowed difference in addition to it.
        layers: also measure the distance of each layer, and without `reference` find the nodes that are wrong, by
            running parts of the model.
        save: with `layers`: folder for a small model that reproduces the result.
        rules_out: with `layers`: rules file to write, with few pins that make the outputs agree.

    Raises:
        NNAdapterError: a model, device, feed or file cannot be used.
        InvalidOptionError: a tolerance is negative, or `save` or `rules_out` is passed without `layers` or with a
            `reference`.
    """
    _check_tolerances(relative=relative_tolerance, absolute=absolute_tolerance)
    _check_paths(layers and reference is None, save, rules_out)
    # no checks and no background planning: errors must stay visible, and on the device
    chosen = replace(options_from(options), verify=None, shadow=None, background=False)
    of_parts = replace(chosen, trace=None, cache_dir=False)
    model = optional_part("paddle_model_as_onnx")(model, chosen)
    expected_model = model if reference is None else optional_part("paddle_model_as_onnx")(reference, chosen)
    compared = partial(ComparedRun, model=model, requests=requests_of(devices, of_parts.isolated), options=of_parts)
    gathered = _ComparisonState(compared)
    with (
        InferenceSession(model, devices=devices, options=chosen) as tested,
        InferenceSession(expected_model, devices=CPU) as on_cpu,
    ):
        tolerances: Tolerances | None = None
        names = [output.name for output in tested.get_outputs()]
        for feed in _each_feed(feeds, model, input_shapes):
            results, expected = tested.run(None, feed), results_of(on_cpu, feed, names)
            tolerances = tolerances or _tolerances(model, tested, feed, relative_tolerance, absolute_tolerance)
            judged = _ReferenceValues(names, tolerances, expected)
            if reference is None and judged.differ(results):
                judged.hold_to(_unoptimized_results(model, feed))
            gathered.add(tested, feed, results, judged, tolerances)
        telling = gathered.telling
    found: LayerReport | None = None
    distances: Iterable[LayerDistance] = ()
    if layers and telling is not None:
        if reference is None:
            found, distances = search_layers(telling, save, rules_out)
        else:
            distances = _quantization_distances(telling, expected_model)
    return CompareReport(
        devices=tested.devices,
        relative_tolerance=relative_tolerance,
        absolute_tolerance=absolute_tolerance,
        differences=tuple(gathered.differences),
        nodes=tuple(gathered.nodes),
        failures=tuple(gathered.failures),
        layers=found,
        layer_distances=worst_first(distances) if layers else None,
        reference=CPU if reference is None else f"the reference model on {CPU}",
    )


def _quantization_distances(compared: ComparedRun, reference: ModelSource) -> Iterator[LayerDistance]:
    float_model, model = (inlined(load_model(source)) for source in (reference, compared.model))
    matched, feed = QuantizedLayers(float_model, model), compared.feed
    on_devices = partial(_values, devices=compared.requests, options=replace(compared.options, fallback="allow"))
    expected = {**feed, **_values(float_model, [layer.value for layer in matched.layers], feed)}
    separated, inputs = matched.separated(expected)
    names = [layer.after for layer in matched.layers]
    alone, accumulated = on_devices(separated, names, {**feed, **inputs}), on_devices(matched.model, names, feed)
    home = {node.name: node.device for node in compared.report.nodes}
    for position, layer in enumerate(matched.layers):
        value = expected[layer.value]
        if "float" in np.asarray(value).dtype.name:
            yield LayerDistance(
                position=position, nodes=(layer.node.name,), op_types=(layer.node.op_type,),
                devices=(home.get(layer.node.name) or CPU,), values=(layer.value,),
                alone=distance_of_values([alone[layer.after]], [value]),
                accumulated=distance_of_values([accumulated[layer.after]], [value]),
            )  # fmt: skip


def _values(
    model: onnx.ModelProto, names: Iterable[str], feed: Mapping[str, Any],
    devices: DeviceRequest | Sequence[DeviceRequest] = CPU, options: Options | None = None,
) -> dict[str, Any]:  # fmt: skip
    inner = [name for name in dict.fromkeys(names) if name not in feed]
    with InferenceSession(with_outputs(model, inner), devices=devices, options=options) as session:
        return dict(zip(inner, session.run(inner, feed), strict=True))


class _ReferenceValues:
    def __init__(self, names: Sequence[str], tolerances: Tolerances, expected: Sequence[Any]) -> None:
        self.names, self._tolerances = names, tolerances
        self.expected = list(expected)
        self.wrong_on_cpu: set[str] = set()

    def differ(self, results: Sequence[Any]) -> list[str]:
        outputs = zip(self.names, results, self.expected, strict=True)
        return [name for name, got, want in outputs if deviation(name, got, want, self._tolerances.of(name)).beyond]

    def hold_to(self, unoptimized: Sequence[Any] | None) -> None:
        if unoptimized is None:
            return
        cpu, self.expected = self.expected, list(unoptimized)
        self.wrong_on_cpu = set(self.differ(cpu))
        for at, name in enumerate(self.names):
            if name not in self.wrong_on_cpu:
                self.expected[at] = cpu[at]


def _unoptimized_results(model: ModelSource, feed: Mapping[str, Any]) -> list[Any] | None:
    try:
        with InferenceSession(model, unoptimized(), devices=CPU) as session:
            return results_of(session, feed)
    except NNAdapterError:
        return None


class _ComparisonState:
    def __init__(self, compared: Callable[..., ComparedRun]) -> None:
        self._compared = compared
        self.differences: list[OutputDifference] = []
        self.nodes: list[Mapping[str, int]] = []
        self.failures: dict[str, None] = {}
        self.telling: ComparedRun | None = None

    def add(
        self,
        tested: InferenceSession,
        feed: Mapping[str, Array],
        results: Sequence[Any],
        judged: _ReferenceValues,
        tolerances: Tolerances,
    ) -> None:
        report, names, expected = tested.report(), judged.names, judged.expected
        computed = {*feed, *(value.name for segment in report.segments for value in segment.outputs)}
        of_feed = [
            replace(
                _difference(len(self.nodes), name, got, expected_value, tolerances.of(name), computed),
                cpu_differs=name in judged.wrong_on_cpu,
            )
            for name, got, expected_value in zip(names, results, expected, strict=True)
        ]
        self.differences += of_feed
        self.nodes.append(nodes_run(report, tested.provenance))
        self.failures.update(dict.fromkeys(failures_of(report)))
        agrees = all(difference.agrees for difference in of_feed)
        if self.telling is None or (self.telling.agrees and not agrees):
            of_names = dict(zip(names, expected, strict=True))
            self.telling = self._compared(
                tolerances=tolerances, feed=feed, expected=of_names, agrees=agrees, report=report
            )


def failures_of(report: PartitionReport) -> Iterator[str]:
    """Return a report's notes about fallbacks."""
    exempt_prefixes = (*KEEPING_NOTES, FEWER_OPTIMIZATIONS, optional_part("openvino_divided_chains"))
    return (
        note for note in report.notes if not note.startswith(exempt_prefixes) and not note.endswith(NO_STORED_PROGRAM)
    )


def _check_tolerances(**tolerances: float) -> None:
    for name, value in tolerances.items():
        if not value >= 0:  # also refuses NaN
            raise InvalidOptionError(f"the {name} tolerance must be a number of at least 0, got {value!r}")


def _check_paths(layers: bool, save: str | os.PathLike[str] | None, rules_out: str | os.PathLike[str] | None) -> None:
    if not layers and (save is not None or rules_out is not None):
        raise InvalidOptionError(
            "save and rules_out require layers without a reference; pass layers=True, or --layers on the command line"
        )
    for path, folder in ((save, True), (rules_out, False)):
        if path is not None:
            check_writable(Path(path), folder=folder)


def _each_feed(
    feeds: Mapping[str, Array] | Iterable[Mapping[str, Array]] | None,
    model: ModelSource,
    input_shapes: Mapping[str, Sequence[int]] | None,
) -> Iterable[Mapping[str, Array]]:
    if feeds is None:
        return [random_feed(model, input_shapes)]
    return [feeds] if isinstance(feeds, Mapping) else feeds


def _tolerances(
    source: ModelSource, session: InferenceSession, feed: Mapping[str, Any], relative: float, absolute: float
) -> Tolerances:
    outputs = session.get_outputs()
    names, quantized = frozenset(output.name for output in outputs), frozenset[str]()
    if any("int" in output.type for output in outputs):
        prepared = prepare(load_model(source))
        shapes = default_shapes(prepared, shapes_of(feed))
        quantized = quantized_values(specialize(prepared, shapes).graph) & names
    return Tolerances(relative=relative, absolute=absolute, outputs=names, quantized=quantized)


def results_of(session: InferenceSession, feed: Mapping[str, Any], names: Sequence[str] | None = None) -> list[Any]:
    """Run the session on the CPU, and return its outputs in the types that device sessions return."""
    types = {output.name: output.type for output in session.get_outputs()}
    results = zip(session.run(names, feed), names or types, strict=True)
    return [declared(result, types[name]) for result, name in results]


def nodes_run(report: PartitionReport, provenance: Provenance | None) -> Mapping[str, int]:
    """Return the number of nodes that ran per device, which may differ from the plan."""
    assert provenance is not None, "a run leaves its provenance"
    nodes = {segment.index: len(segment.nodes) for segment in report.segments}
    counts = Counter[str](dict.fromkeys(report.devices, 0))
    for step in provenance.steps:
        counts[step.device] += nodes.get(step.segment, 0)
    return counts


def _constant(name: str, expected: Any, computed: Collection[str]) -> str:
    if name not in computed:
        return "computed before the run"
    values: Array = expected.reshape(-1) if isinstance(expected, np.ndarray) else np.empty(0)
    first = values[:1]
    same = (values == first) | ((values != values) & (first != first))  # the second term matches NaN
    return f"every element is {first[0]}" if values.size > 1 and same.all() else ""


def _difference(
    feed: int, name: str, got: Any, expected: Any, tolerance: Tolerance, computed: Collection[str]
) -> OutputDifference:
    off = deviation(name, got, expected, tolerance)
    dtype, shape = _described(got)
    return OutputDifference(
        feed=feed,
        name=name,
        dtype=dtype,
        shape=shape,
        largest_absolute=off.largest_absolute,
        largest_relative=off.largest_relative,
        beyond=off.beyond,
        agrees=not off.beyond,
        steps=tolerance.steps,
        constant=_constant(name, expected, computed),
    )


def _described(value: Any) -> tuple[str, tuple[int, ...]]:
    if isinstance(value, list):
        return "sequence", (len(value),)
    if value is None:
        return "nothing", ()
    dtype = np.asarray(value).dtype
    return "string" if dtype.kind in "OUS" else dtype.name, np.shape(value)


def _line(difference: OutputDifference) -> str:
    verdict = "agrees" if difference.agrees else f"DIFFERS in {difference.beyond} elements"
    steps = ", quantized values may be off by 1" if difference.steps else ""
    constant = f"; note: the output is constant ({difference.constant})" if difference.constant else ""
    constant += ", so agreement says little" if constant and difference.agrees else ""
    largest = f"{difference.largest_absolute:.3g} absolute, {difference.largest_relative:.3g} relative"
    head = f"  feed {difference.feed} {difference.name} {difference.dtype}{list(difference.shape)}"
    if difference.cpu_differs:
        verdict += (
            " with the unoptimized CPU, but cpu DIFFERS from it"
            if difference.agrees
            else (" from the unoptimized CPU, and cpu DIFFERS from it as well")
        )
    return f"{head}: {verdict}, largest difference {largest}{steps}{constant}"
