"""A plan file as a `PlanFile`, every value checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from nnadapter.errors import PlanFileError, close_names
from nnadapter.files.strict import FileKind
from nnadapter.plan_files.values import FORMAT, FORMAT_VERSION, PlanEntry, PlanFile


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    """What stands in the file beside its format."""

    model: str
    devices: Mapping[str, str]
    policy: str
    input_shapes: Mapping[str, tuple[Annotated[int, Meta(ge=0)], ...]]
    nodes: tuple[PlanEntry, ...]


_FILE = FileKind(
    name="plan file",
    contents=_Document,
    error=PlanFileError,
    advice="save the plan again with --save-plan",
    header={"format": FORMAT, "format_version": FORMAT_VERSION},
)


def read_plan(path: str | os.PathLike[str]) -> PlanFile:
    """Return the plan that a file holds.

    Raises:
        PlanFileError: the file cannot be read, is cut off, is no plan or one of another version, has a value of the
            wrong type or a key that is not known, or contradicts itself. It names file, entry and key.
    """
    document, file = _FILE.read(path), os.fsdecode(path)
    first: dict[str, int] = {}
    for at, entry in enumerate(document.nodes):
        if entry.device not in document.devices:
            _FILE.refuse(
                f"node {entry.name!r} is on device {entry.device!r}, which is none of the plan's devices; "
                f"{close_names(entry.device, document.devices)}",
                file,
                ("nodes", at, "device"),
            )
        first_index = first.setdefault(entry.name, at)
        if first_index != at:
            other = document.nodes[first_index].device
            conflict = "stands twice" if other == entry.device else f"is on {other!r} and on {entry.device!r}"
            problem = f"node {entry.name!r} {conflict}, first in nodes {first_index + 1}; keep one of them"
            _FILE.refuse(problem, file, ("nodes", at))
    return PlanFile(
        model=document.model,
        devices=document.devices,
        policy=document.policy,
        input_shapes=document.input_shapes,
        entries=document.nodes,
        source=file,
    )
