"""A session's time beside that of engines by themselves, taken so that others can rely on it.

1. All are loaded, each alone, and run once: both are timed, and the outputs compared.
2. They take turns (`costs/stopwatch.py`), in an order by chance that is another one each round and the same in every
   call: who comes after whom decides what caches hold.
3. What counts is the median of the turns, and of a comparison the median of the rounds' own ratios, with the quarters
   below and above: where these lie on both sides of 1 the rounds cannot tell the two apart, and the report says so.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any

from nnadapter.costs.stopwatch import Stopwatch
from nnadapter.drivers.onnxruntime.values import declared
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.errors import DriverError, InvalidOptionError
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.inference.bench_report import SESSION, BenchReport, EngineTiming
from nnadapter.inference.comparing import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE, failures_of, nodes_run
from nnadapter.inference.peers import Peer, peer_of
from nnadapter.inference.session import InferenceSession
from nnadapter.ir.operand import Array
from nnadapter.offering.feeds import random_feed
from nnadapter.onnx.files import contents_of
from nnadapter.options import Options, options_from
from nnadapter.paddle_models.keeping import as_onnx
from nnadapter.process.versions import own_version
from nnadapter.running.deviation import Tolerance, deviation

if TYPE_CHECKING:
    import onnx

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
    """Time a session on `devices` beside engines by themselves, in turn.

    Args:
        model: as for `InferenceSession`, but a PyTorch module; a file made by `compile` is one that no engine runs.
        devices: as for `InferenceSession`.
        feed: input name -> array; seeded random numbers if None, which a compiled model does not get.
        against: an engine or several, of `peers.PEERS`.
        input_shapes: for a random feed, shapes of inputs whose sizes the model leaves open.
        options: how the session decides.
        rounds: in which each takes a turn, at least one.
        stopwatch: times; by the host's clock if None.
        advance: called after each round.

    Raises:
        NNAdapterError: the model cannot be loaded, a device or engine not be used, or the feed does not fit. An engine
            that does not run this model is no error, but a line of the report.
    """
    names = (against,) if isinstance(against, str) else tuple(dict.fromkeys(against))
    _check(model, feed, names, rounds)
    chosen = replace(options_from(options), background=False)  # it is the device that is timed
    peers = [peer_of(name) for name in names]
    model = as_onnx(model, chosen)
    feed = random_feed(model, input_shapes) if feed is None else feed
    source = model if isinstance(model, (str, os.PathLike, bytes)) or not peers else contents_of(model)
    watch = stopwatch or Stopwatch()
    watch.rest()
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
            timed[name] = replace(timed[name], turns=turns)
        report = session.report()
        return BenchReport(
            devices=session.devices,
            nodes=nodes_run(report, session.provenance),
            failures=tuple(failures_of(report)),
            session=timed.pop(SESSION),
            peers=tuple(timed.values()),
            report=report,
        )


def _check(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto, feed: object, against: Sequence[str], rounds: int
) -> None:
    if isinstance(rounds, bool) or not isinstance(rounds, Integral) or rounds < 1:
        raise InvalidOptionError(f"rounds is {rounds!r}, expected a whole number of at least 1")
    is_compiled = kind_of(model) is SourceKind.COMPILED
    if is_compiled and against:
        raise InvalidOptionError(
            f"a compiled model is not timed beside {', '.join(against)}, which cannot run it; "
            "give the model that it was made of, or against=()"
        )
    if is_compiled and feed is None:
        raise InvalidOptionError("a compiled model is timed with a feed of its own; pass feed={input: array}")


def _opened(
    peer: Peer, model: str | os.PathLike[str] | bytes, feed: Mapping[str, Any], expected: Mapping[tuple[str, str], Any],
    watch: Stopwatch,
) -> tuple[EngineTiming, Callable[[], object] | None]:  # fmt: skip
    """Load an engine, run it once, and compare what comes out; what runs it again, if it runs this model."""
    watch.rest()
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
        differing={
            difference.value: difference.largest_absolute for difference in compared if difference.tolerances > 1
        },
    )
    return timed, partial(run, feed)


def _in_turn(
    runs: Mapping[str, Callable[[], object]], rounds: int, watch: Stopwatch, advance: Callable[[], None]
) -> Mapping[str, tuple[float, ...]]:
    """Name -> the seconds of its turns, round by round."""
    turns: dict[str, list[float]] = {name: [] for name in runs}
    order, chance = [*runs.items()], random.Random(0)
    for _ in range(rounds):
        chance.shuffle(order)
        for name, run in order:
            turns[name].append(watch.turn(run))
        advance()
    return {name: tuple(seconds) for name, seconds in turns.items()}
