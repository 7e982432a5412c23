"""Watchers of streams: recorded events, and no wait for a stream that is gone."""

from __future__ import annotations

import gc
import threading
import time

from nnadapter.drivers.fake_npu import FakeNpuDevice
from nnadapter.engine import Watchers


def enqueued(watchers, device, noted):
    """Enqueue work on a stream without other references."""
    stream = device.create_stream()

    def enqueue():
        stream.submit(lambda: time.sleep(0.02))
        return ()

    watchers.enqueued(device, stream, enqueue, lambda _: lambda *note: noted.append(note))


def test_unreferenced_stream_is_recorded_until_done():
    noted, watchers = [], Watchers(time.perf_counter_ns)
    enqueued(watchers, FakeNpuDevice(), noted)
    gc.collect()
    time.sleep(0.1)
    waiting = threading.Thread(target=watchers.finish, daemon=True)
    waiting.start()
    waiting.join(10)
    assert not waiting.is_alive() and len(noted) == 1
    (start, end, failure) = noted[0]
    assert failure is None and end - start >= 15e6
