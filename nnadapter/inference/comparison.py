"""Comparison of devices with the CPU, output by output: `nnadapter.compare`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.accuracy.deviation import Tolerance, deviation
from nnadapter.accuracy.tolerances import Tolerances, quantized_values, shapes_of
from nnadapter.drivers.onnxruntime.failures import FEWER_OPTIMIZATIONS, unoptimized
from nnadapter.drivers.onnxruntime.values import declared
from nnadapter.drivers.selection import CPU, DeviceRequest, requests_of
from nnadapter.engine.file_loading import NO_STORED_PROGRAM
from nnadapter.engine.observed import KEEPING_NOTES
from nnadapter.engine.provenance import Provenance
from nnadapter.errors import InvalidOptionError, NNAdapterError
from nnadapter.files.atomic_files import check_writable
from nnadapter.inference.layers import ComparedRun, LayerReport, search_layers
from nnadapter.inference.session import InferenceSession
from nnadapter.ir.operand import Array
from nnadapter.offering.feeds import random_feed
from nnadapter.offering.preparing import prepare
from nnadapter.onnx.files import load_model
from nnadapter.onnx.preparation.default_sizes import default_shapes
from nnadapter.onnx.preparation.prepare import specialize
from nnadapter.optional_parts import optional_part
from nnadapter.options import Options, options_from
from nnadapter.reports.report import PartitionReport

if TYPE_CHECKING:
    import onnx


RELATIVE_TOLERANCE = 1e-3
ABSOLUTE_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDifference:
    """One output of one feed, from the devices and from the CPU."""

    feed: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    largest_absolute: float
    """Largest absolute difference; infinite where one side alone is finite, or shapes, types or strings differ."""
    largest_relative: float
    """Largest difference over the CPU's value, where that is not zero."""
    beyond: int
    """Number of elements beyond the tolerance."""
    agrees: bool
    steps: int = 0
    """How far each integer may be off, which are quantized values; others have to be equal."""
    constant: str = ""
    """Why agreement says little, in words: the value was known before the run, or its elements are all the same."""
    cpu_differs: bool = False
    """The CPU's result differs from the unoptimized CPU's, so the devices are held to the latter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareReport:
    """Every output of every feed, and where the nodes ran that made it.

    Where outputs differ, both sides are held to the unoptimized CPU. The device is not blamed if only the CPU differs.
    """

    devices: tuple[str, ...]
    relative_tolerance: float
    absolute_tolerance: float
    differences: tuple[OutputDifference, ...]
    nodes: tuple[Mapping[str, int], ...]
    """Per feed, device -> how many nodes ran there."""
    failures: tuple[str, ...] = ()
    """What fell back from a device that had taken it."""
    layers: LayerReport | None = None
    """Which nodes are wrong, where that was asked for; of the first feed whose outputs differ, else of the first."""

    @property
    def compared(self) -> int:
        """How many nodes ran on the devices in question, in the feed with the fewest."""
        return min((sum(map(counts.__getitem__, self._compared_devices)) for counts in self.nodes), default=0)

    @property
    def agrees(self) -> bool:
        """Nodes ran on the devices for every feed, nothing fell back, and every output is within the tolerance."""
        within = all(difference.agrees for difference in self.differences)
        return within and self.compared > 0 and not self.failures

    @property
    def _compared_devices(self) -> tuple[str, ...]:
        """Those before the CPU; where there is none, the CPU is compared with itself."""
        return self.devices[: self.devices.index(CPU)] or self.devices

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "devices": list(self.devices),
            "relative_tolerance": self.relative_tolerance,
            "absolute_tolerance": self.absolute_tolerance,
            "agrees": self.agrees,
            "nodes": [dict(counts) for counts in self.nodes],
            "failures": list(self.failures),
            **({} if self.layers is None else {"layers": self.layers.to_dict()}),
            "outputs": [
                {name: getattr(difference, name) for name in OutputDifference.__slots__}
                for difference in self.differences
            ],
        }

    def __str__(self) -> str:
        """Where the nodes ran, what fell back, and one line per output."""
        tolerance = f"{self.relative_tolerance:g} relative + {self.absolute_tolerance:g}"
        head = f"{', '.join(self.devices)} against cpu, tolerance {tolerance}"
        failures = (f"  fell back: {failure}" for failure in self.failures)
        layers = [] if self.layers is None else [str(self.layers)]
        return "\n".join([self._where(), head, *failures, *map(_line, self.differences), *layers])

    def _where(self) -> str:
        """Of the feed with the fewest nodes on the devices."""
        devices = self._compared_devices
        counts = min(self.nodes, key=lambda counts: sum(map(counts.__getitem__, devices)), default=Counter[str]())
        total = sum(counts.values())
        if not self.compared:
            names = ", ".join(devices)
            return f"none of {total} nodes ran on {names}: nothing was compared; `nnadapter report` says why"
        first, *remaining_devices = devices
        spare = (device for device, number in counts.items() if number and device not in devices)
        ran = f"{counts[first]} of {total} nodes ran on {first}"
        return ", ".join((ran, *(f"{counts[device]} on {device}" for device in (*remaining_devices, *spare))))


def compare(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    devices: DeviceRequest | Sequence[DeviceRequest],
    feeds: Mapping[str, Array] | Iterable[Mapping[str, Array]] | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    options: Options | Mapping[str, Any] | None = None,
    relative_tolerance: float = RELATIVE_TOLERANCE,
    absolute_tolerance: float = ABSOLUTE_TOLERANCE,
    layers: bool = False,
    save: str | os.PathLike[str] | None = None,
    rules_out: str | os.PathLike[str] | None = None,
) -> CompareReport:
    """Run `model` on the devices and on the CPU alone, and compare every output.

    Args:
        model: path, contents, or `onnx.ModelProto`.
        devices: as for `InferenceSession`.
        feeds: one feed or several; seeded random numbers if none is given.
        input_shapes: for random feeds, shapes of inputs whose sizes the model leaves open.
        options: how the session on the devices decides.
        relative_tolerance: allowed difference over the CPU's value.
        absolute_tolerance: allowed difference beside it.
        layers: find the nodes that are wrong, by running parts of the model; see `nnadapter.inference.layers`.
        save: with `layers`, a folder for a small model of what is found, with its tensors.
        rules_out: with `layers`, a file to write the smallest set of pins found that makes the outputs agree.

    Raises:
        NNAdapterError: the model cannot be loaded, a device not be used, a feed does not fit, or a file not be written.
        InvalidOptionError: a tolerance is no number of at least 0, or what goes with `layers` is given without.
    """
    _check_tolerances(relative=relative_tolerance, absolute=absolute_tolerance)
    _check_paths(layers, save, rules_out)
    # The trace is that of the one session, and parts of the model are not looked for by the next one.
    # What is wrong is to be seen, and on the device.
    chosen = replace(options_from(options), verify=None, shadow=None, background=False)
    of_parts = replace(chosen, trace=None, cache_dir=False)
    model = optional_part("paddle_model_as_onnx")(model, chosen)
    compared = partial(ComparedRun, model=model, requests=requests_of(devices, of_parts.isolated), options=of_parts)
    gathered = _ComparisonState(compared)
    with (
        InferenceSession(model, devices=devices, options=chosen) as tested,
        InferenceSession(model, devices=CPU) as reference,
    ):
        tolerances: Tolerances | None = None
        names = [output.name for output in tested.get_outputs()]
        for feed in _each_feed(feeds, model, input_shapes):
            results, expected = tested.run(None, feed), results_of(reference, feed)
            tolerances = tolerances or _tolerances(model, tested, feed, relative_tolerance, absolute_tolerance)
            judged = _ReferenceValues(names, tolerances, expected)
            if judged.differ(results):
                judged.hold_to(_unoptimized_results(model, feed))
            gathered.add(tested, feed, results, judged, tolerances)
    telling = gathered.telling
    return CompareReport(
        devices=tested.devices,
        relative_tolerance=relative_tolerance,
        absolute_tolerance=absolute_tolerance,
        differences=tuple(gathered.differences),
        nodes=tuple(gathered.nodes),
        failures=tuple(gathered.failures),
        layers=search_layers(telling, save, rules_out) if layers and telling is not None else None,
    )


class _ReferenceValues:
    """The values that the devices' results are held to: the CPU's, or the unoptimized CPU's where the CPU is off."""

    def __init__(self, names: Sequence[str], tolerances: Tolerances, expected: Sequence[Any]) -> None:
        self.names, self._tolerances = names, tolerances
        self.expected = list(expected)
        self.wrong_on_cpu: set[str] = set()

    def differ(self, results: Sequence[Any]) -> list[str]:
        """Return the outputs that are beyond the tolerance."""
        each = zip(self.names, results, self.expected, strict=True)
        return [name for name, got, want in each if deviation(name, got, want, self._tolerances.of(name)).beyond]

    def hold_to(self, unoptimized: Sequence[Any] | None) -> None:
        """Replace what the CPU gave by the unoptimized CPU's results where these are others."""
        if unoptimized is None:
            return
        cpu, self.expected = self.expected, list(unoptimized)
        self.wrong_on_cpu = set(self.differ(cpu))
        for at, name in enumerate(self.names):
            if name not in self.wrong_on_cpu:
                self.expected[at] = cpu[at]


