from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request

from nnadapter.ray.serving import HttpError, body_of, length_of


def request(parts, headers=()):
    """Return a request with a body in these parts; None is a part that never arrives."""
    coming = iter(parts)

    async def receive():
        part = next(coming)
        if part is None:
            await asyncio.sleep(60)
        return {"type": "http.request", "body": part, "more_body": part != b""}

    raw = [(name.encode(), value.encode()) for name, value in headers]
    return Request({"type": "http", "headers": raw}, receive)


def read(parts, deadline_s=None):
    return asyncio.run(body_of(request(parts), 5, deadline_s))


@pytest.mark.parametrize(("parts", "status"), [((b"ab", None), 408), ((b"abc", b"def", b""), 413)])
def test_late_and_long_bodies_are_refused(parts, status):
    assert read((b"ab", b"cd", b"")) == b"abcd"
    with pytest.raises(HttpError) as caught:
        read(parts, 0.01)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [((("content-length", "6"),), 413), ((("content-length", "9" * 30),), 413), ((("content-encoding", "gzip"),), 415)],
)
def test_declared_length_is_checked_before_reading(headers, status):
    assert length_of(request(()), 5) == 5
    with pytest.raises(HttpError) as caught:
        length_of(request((), headers), 5)
    assert caught.value.status == status
