"""Whether Paddle and its converter to ONNX are here, and which; nothing is imported."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from types import MappingProxyType

from nnadapter.errors import MissingExtraError

PACKAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"paddle": ("paddlepaddle", "paddlepaddle-gpu", "paddlepaddle-xpu"), "paddle2onnx": ("paddle2onnx",)}
)
"""Module -> the packages that bring it."""
_LOWEST: Mapping[str, tuple[int, int]] = MappingProxyType({"paddle": (3, 0), "paddle2onnx": (2, 0)})

_EXTRA = "run: pip install 'nnadapter[paddle]'"
_WITHOUT_DEPENDENCIES = "run: pip install 'paddlepaddle>=3.0' && pip install --no-deps 'paddle2onnx>=2.0.1'"
"""For Python 3.12: paddle2onnx depends on an onnxoptimizer without a wheel there, and nnadapter does not need it."""
_OTHER_PYTHON = (
    "paddle2onnx 2.1 and earlier have no wheel for Python 3.13 and later; run the model with Python 3.11 or 3.12, or "
    "compile it there (`nnadapter compile`) and open the compiled file here"
)


def require_paddle(feature: str) -> Mapping[str, str]:
    """Return the versions of Paddle and of paddle2onnx, by module; `?` where no package says it.

    Raises:
        MissingExtraError: one of them is not there or too old, and `feature` needs it.
    """
    versions = {module: _version(packages) for module, packages in PACKAGES.items()}
    for module, version in versions.items():
        lowest = _LOWEST[module]
        if find_spec(module) is None:
            problem = "is not installed"
        elif version != "?" and tuple(map(int, re.findall(r"\d+", version)[:2])) < lowest:
            problem = f"is here in version {version}, expected {'.'.join(map(str, lowest))} or later"
        else:
            continue
        package = PACKAGES[module][0]
        raise MissingExtraError(
            f"{feature} needs the packages paddlepaddle and paddle2onnx, of which {package} {problem}; {_next_step()}",
            extra="paddle",
            package=package,
        )
    return versions


def _next_step() -> str:
    if sys.version_info < (3, 12):
        return _EXTRA
    return _WITHOUT_DEPENDENCIES if sys.version_info < (3, 13) else _OTHER_PYTHON


def _version(packages: tuple[str, ...]) -> str:
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "?"