def _unoptimized_results(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto, feed: Mapping[str, Any]
) -> list[Any] | None:
    """Return the results of ONNX Runtime without optimizations; None if it fails."""
    try:
        with InferenceSession(model, unoptimized(), devices=CPU) as session:
            return results_of(session, feed)
    except NNAdapterError:
        return None


class _ComparisonState:
    """What was seen of a comparison, feed by feed."""

    def __init__(self, compared: Callable[..., ComparedRun]) -> None:
        self._compared = compared
        self.differences: list[OutputDifference] = []
        self.nodes: list[Mapping[str, int]] = []
        self.failures: dict[str, None] = {}
        self.telling: ComparedRun | None = None
        """The first feed on which the devices differ, or else the first."""

    def add(
        self,
        tested: InferenceSession,
        feed: Mapping[str, Array],
        results: Sequence[Any],
        judged: _ReferenceValues,
        tolerances: Tolerances,
    ) -> None:
        """Compare the results of one run."""
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
    """What a report says of what fell back."""
    exempt_prefixes = (*KEEPING_NOTES, FEWER_OPTIMIZATIONS, optional_part("openvino_divided_chains"))
    return (
        note for note in report.notes if not note.startswith(exempt_prefixes) and not note.endswith(NO_STORED_PROGRAM)
    )


