"""Bodies of HTTP requests, with limits of bytes and time."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from nnadapter.ray.serving import protocol
from nnadapter.ray.serving.protocol import HttpError


def length_of(request: Request, most: int) -> int:
    """Return the bytes to reserve for a body: its length, or the limit if unknown. Raises HttpError."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HttpError(415, "the body is compressed; send it uncompressed")
    length_text = request.headers.get("content-length", str(most))
    if not length_text.isdecimal() or len(length_text) > 18 or int(length_text) > most:
        raise HttpError(413, f"the request has {length_text[:40]} bytes, expected at most {most}")
    return int(length_text)


async def body_of(request: Request, most: int, deadline_s: float | None) -> bytes:
    """Read a body within the deadline, but at most a minute. Raises HttpError."""
    seconds = min(protocol.BODY_SECONDS, deadline_s or protocol.BODY_SECONDS)
    try:
        return await asyncio.wait_for(_read(request, most), seconds)
    except TimeoutError as error:
        raise HttpError(408, f"the body did not arrive within {seconds:g} s") from error


async def _read(request: Request, most: int) -> bytes:
    parts: list[bytes] = []
    length = 0
    try:
        async for part in request.stream():
            length += len(part)
            if length > most:
                raise HttpError(413, f"the request has more than {most} bytes")
            parts.append(part)
    except ClientDisconnect as error:
        raise HttpError(400, "the client disconnected before its request was complete") from error
    return b"".join(parts)
