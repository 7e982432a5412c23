"""The border to the package `openvino`: imported on use, one engine per process, foreign errors translated."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import Any

from nnadapter.drivers.foreign_errors import one_line, translated_as
from nnadapter.drivers.openvino.conversion_tools import without_conversion_tools
from nnadapter.errors import (
    DeviceLostError,
    DeviceUnavailableError,
    MissingDeviceExtraError,
    MissingExtraError,
    NNAdapterError,
)
from nnadapter.process.cache import remembered
from nnadapter.process.extras import has_extra, missing_extra
from nnadapter.process.forking import Threads

EXTRA = "openvino"
OLDEST = (2026, 0)
"""The first version in which the sweep of `tests/drivers/openvino/sweep` finds all right that is taken."""
_NOISE = re.compile(r"Exception from \S+?:\d+:|Check '.*?' failed at \S+?:\d+:|\(None\)")


def missing(device: str) -> MissingExtraError:
    """The error that `device` cannot be used without the package."""
    return missing_extra(EXTRA, f"device {device!r}", MissingDeviceExtraError)


@remembered(1)
def module() -> Any:
    """The package.

    Raises:
        MissingDeviceExtraError: it is not installed.
        DeviceUnavailableError: it does not load, or is older than `OLDEST`.
    """
    if not has_extra(EXTRA):
        raise missing("openvino")
    try:
        with without_conversion_tools():
            import openvino
    except ImportError as error:
        raise DeviceUnavailableError(f"the package openvino does not load ({error}); install it again") from error
    refuse_older(openvino.__version__)
    return openvino


def refuse_older(version: str) -> None:
    """Say that a version computes wrongly what newer ones do not, and what is taken here.

    Raises:
        DeviceUnavailableError: it is older than `OLDEST`.
    """
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        raise DeviceUnavailableError(
            f"openvino {OLDEST[0]}.{OLDEST[1]} or later is needed, since older ones compute some ops wrongly or end "
            f"the process, and {version.split('-')[0]} is here; run: pip install -U openvino"
        )


@remembered(1)
def core() -> Any:
    """The engine of this process, which finds devices and compiles for them; it may be used from many threads.

    Raises:
        DeviceUnavailableError: the package is not there, or its engine does not start.
    """
    with translated("OpenVINO did not start", "install the package openvino again", DeviceUnavailableError):
        return module().Core()


def refuse_forked(device: str) -> None:
    """Say that the engine does not make programs here, where it would wait for ever.

    Raises:
        DeviceLostError: the process was forked from one that had made some.
    """
    if _threads().are_gone:
        raise DeviceLostError(
            "OpenVINO makes no programs in a process that was forked from one where it had made some: its threads are "
            "not there; start processes by spawn, or fork before the device is used",
            device=f"openvino:{device}",
        )


@remembered(1)
def _threads() -> Threads:
    """Those that compile, and read programs."""
    return Threads()


def version() -> str:
    """Version and build of the engine."""
    return str(module().get_version())


def translated(summary: str, advice: str, kind: type[NNAdapterError]) -> AbstractContextManager[None]:
    """Turn whatever the package raises into a `kind`: `summary` failed, its own words, `advice`."""
    return translated_as(summary, advice, kind, brief)


def brief(error: BaseException) -> str:
    """The package's message on one line, without its source positions."""
    return one_line(_NOISE.sub(" ", " ".join(str(error).split())), error)
