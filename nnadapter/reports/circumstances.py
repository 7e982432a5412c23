"""With what versions, and where, a report was made."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import version

from nnadapter.costs.calibration_files import driver_version
from nnadapter.process.cache import remembered
from nnadapter.process.processors import model_name
from nnadapter.process.versions import own_version


def versions_of(devices: Iterable[str]) -> dict[str, str]:
    """Return the versions of nnadapter, ONNX, ONNX Runtime and the drivers of devices; those that are known."""
    versions = {"nnadapter": own_version(), **_packages(), **{name: driver_version(name) for name in devices}}
    return {name: package_version for name, package_version in versions.items() if package_version}


@remembered(1)
def machine() -> str:
    """Return system, processor and number of cores, as far as they are known."""
    name = model_name()
    return f"{platform.system()} {platform.machine()}, {name}{', ' if name else ''}{os.cpu_count()} cores"


@remembered(1)
def _packages() -> dict[str, str]:
    return {name: version(name) for name in ("onnx", "onnxruntime")}
