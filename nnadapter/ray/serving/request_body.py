"""Bodies of HTTP requests, read within limits of bytes and time."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from nnadapter.ray.serving import protocol
from nnadapter.ray.serving.protocol import HttpError


def length_of(request: Request, most: int) -> int:
    """Bytes that a request takes: as many as it says, or as it may have where it does not say.

    Raises:
        HttpError: more than it may have, or it is compressed.
    """
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HttpError(415, "the body is compressed; send it as it is")
    length_text = request.headers.get("content-length", str(most))
    if not length_text.isdecimal() or len(length_text) > 18 or int(length_text) > most:
        raise HttpError(413, f"the request has {length_text[:40]} bytes, and may have {most}")
    return int(length_text)


async def body_of(request: Request, most: int, deadline_s: float | None) -> bytes:
    """Return the body of a request, which is to come within the deadline, if there is one, and a minute.

    Raises:
        HttpError: it is longer, or takes longer, or its client went.
    """
    seconds = min(protocol.BODY_SECONDS, deadline_s or protocol.BODY_SECONDS)
    try:
        return await asyncio.wait_for(_read(request, most), seconds)
    except TimeoutError as error:
        raise HttpError(408, f"the body did not come within {seconds:g} s") from error


async def _read(request: Request, most: int) -> bytes:
    """The body of a request, read no further than it may be long.

    Raises:
        HttpError: it is longer, or its client went.
    """
    parts: list[bytes] = []
    length = 0
    try:
        async for part in request.stream():
            length += len(part)
            if length > most:
                raise HttpError(413, f"the request has more than {most} bytes")
            parts.append(part)
    except ClientDisconnect as error:
        raise HttpError(400, "the client went before its request was whole") from error
    return b"".join(parts)
