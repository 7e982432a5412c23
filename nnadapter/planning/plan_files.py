"""Plan files: a placement as JSON, read strictly and written one node per line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, to_builtins

from nnadapter.errors import PlanFileError, close_names
from nnadapter.files.atomic_files import write_file
from nnadapter.files.documents import FileKind

FORMAT = "nnadapter plan"
"""What the file says of itself."""
FORMAT_VERSION = 1
"""It grows with every change of what a key means, and with every key that comes or goes."""


Named = Annotated[str, Meta(min_length=1)]
"""A text that is not empty."""


class PlanEntry(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"content_hash": "alone", "ancestry_hash": "wired"},
):
    """The device of one node."""

    name: Named
    """The node's name in the report."""
    op_type: Named
    """With the domain before it, and `::`, where it is not ONNX's own."""
    output: str
    """The first of its outputs that somebody asked for; empty if there is none."""
    content_hash: Named
    """See `NodeHashes.content_hashes`."""
    ancestry_hash: Named
    """See `NodeHashes.ancestry_hashes`."""
    device: Named


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """A placement, and what it was made for."""

    model: str
    """The model's name, for people: it need not be the same when the plan is bound."""
    devices: Mapping[str, str]
    """Name -> version of every device that was asked, in order of preference."""
    policy: str
    """The policy by which it was made."""
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Those that it was made for."""
    entries: tuple[PlanEntry, ...] = ()
    """One per node that runs, in the model's order."""
    source: str = field(default="the plan", compare=False)
    """The file it was read from, or what else messages shall call it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmatchedEntry:
    """An entry that no longer binds."""

    name: str
    """The node's name in the plan."""
    device: str
    """The device that the plan has it on."""
    reason: str


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


def write_plan(path: str | os.PathLike[str], plan: PlanFile) -> None:
    """Write `plan` to a file that is complete or not there; to a device or a pipe directly.

    Raises:
        PlanFileError: the file cannot be written; what stood there stays.
    """
    target = Path(path)
    contents = plan_text(plan).encode()
    try:
        write_file(target, lambda file: file.write(contents))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PlanFileError(
            f"plan file {str(target)!r} cannot be written: {reason}; give another path", file=str(target)
        ) from error


def plan_text(plan: PlanFile) -> str:
    """Return the contents of the file."""
    head = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "model": plan.model,
        "devices": dict(plan.devices),
        "policy": plan.policy,
        "input_shapes": {name: list(shape) for name, shape in plan.input_shapes.items()},
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    nodes = ",\n".join(f"    {json.dumps(to_builtins(entry))}" for entry in plan.entries)
    return "\n".join(["{", *lines, '  "nodes": [', *([nodes] if nodes else []), "  ]", "}", ""])
