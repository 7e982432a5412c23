"""What a plan file says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta, Struct

FORMAT = "nnadapter plan"
"""What the file says of itself."""
FORMAT_VERSION = 1
"""It grows with every change of what a key means, and with every key that comes or goes."""


Named = Annotated[str, Meta(min_length=1)]
"""A text that is not empty."""


class PlanEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The device of one node."""

    name: Named
    """The node's name in the report."""
    op_type: Named
    """With the domain before it, and `::`, where it is not ONNX's own."""
    output: str
    """The first of its outputs that somebody asked for; empty if there is none."""
    alone: Named
    """See `NodeHashes.alone`."""
    wired: Named
    """See `NodeHashes.wired`."""
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
    why: str