def _check_tolerances(**tolerances: float) -> None:
    for name, value in tolerances.items():
        if not value >= 0:  # nor is NaN, by which everything would be off
            raise InvalidOptionError(f"the {name} tolerance is a number of at least 0, got {value!r}")


def _check_paths(layers: bool, save: str | os.PathLike[str] | None, rules_out: str | os.PathLike[str] | None) -> None:
    """Refuse paths that nothing would be written to, or that cannot be written, before anything is run."""
    if not layers and (save is not None or rules_out is not None):
        raise InvalidOptionError(
            "save and rules_out are written of what layers find; pass layers=True, or --layers on the command line"
        )
    for path, folder in ((save, True), (rules_out, False)):
        if path is not None:
            check_writable(Path(path), folder=folder)


def _each_feed(
    feeds: Mapping[str, Array] | Iterable[Mapping[str, Array]] | None,
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    input_shapes: Mapping[str, Sequence[int]] | None,
) -> Iterable[Mapping[str, Array]]:
    if feeds is None:
        return [random_feed(model, input_shapes)]
    return [feeds] if isinstance(feeds, Mapping) else feeds


def _tolerances(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    session: InferenceSession,
    feed: Mapping[str, Any],
    relative: float,
    absolute: float,
) -> Tolerances:
    """What is allowed; the model is read again only where outputs may be quantized."""
    outputs = session.get_outputs()
    names, quantized = frozenset(output.name for output in outputs), frozenset[str]()
    if any("int" in output.type for output in outputs):
        prepared = prepare(load_model(source))
        shapes = default_shapes(prepared, shapes_of(feed))
        quantized = quantized_values(specialize(prepared, shapes).graph) & names
    return Tolerances(relative=relative, absolute=absolute, outputs=names, quantized=quantized)


def results_of(session: InferenceSession, feed: Mapping[str, Any]) -> list[Any]:
    """What a session on the CPU alone gives, in the types that sessions on devices give."""
    results = zip(session.run(None, feed), session.get_outputs(), strict=True)
    return [declared(result, output.type) for result, output in results]


def nodes_run(report: PartitionReport, provenance: Provenance | None) -> Mapping[str, int]:
    """Device -> how many nodes ran there in the last run, wherever the plan had put them."""
    assert provenance is not None, "a run leaves its provenance"
    nodes = {segment.index: len(segment.nodes) for segment in report.segments}
    counts = Counter[str](dict.fromkeys(report.devices, 0))
    for step in provenance.steps:
        counts[step.device] += nodes.get(step.segment, 0)
    return counts


def _constant(name: str, expected: Any, computed: Collection[str]) -> str:
    """Why an output says little, if it does."""
    if name not in computed:
        return "known before the run"
    values: Array = expected.reshape(-1) if isinstance(expected, np.ndarray) else np.empty(0)
    first = values[:1]
    same = (values == first) | ((values != values) & (first != first))  # what is not equal to itself is no number
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
    """Data type and shape; of a sequence its length, of an optional without contents nothing."""
    if isinstance(value, list):
        return "sequence", (len(value),)
    if value is None:
        return "nothing", ()
    dtype = np.asarray(value).dtype
    return "string" if dtype.kind in "OUS" else dtype.name, np.shape(value)


def _line(difference: OutputDifference) -> str:
    verdict = "agrees" if difference.agrees else f"DIFFERS in {difference.beyond} elements"
    steps = ", quantized values may be off by 1" if difference.steps else ""
    constant = f", constant: {difference.constant}" if difference.constant else ""
    largest = f"{difference.largest_absolute:.3g} absolute, {difference.largest_relative:.3g} relative"
    head = f"  feed {difference.feed} {difference.name} {difference.dtype}{list(difference.shape)}"
    if difference.cpu_differs:
        verdict += (
            " with the unoptimized CPU, from which cpu DIFFERS"
            if difference.agrees
            else (" from the unoptimized CPU, from which cpu DIFFERS as well")
        )
    return f"{head}: {verdict}, largest difference {largest}{steps}{constant}"
