"""Messages between two processes, with and without spinning while waiting."""

from __future__ import annotations

import time
from threading import Timer

import pytest

from nnadapter.drivers.isolation import Channel, from_descriptor, pair


@pytest.fixture
def sides() -> tuple[Channel, Channel]:
    near, other = pair()
    return near, from_descriptor(other.detach())


@pytest.mark.parametrize("size", [0, 10, 1 << 20])
@pytest.mark.parametrize("is_alone", [False, True])
def test_early_and_late_messages_are_received(sides, size, is_alone):
    near, other = sides
    for late in (0.0, 0.01, 0.0):  # already there; after the receiver slept; after a late message
        sender = Timer(late, other.send, [b"x" * size])
        sender.start()
        assert near.receive(time.monotonic() + 10, is_alone=is_alone) == b"x" * size
        sender.join()


@pytest.mark.parametrize("is_alone", [False, True])
def test_waiting_ends_if_the_other_side_closes(sides, is_alone):
    near, other = sides
    other.close()
    with pytest.raises((EOFError, OSError)):
        near.receive(time.monotonic() + 10, is_alone=is_alone)


@pytest.mark.parametrize("is_alone", [False, True])
def test_receive_times_out(sides, is_alone):
    near, _ = sides
    with pytest.raises(TimeoutError):
        near.receive(time.monotonic() + 0.01, is_alone=is_alone)
