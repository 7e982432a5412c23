"""Versions: our own, and whether the installed onnx knows those that a model says it is written in."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from nnadapter.errors import InvalidModelError

if TYPE_CHECKING:
    import onnx


@cache
def own_version() -> str:
    """The version of nnadapter; empty where it was not installed as a package."""
    try:
        return version("nnadapter")
    except PackageNotFoundError:
        return ""


def check_versions(model: onnx.ModelProto) -> None:
    """Raise InvalidModelError for an opset of ONNX's own, or an IR version, that the installed onnx does not know.

    Nobody can say what a node means in an opset that has no schemas.
    """
    import onnx
    from onnx import defs

    newest = defs.onnx_opset_version()
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version > newest:
            raise InvalidModelError(
                f"the model is written in opset {entry.version}, the installed onnx {onnx.__version__} knows up to "
                f"{newest}; update onnx, or export with an older opset"
            )
    if model.ir_version > onnx.IR_VERSION:
        raise InvalidModelError(
            f"the model has IR version {model.ir_version}, the installed onnx {onnx.__version__} knows up to "
            f"{onnx.IR_VERSION}; update onnx, or export again"
        )
