"""The border to the package `openvino`: imported on use, one engine per process, foreign errors translated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

from nnadapter.errors import DeviceUnavailableError, NNAdapterError

MISSING = "the package openvino is not installed; run `pip install nnadapter[openvino]`"
"""Why no device is available, where that is so."""

_NOISE = re.compile(r"Exception from \S+?:\d+:|Check '.*?' failed at \S+?:\d+:|\(None\)")
_LONGEST = 300


def is_installed() -> bool:
    """Whether the package is there; it is not imported."""
    return find_spec("openvino") is not None


@cache
def module() -> Any:
    """The package.

    Raises:
        DeviceUnavailableError: it is not installed, or does not load.
    """
    try:
        import openvino
    except ImportError as error:
        why = MISSING if not is_installed() else f"the package openvino does not load ({error}); install it again"
        raise DeviceUnavailableError(why) from error
    return openvino


@cache
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
