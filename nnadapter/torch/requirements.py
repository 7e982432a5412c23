"""Required versions of PyTorch and its ONNX exporter, and suppression of the exporter's output."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from types import MappingProxyType

from nnadapter.errors import MissingExtraError

PACKAGES: Mapping[str, tuple[int, int]] = MappingProxyType({"torch": (2, 13), "onnxscript": (0, 7)})
"""Package -> lowest tested version, because internals change."""


def require_torch(feature: str) -> None:
    """Check versions without importing PyTorch.

    Raises:
        MissingExtraError: PyTorch or its exporter is missing or too old.
    """
    for package, lowest in PACKAGES.items():
        version = _version(package)
        if version is None or _numbers(version) < lowest:
            requirement = f"{package} {'.'.join(map(str, lowest))} or later"
            status = f"{package} {version} is installed" if version else "it is not installed"
            raise MissingExtraError(
                f"{feature} needs {requirement}, and {status}; run: pip install -U 'nnadapter[torch]'",
                extra="torch",
                package=package,
            )


def other_torch(feature: str, error: ImportError) -> MissingExtraError:
    """Return the error for a PyTorch release that lacks an internal name."""
    lowest = ".".join(map(str, PACKAGES["torch"]))
    message = " ".join(str(error).split())
    return MissingExtraError(
        f"{feature} needs internals of torch {lowest} that torch {_version('torch')} lacks: {message}; "
        f"run: pip install 'torch=={lowest}.*'",
        extra="torch",
        package="torch",
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


_LOGS = {
    **dict.fromkeys(map(logging.getLogger, ("torch.onnx", "onnxscript", "onnx_ir")), logging.ERROR),
    **dict.fromkeys(map(logging.getLogger, ("torch._subclasses.fake_tensor", "torch.export")), logging.CRITICAL),
}
"""Logger -> lowest level to show."""


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress logs and warnings of the exporter."""
    levels = {log: log.level for log in _LOGS}
    for log, level in _LOGS.items():
        log.setLevel(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in levels.items():
            log.setLevel(level)
