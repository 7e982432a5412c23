"""What a session would find of its plans; nothing is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from nnadapter.compiled_models.compiled_file import CompiledFile
from nnadapter.compiled_models.words import plans_held, served
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.errors import CompiledModelError, describe
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.kept_plans.asking import is_cacheable
from nnadapter.kept_plans.engine import keeping
from nnadapter.kept_plans.entries import LinkedContainer
from nnadapter.onnx.signature import Shapes
from nnadapter.options import Options


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of the plans of a session."""

    hit: bool
    """Plans are kept that a session would run."""
    miss_reason: str = ""
    """There are none; with the parts of the key in which the nearest entry differs."""
    shapes: str = ""
    """Of inputs, that kept plans serve."""


def look(
    source: str | os.PathLike[str] | bytes,
    requests: Sequence[DeviceRequest],
    options: Options,
    shapes: Shapes | None = None,
) -> Found:
    """Return what a session with a cache would find.

    Args:
        source: the model's file, or its contents.
        requests: devices of the session.
        options: of the session, which has a cache.
        shapes: of all inputs, that plans have to serve; None for any.
    """
    if kind_of(source) is SourceKind.COMPILED:
        return Found(False, "a compiled model has its plans in itself")
    if not is_cacheable(requests, options, None):
        return Found(False, "none is kept where the CPU comes first, or with kernels that a person registered")
    kept = keeping(source, requests, options)
    if kept is None:
        return Found(False, "none is kept of a model that cannot be read, or cannot be told by its bytes")
    opened = kept.place.opened()
    if isinstance(opened, str):
        return Found(False, opened)
    try:
        return _found(opened, shapes)
    except CompiledModelError as error:
        return Found(False, f"one was kept, and cannot be used: {describe(error)}")


def _found(file: CompiledFile, shapes: Shapes | None) -> Found:
    assert isinstance(file.container, LinkedContainer), "of a place"
    file.container.check_links()
    held = plans_held(file)
    told = served(file, held)
    fixed = (file.shapes(plan) for plan in file.message.plans if not plan.HasField("open"))
    if shapes is None or dict(shapes) in fixed or any(dynamic_plan.at(shapes)[0] for dynamic_plan in held):
        return Found(True, shapes=told)
    return Found(False, f"one is kept for input shapes {told}")
