"""Benchmark of a session against other engines: `nnadapter.bench`.

Engines take turns in random but reproducible order, because the order decides cache contents. Results are medians, with
quartiles of per-round ratios.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from numbers import Integral
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from nnadapter.accuracy.tolerances import Tolerance, deviation
from nnadapter.candidates.random_feeds import random_feed
from nnadapter.costs.calibrator import Stopwatch
from nnadapter.drivers.capability import Precision
from nnadapter.drivers.onnxruntime import baseline
from nnadapter.drivers.onnxruntime.values import declared
from nnadapter.drivers.selection import HOSTS, DeviceRequest
from nnadapter.errors import DriverError, InvalidOptionError, near_names
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.ir.operand import Array
from nnadapter.onnx.files import contents_of
from nnadapter.optional_parts import optional_part
from nnadapter.options import Options, options_from
from nnadapter.process.packages import own_version
from nnadapter.records import dataclass, field, replace
from nnadapter.report.report import PartitionReport
from nnadapter.report.sections import duration
from nnadapter.session.comparison import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE, failures_of, nodes_run
from nnadapter.session.session import InferenceSession

if TYPE_CHECKING:
    import onnx

    from nnadapter.session.session import ModelSource


PEERS = ("ort", "openvino")


@dataclass(frozen=True, slots=True)
class Peer:
    """Engine to compare with."""

    name: str
    version: str
    opened: Callable[[str | os.PathLike[str] | bytes], Callable[[Mapping[str, Any]], Sequence[Any]]]
    """Function that loads a model and returns the function that runs it."""


def peer_of(name: str) -> Peer:
    """Import the engine called `name`. Raises InvalidOptionError or MissingExtraError."""
    if name not in PEERS:
        near = near_names(name, PEERS, "; ")
        raise InvalidOptionError(f"there is no engine {name!r} to compare with, expected {', '.join(PEERS)}{near}")
    if name == "openvino":
        return Peer(name, optional_part("openvino_version")(), optional_part("openvino_baseline"))
    return Peer(name, baseline.version(), baseline.opened)


def _peers_of(name: str) -> Iterator[Peer]:
    """Yield the engine in float32, and in its default precision if that is lower."""
    peer = peer_of(name)
    yield peer
    default = optional_part("openvino_default_precision")() if name == "openvino" else None
    if default not in (None, Precision.FLOAT32):
        yield replace(
            peer, name=f"{name} {default}", opened=partial(optional_part("openvino_baseline"), precision=default)
        )


SESSION = "session"
_FEW = 5


@dataclass(frozen=True, slots=True)
class Spread:
    """Median with lower and upper quartile."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class EngineTiming:
    """Measurements of a session or an engine."""

    name: str
    version: str
    load_seconds: float | None = None
    """Time to read and compile the model, without importing the engine."""
    first_seconds: float | None = None
    """Time of the first run, including lazy compilation."""
    round_seconds: tuple[float, ...] = ()
    differing_outputs: Mapping[str, float] = field(default_factory=dict)
    """Outputs that differ from the session's -> largest difference."""
    failure: str = ""

    @property
    def spread(self) -> Spread | None:
        return _spread(self.round_seconds) if self.round_seconds else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": self.version,
            "load_seconds": self.load_seconds,
            "first_seconds": self.first_seconds,
            "seconds": None if self.spread is None else asdict(self.spread),
            "round_seconds": list(self.round_seconds),
            "differing_outputs": dict(self.differing_outputs),
            "failure": self.failure,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """Times of a session and of other engines on one model."""

    devices: tuple[str, ...]
    nodes: Mapping[str, int]
    failures: tuple[str, ...]
    """Notes on fallbacks: work that a device accepted, but something else did."""
    session: EngineTiming
    baselines: tuple[EngineTiming, ...]
    report: PartitionReport

    @property
    def ran_on_devices(self) -> bool:
        """True if nodes ran on the named devices without a fallback."""
        target_devices = [device for device in self.devices if device not in HOSTS] or self.devices
        return any(self.nodes.get(device, 0) for device in target_devices) and not self.failures

    def ratio_to(self, peer: EngineTiming) -> Spread | None:
        """Return the session's time divided by an engine's; None if the engine failed."""
        if not peer.round_seconds:
            return None
        return _spread(
            [
                session_turn / other
                for session_turn, other in zip(self.session.round_seconds, peer.round_seconds, strict=True)
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "devices": list(self.devices),
            "nodes": dict(self.nodes),
            "failures": list(self.failures),
            "ran_on_devices": self.ran_on_devices,
            "precision": list(self.report.precision_remarks),
            "session": self.session.to_dict(),
            "baselines": [
                {**peer.to_dict(), "over": None if (over := self.ratio_to(peer)) is None else asdict(over)}
                for peer in self.baselines
            ],
        }

    def __str__(self) -> str:
        return "\n".join([*self._words(), *self._table(), *self._notes()])

    def _words(self) -> Iterator[str]:
        for peer in self.baselines:
            over = self.ratio_to(peer)
            yield (
                peer.failure
                if over is None
                else f"{SESSION} compared with {peer.name}: {verdict(over, len(peer.round_seconds))}"
            )
        counts = ", ".join(f"{count} on {device}" for device, count in self.nodes.items() if count)
        yield (
            f"devices {', '.join(self.devices)}; nodes: {counts or 'none: all results were computed before the run'}"
        )

    def _table(self) -> Iterator[str]:
        rows = [
            ("", "load", "first run", "run", "middle half of rounds", "version"),
            *map(_row, (self.session, *self.baselines)),
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        yield from (
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def _notes(self) -> Iterator[str]:
        yield from (f"fell back: {failure}" for failure in self.failures)
        yield from (f"precision: {remark}" for remark in self.report.precision_remarks)
        for peer in self.baselines:
            for output, off in peer.differing_outputs.items():
                yield f"{peer.name}: output {output!r} differs, by at most {off:.3g}"


def verdict(over: Spread, rounds: int) -> str:
    """Describe the ratio of the session's time to an engine's, and whether the difference is clear."""
    low, middle, high = map(_ratio, (over.low, over.middle, over.high))
    if rounds < _FEW:
        return f"takes {middle} times as long, but in only {rounds} rounds; a verdict needs {_FEW}"
    if over.low <= 1 <= over.high:
        return f"takes {middle} times as long ({low} to {high}): no clear difference in these rounds"
    return f"takes {middle} times as long ({low} to {high} in the middle half of the rounds)"


def _ratio(number: float) -> str:
    return f"{number:.2f}" if number >= 0.1 else f"{number:.2g}"


def _row(timed: EngineTiming) -> tuple[str, ...]:
    spread = timed.spread
    half = "" if spread is None else f"{duration(spread.low)} to {duration(spread.high)}"
    starts = ("" if seconds is None else duration(seconds) for seconds in (timed.load_seconds, timed.first_seconds))
    return (timed.name, *starts, "" if spread is None else duration(spread.middle), half, timed.version)


def _spread(numbers: Sequence[float]) -> Spread:
    if len(numbers) == 1:
        return Spread(*numbers, *numbers, *numbers)
    low, _, high = quantiles(numbers, n=4, method="inclusive")
    return Spread(low, median(numbers), high)


ROUNDS = 15
_TOLERANCE = Tolerance(relative=RELATIVE_TOLERANCE, absolute=ABSOLUTE_TOLERANCE, steps=1)


def bench(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    devices: DeviceRequest | Sequence[DeviceRequest] | None,
    feed: Mapping[str, Array] | None = None,
    *,
    against: str | Sequence[str] = ("ort",),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    options: Options | Mapping[str, Any] | None = None,
    rounds: int = ROUNDS,
    stopwatch: Stopwatch | None = None,
    advance: Callable[[], None] = lambda: None,
) -> BenchReport:
    """Time a session on `devices` against other engines, in interleaved rounds.

    Args:
        model: as in `InferenceSession`, except PyTorch modules. A compiled model requires `against=()` and a feed.
        devices: as in `InferenceSession`.
        feed: input name -> array; None for seeded random numbers.
        against: one or several of `PEERS`.
        input_shapes: shapes of dynamic inputs for a random feed.
        options: options of the session.
        rounds: number of rounds, at least 1.
        stopwatch: timer; None for the host's clock.
        advance: called after each round.

    Raises:
        NNAdapterError: the model, a device, an engine or the feed cannot be used.
    """
    names = (against,) if isinstance(against, str) else tuple(dict.fromkeys(against))
    _check(model, feed, names, rounds)
    chosen = replace(options_from(options), background=False)  # time the device, not the CPU that would replace it
    peers = [peer for name in names for peer in _peers_of(name)]
    model = optional_part("paddle_model_as_onnx")(model, chosen)
    feed = random_feed(model, input_shapes) if feed is None else feed
    source = model if isinstance(model, (str, os.PathLike, bytes)) or not peers else contents_of(model)
    watch = stopwatch or Stopwatch()
    watch.wait_until_process_idle()
    started = time.perf_counter()
    with InferenceSession(model, devices=devices, options=chosen) as session:
        loaded = time.perf_counter()
        results = session.run(None, feed)
        first = time.perf_counter() - loaded
        outputs = [(output.name, output.type) for output in session.get_outputs()]
        runs: dict[str, Callable[[], object]] = {SESSION: partial(session.run, None, feed)}
        timed = {SESSION: EngineTiming(SESSION, own_version(), load_seconds=loaded - started, first_seconds=first)}
        for peer in peers:
            timed[peer.name], run = _opened(peer, source, feed, dict(zip(outputs, results, strict=True)), watch)
            if run is not None:
                runs[peer.name] = run
        for name, turns in _in_turn(runs, rounds, watch, advance).items():
            timed[name] = replace(timed[name], round_seconds=turns)
        report = session.report()
        return BenchReport(
            devices=session.devices,
            nodes=nodes_run(report, session.provenance),
            failures=tuple(failures_of(report)),
            session=timed.pop(SESSION),
            baselines=tuple(timed.values()),
            report=report,
        )


def _check(model: ModelSource, feed: object, against: Sequence[str], rounds: int) -> None:
    if isinstance(rounds, bool) or not isinstance(rounds, Integral) or rounds < 1:
        raise InvalidOptionError(f"rounds must be an integer of at least 1, got {rounds!r}")
    is_compiled = kind_of(model) is SourceKind.COMPILED
    if is_compiled and against:
        raise InvalidOptionError(
            f"a compiled model cannot be compared with {', '.join(against)}, which cannot run it; give "
            "the original model, or against=()"
        )
    if is_compiled and feed is None:
        raise InvalidOptionError("a compiled model needs a feed; pass feed={input: array}")


def _opened(
    peer: Peer, model: str | os.PathLike[str] | bytes, feed: Mapping[str, Any], expected: Mapping[tuple[str, str], Any],
    watch: Stopwatch,
) -> tuple[EngineTiming, Callable[[], object] | None]:  # fmt: skip
    """Load a model on another engine, run it once, and compare outputs; return timing and a function that runs it."""
    watch.wait_until_process_idle()
    started = time.perf_counter()
    try:
        run = peer.opened(model)
        loaded = time.perf_counter()
        results = run(feed)
        first = time.perf_counter() - loaded
    except DriverError as error:
        return EngineTiming(peer.name, peer.version, failure=str(error)), None
    compared = (
        deviation(name, declared(got, type_), expected_value, _TOLERANCE)
        for ((name, type_), expected_value), got in zip(expected.items(), results, strict=True)
    )
    timed = EngineTiming(
        peer.name,
        peer.version,
        load_seconds=loaded - started,
        first_seconds=first,
        differing_outputs={
            difference.value: difference.largest_absolute for difference in compared if difference.tolerances > 1
        },
    )
    return timed, partial(run, feed)


def _in_turn(
    runs: Mapping[str, Callable[[], object]], rounds: int, watch: Stopwatch, advance: Callable[[], None]
) -> Mapping[str, tuple[float, ...]]:
    turns: dict[str, list[float]] = {name: [] for name in runs}
    order, chance = [*runs.items()], random.Random(0)
    for _ in range(rounds):
        chance.shuffle(order)
        for name, run in order:
            turns[name].append(watch.turn(run))
        advance()
    return {name: tuple(seconds) for name, seconds in turns.items()}
