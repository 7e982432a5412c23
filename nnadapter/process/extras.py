"""Packages that are installed by an extra: looked for here, and where one is missing, the error with the command."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType

from nnadapter.errors import MissingExtraError

EXTRAS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "demo": ("pillow", "PIL"),
        "latency": ("scipy", "scipy"),
        "openvino": ("openvino", "openvino"),
        "qnn": ("onnxruntime-qnn", "onnxruntime_qnn"),
        "xla": ("jax", "jax"),
        "ray": ("ray", "ray"),
    }
)
"""Extra -> the package that code of ours needs from it, and the module that this installs."""


def has_extra(extra: str) -> bool:
    """Whether the package of an extra is there; it is not imported."""
    return find_spec(EXTRAS[extra][1]) is not None


def missing_extra(extra: str, feature: str, kind: type[MissingExtraError] = MissingExtraError) -> MissingExtraError:
    """The error of `kind` that says that `feature` needs an extra, and how to get it."""
    package = EXTRAS[extra][0]
    return kind(
        f"{feature} needs the package {package}, which is not installed; run: pip install 'nnadapter[{extra}]'",
        extra=extra,
        package=package,
    )


def require_extra(extra: str, feature: str) -> None:
    """Refuse `feature` where the package of an extra is missing.

    Raises:
        MissingExtraError: it is.
    """
    if not has_extra(extra):
        raise missing_extra(extra, feature)
