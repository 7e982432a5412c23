"""The border to the package `openvino`: imported on use, one engine per process, foreign errors translated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nnadapter.errors import DeviceUnavailableError, MissingDeviceExtraError, MissingExtraError, NNAdapterError
from nnadapter.process.cache import remembered
from nnadapter.process.extras import has_extra, missing_extra

EXTRA = "openvino"
_NOISE = re.compile(r"Exception from \S+?:\d+:|Check '.*?' failed at \S+?:\d+:|\(None\)")
_LONGEST = 300


def missing(device: str) -> MissingExtraError:
    """The error that `device` cannot be used without the package."""
    return missing_extra(EXTRA, f"device {device!r}", MissingDeviceExtraError)


@remembered(1)
def module() -> Any:
    """The package.

    Raises:
        MissingDeviceExtraError: it is not installed.
        DeviceUnavailableError: it does not load.
    """
    if not has_extra(EXTRA):
        raise missing("openvino")
    try:
        import openvino
    except ImportError as error:
        raise DeviceUnavailableError(f"the package openvino does not load ({error}); install it again") from error
    return openvino


@remembered(1)
def core() -> Any:
    """The engine of this process, which finds devices and compiles for them; it may be used from many threads.

    Raises:
        DeviceUnavailableError: the package is not there, or its engine does not start.
    """
    with translated("OpenVINO did not start", "install the package openvino again", DeviceUnavailableError):
        return module().Core()


def version() -> str:
    """Version and build of the engine."""
    return str(module().get_version())


@contextmanager
def translated(what: str, advice: str, kind: type[NNAdapterError]) -> Iterator[None]:
    """Turn whatever the package raises into a `kind`: `what` failed, its own words, `advice`."""
    try:
        yield
    except NNAdapterError:
        raise
    except Exception as error:  # the package raises RuntimeError, TypeError, ValueError and errors of its own
        raise kind(f"{what}: {brief(error)}; {advice}") from error


def brief(error: BaseException) -> str:
    """The package's message on one line, without its source positions."""
    text = " ".join(_NOISE.sub(" ", " ".join(str(error).split())).split())
    return (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…") or type(error).__name__
