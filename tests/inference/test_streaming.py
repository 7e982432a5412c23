"""Streams: pipelined over devices, ordered, bounded, and cleaned up."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from functools import partial
from queue import SimpleQueue

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.engine import RunControl
from nnadapter.errors import ClosedError, InvalidInputError, InvalidOptionError
from nnadapter.session.session import _run_all
from nnadapter.session.streams import _Item, _work
from tests.latency_driver import OVERLAPS
from tests.models import HEAD, SANDWICH, numbers, parse

TAKES_TURNS = f"""{HEAD} turns (float[N, 4] x) => (float[N, 4] y) {{
    a = Relu(x)
    b = Neg(a)
    c = Abs(b)
    y = Neg(c)
}}"""
TWO = [("latency:0", {"only": ["RELU", "ABS"], "operation_ms": 5.0}), ("latency:1", {"operation_ms": 5.0})]


def feeds(count):
    return [{"x": numbers(3, 4, seed=index)} for index in range(count)]


def all_stream_threads():
    return {each for each in threading.enumerate() if each.name == "nnadapter stream"}


@pytest.fixture
def stream_threads():
    """Return a function that lists the stream threads of this test, without leftovers of others."""
    before = all_stream_threads()
    return lambda: all_stream_threads() - before


def until(done):
    """Wait until other threads make `done()` true."""
    while not done():
        time.sleep(0.001)


@pytest.fixture
def session():
    with nna.InferenceSession(parse(TAKES_TURNS), devices=TWO) as session:
        yield session


def test_devices_process_consecutive_inputs_in_parallel(session, stream_threads):
    OVERLAPS["most"] = 0
    serial = [session.run(None, feed)[0] for feed in feeds(12)]
    assert OVERLAPS["most"] == 1
    streamed = []
    for (result,) in session.stream(feeds(12)):
        streamed.append(result)
        assert [step.device for step in session.provenance.steps] == ["latency", "latency:1"] * 2
    assert OVERLAPS["most"] == 2
    assert len(streamed) == 12
    assert all(map(np.array_equal, streamed, serial))
    assert not stream_threads()


def test_depth_one_is_sequential(session):
    OVERLAPS["most"] = 0
    assert len(list(session.stream(feeds(4), depth=1))) == 4
    assert OVERLAPS["most"] == 1


@pytest.mark.parametrize("devices", ["cpu", "fake_npu", [("trial", {"only": ["RELU"]}), "fake_npu"]])
def test_stream_results_equal_run_results(devices):
    with nna.InferenceSession(parse(SANDWICH), devices=devices, options={"fallback": "allow"}) as session:
        several = [{"x": numbers(1 + index % 3, 4, seed=index)} for index in range(20)]
        serial = [session.run(None, feed)[0] for feed in several]
        streamed = [result for (result,) in session.stream(iter(several), depth=4)]
    assert all(map(np.array_equal, streamed, serial))


def test_error_fails_only_one_item(session):
    given = feeds(6)
    given[2] = {"x": np.ones((3, 5), np.float32)}
    stream, seen = session.stream(given), []
    for index in range(6):
        if index == 2:
            with pytest.raises(InvalidInputError):
                next(stream)
        else:
            seen.append(next(stream)[0])
    with pytest.raises(StopIteration):
        next(stream)
    expected = [session.run(None, feed)[0] for index, feed in enumerate(given) if index != 2]
    assert all(map(np.array_equal, seen, expected))


def test_failing_feeds_raise_after_all_previous_results(session, stream_threads):
    def given():
        yield from feeds(3)
        raise OSError("the camera is gone")

    stream = session.stream(given())
    assert len([next(stream) for _ in range(3)]) == 3
    with pytest.raises(OSError, match="camera"):
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)
    assert not stream_threads()


def test_number_of_pending_inputs_is_bounded(session):
    taken = []

    def given():
        for feed in feeds(40):
            taken.append(feed)
            yield feed

    for given_back, _ in enumerate(session.stream(given(), depth=3), start=1):
        assert len(taken) <= given_back + 6 - 1
    assert given_back == 40


def test_slow_source_does_not_delay_finished_results(session):
    """A finished result is returned before the next inputs arrive."""
    given_back = []

    def given():
        for index, feed in enumerate(feeds(5)):
            assert len(given_back) >= index - 2
            yield feed
            time.sleep(0.1)

    given_back.extend(session.stream(given(), depth=4))
    assert len(given_back) == 5


def test_closed_and_dropped_streams_leave_no_threads(session, stream_threads):
    with session.stream(feeds(50)) as stream:
        next(stream)
    assert not stream_threads()
    with pytest.raises(StopIteration):
        next(stream)
    stream.close()
    for _ in session.stream(feeds(50)):
        break
    gc.collect()
    until(lambda: not stream_threads())
    assert not session._engine.source.plans.users
    stream = session.stream(feeds(50))
    next(stream)
    gone = weakref.ref(stream)
    del stream
    assert gone() is None
    until(lambda: not stream_threads())
    assert session.run(None, feeds(1)[0])


def test_closing_the_session_ends_its_streams():
    with nna.InferenceSession(parse(TAKES_TURNS), devices=TWO) as session:
        stream = session.stream(feeds(50))
        next(stream)
    with pytest.raises(ClosedError):
        for _ in stream:
            pass
    stream.close()
    with pytest.raises(ClosedError):
        session.stream(feeds(1))


@pytest.mark.parametrize("depth", [0, -1, 1.5, True, "2"])
def test_invalid_depths_are_refused(session, depth):
    with pytest.raises(InvalidOptionError, match="depth"):
        session.stream(feeds(1), depth=depth)


def test_stream_closed_by_its_source_ends(session, stream_threads):
    def given():
        yield feeds(1)[0]
        closer = threading.Thread(target=stream.close)
        closer.start()
        closer.join()
        yield feeds(1)[0]

    stream, results = session.stream(given(), depth=1), []
    taker = threading.Thread(target=lambda: results.extend(stream), daemon=True)
    taker.start()
    taker.join(30)
    assert not taker.is_alive()
    assert len(results) <= 1
    until(lambda: not stream_threads())


def test_feeds_that_depend_on_their_stream_fail(session, stream_threads):
    def given():
        yield feeds(1)[0]
        next(stream)

    stream, heard = session.stream(given()), []

    def take():
        heard.append(len(next(stream)))
        with pytest.raises(RuntimeError, match="asked for the next result of their own stream"):
            next(stream)
        heard.extend(stream)

    taker = threading.Thread(target=take, daemon=True)
    taker.start()
    taker.join(30)
    assert heard == [1] and not taker.is_alive() and not stream_threads()


def test_dropped_item_is_marked_as_done(session):
    item, queue = _Item(feeds(1)[0], RunControl()), SimpleQueue()
    item.control.stop()
    queue.put(item)
    queue.put(None)
    _work(queue, partial(_run_all, session._engine))
    assert item.is_done
    assert item.was_dropped
