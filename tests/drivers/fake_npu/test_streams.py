from __future__ import annotations

import gc
import threading
from functools import partial

import pytest

from nnadapter.drivers import registry
from nnadapter.errors import CancelledError, DriverError


@pytest.fixture
def device():
    return registry.open_device("fake_npu")


def failing(error):
    raise error


def test_work_runs_in_order_and_asynchronously(device):
    stream, event, gate, calls = device.create_stream(), device.create_event(), threading.Event(), []
    assert event.is_done
    stream.submit(gate.wait)
    for number in range(3):
        stream.submit(partial(calls.append, number))
    stream.record(event)
    assert not event.is_done and not calls
    gate.set()
    event.synchronize()
    assert event.is_done and calls == [0, 1, 2]
    stream.close()


def test_a_stream_waits_for_the_event_of_another(device):
    first, second, event = device.create_stream(), device.create_stream(), device.create_event()
    gate, passed, calls = threading.Event(), threading.Event(), []
    first.submit(gate.wait)
    first.submit(partial(calls.append, "first"))
    first.record(event)
    second.wait(event)
    second.submit(passed.set)
    second.submit(partial(calls.append, "second"))
    assert not passed.wait(0.05)  # a stream that ignored the event would pass at once
    gate.set()
    second.synchronize()
    assert calls == ["first", "second"]
    first.close()
    second.close()


def test_waiting_for_an_unrecorded_event_returns_at_once(device):
    stream, event = device.create_stream(), device.create_event()
    stream.wait(event)
    event.synchronize()
    stream.synchronize()
    stream.close()


def test_later_events_raise_a_failure_repeatedly(device):
    stream, first_event, later_event, calls = device.create_stream(), device.create_event(), device.create_event(), []
    stream.submit(partial(calls.append, 1))
    stream.record(first_event)
    stream.submit(partial(failing, CancelledError("stopped")))
    stream.submit(partial(calls.append, 2))
    stream.record(later_event)
    first_event.synchronize()
    for wait in (later_event.synchronize, later_event.synchronize, stream.synchronize, later_event.synchronize):
        with pytest.raises(CancelledError, match="stopped"):
            wait()
    stream.synchronize()
    stream.submit(partial(calls.append, 3))
    stream.record(later_event)
    later_event.synchronize()
    assert calls == [1, 3]
    stream.close()


def test_waits_are_counted(device):
    stream, event, initial_waits = device.create_stream(), device.create_event(), device.waits
    stream.record(event)
    stream.wait(event)
    assert device.waits == initial_waits
    event.synchronize()
    stream.synchronize()
    assert device.waits == initial_waits + 2
    stream.close()


def test_close_waits_and_is_idempotent(device):
    stream, calls = device.create_stream(), []
    stream.submit(partial(calls.append, 1))
    stream.close()
    stream.close()
    assert calls == [1]
    with pytest.raises(DriverError, match="is closed"):
        stream.synchronize()


def test_unreferenced_stream_ends_its_thread(device):
    initial_threads = set(threading.enumerate())
    stream = device.create_stream()
    (thread,) = set(threading.enumerate()) - initial_threads
    del stream
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
