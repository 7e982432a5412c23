"""What is answered where a request does not go well: a status, and a sentence."""

from __future__ import annotations

from nnadapter.errors import CancelledError, InvalidInputError, NNAdapterError, describe


class HttpError(Exception):
    """A request that is not answered as it was meant; nobody outside of this room sees it."""

    def __init__(self, status: int, message: str, *, retry_after: int = 0) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


def http_error(error: BaseException) -> HttpError:
    """The status of what a session raised: the caller's fault, too late, or a device's fault."""
    if isinstance(error, HttpError):
        return error
    table: tuple[tuple[type[BaseException], int], ...] = (
        (InvalidInputError, 400),
        (CancelledError, 504),
        (NNAdapterError, 503),
    )
    for kind, status in table:
        if isinstance(error, kind):
            return HttpError(status, describe(error))
    return HttpError(500, f"the server failed: {type(error).__name__}; its log says more")
