"""Plan files: a placement as JSON, one node per line, read strictly and matched to an edited model."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, to_builtins

from nnadapter.errors import PlanFileError, close_names
from nnadapter.files.atomic_files import write_file
from nnadapter.files.documents import FileKind
from nnadapter.onnx.domains import op_name
from nnadapter.records import dataclass, field
from partition.graph import Verdict

if TYPE_CHECKING:
    from nnadapter.onnx.preparation.node_hashes import NodeHashes
    from nnadapter.onnx.preparation.prepare import Specialized

FORMAT = "nnadapter plan"
FORMAT_VERSION = 1


Named = Annotated[str, Meta(min_length=1)]


class PlanEntry(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"content_hash": "alone", "ancestry_hash": "wired"},
):
    """Entry of a plan file: the device of one node."""

    name: Named
    op_type: Named
    """Prefixed by `domain::` unless the op is ONNX's own."""
    output: str
    """First output in use, if any."""
    content_hash: Named
    ancestry_hash: Named
    device: Named


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """Saved placement and its context."""

    model: str
    devices: Mapping[str, str]
    """Name -> version of every device that was asked, in order of preference."""
    policy: str
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    entries: tuple[PlanEntry, ...] = ()
    source: str = field(default="the plan", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmatchedEntry:
    """Unapplied entry of a plan file: no node matches, or its device is missing or refuses the node."""

    name: str
    device: str
    reason: str


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
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
    """Return the plan in a file. Raises PlanFileError if it is unreadable, damaged, invalid or of another version."""
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
            conflict = "appears twice" if other == entry.device else f"is on {other!r} and on {entry.device!r}"
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
    """Write `plan` atomically to a file, or directly to a pipe or device file. Raises PlanFileError."""
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
    """Return the contents of a plan file."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedPlan:
    """Plan file, matched to the atoms of a model."""

    placement: Mapping[int, str]
    unmatched_entries: tuple[UnmatchedEntry, ...]


def plan_entries(specialized: Specialized, structure: NodeHashes, placement: Sequence[str]) -> tuple[PlanEntry, ...]:
    """Return an entry for every node that runs; `placement` has the device of every atom."""
    nodes = zip(specialized.graph.nodes, specialized.positions, strict=True)
    return tuple(
        PlanEntry(
            name=node.name,
            op_type=op_name(node.domain, node.op_type),
            output=next(filter(None, node.outputs), ""),
            content_hash=structure.content_hashes[position],
            ancestry_hash=structure.ancestry_hashes[position],
            device=placement[specialized.graph.atom_of[index]],
        )
        for index, (node, position) in enumerate(nodes)
    )


def bind_plan(
    plan: PlanFile,
    specialized: Specialized,
    structure: NodeHashes,
    devices: Sequence[str],
    verdicts: Mapping[str, Sequence[Verdict]],
) -> MatchedPlan:
    """Match a plan's entries to the nodes of a model, at most one each.

    An entry takes the first match:

    1. the same stable name, otherwise the same stable output, with equal content and ancestry hashes;
    2. the same stable name, otherwise the same stable output, with equal content hash, if a producer was edited;
    3. the same ancestry hash, if the node was renamed; n entries and n nodes with this hash match in order;
    4. without stable names and outputs: the same numeric output with equal content hash, or an equal content hash in
       order.

    A name of op type plus position, or a numeric output, is not stable, because edits shift it. If entries place nodes
    of one atom on different devices, all of the atom's entries are unmatched.
    """
    model_nodes = plan_entries(specialized, structure, [""] * len(specialized.graph.atoms))
    meant = _matched(plan.entries, model_nodes)
    matched_nodes = set(meant)
    open_nodes = Counter(node.content_hash for index, node in enumerate(model_nodes) if index not in matched_nodes)
    open_entries = Counter(entry.content_hash for entry, node in zip(plan.entries, meant, strict=True) if node is None)
    atom_of = specialized.graph.atom_of
    node_lookup = _MismatchExplainer(
        specialized,
        model_nodes,
        devices,
        verdicts,
        {hash_: (open_entries[hash_], open_nodes[hash_]) for hash_ in open_entries},
    )
    entries_by_atom: dict[int, dict[str, str]] = {}
    for entry, node in zip(plan.entries, meant, strict=True):
        if node is not None:
            entries_by_atom.setdefault(atom_of[node], {}).setdefault(entry.device, entry.name)
    whys = [
        node_lookup.mismatch_reason(entry, node, entries_by_atom)
        for entry, node in zip(plan.entries, meant, strict=True)
    ]
    placements = [
        (atom_of[node], entry.device)
        for entry, node, reason in zip(plan.entries, meant, whys, strict=True)
        if node is not None and not reason
    ]
    return MatchedPlan(
        placement=dict(placements),
        unmatched_entries=tuple(
            UnmatchedEntry(name=entry.name, device=entry.device, reason=reason)
            for entry, reason in zip(plan.entries, whys, strict=True)
            if reason
        ),
    )


_POSITION = re.compile(r"_\d+(_\d+)?")


def _own_name(side: PlanEntry) -> str:
    op_type = side.op_type.rpartition("::")[2]
    numbered = side.name.startswith(op_type) and _POSITION.fullmatch(side.name, len(op_type))
    return "" if numbered else side.name


def _own_output(side: PlanEntry) -> str:
    return "" if side.output.isdigit() else side.output


def _nameless(side: PlanEntry) -> str:
    return "" if _own_name(side) or _own_output(side) else side.content_hash


_STEPS: tuple[tuple[Callable[[PlanEntry], Sequence[str]], bool], ...] = (
    (lambda side: (_own_name(side), side.content_hash, side.ancestry_hash), False),
    (lambda side: (_own_output(side), side.content_hash, side.ancestry_hash), False),
    (lambda side: (_own_name(side), side.content_hash), False),
    (lambda side: (_own_output(side), side.content_hash), False),
    (lambda side: (side.ancestry_hash,), True),
    (lambda side: (side.output, side.content_hash, side.ancestry_hash), False),
    (lambda side: (_nameless(side),), True),
    (lambda side: (side.output, side.content_hash), False),
)
"""Match keys, the most certain first; a key with an empty part matches nothing.

The flag allows equally many entries and nodes with the same key to match in order.
"""


def _matched(entries: Sequence[PlanEntry], model_nodes: Sequence[PlanEntry]) -> list[int | None]:
    meant: list[int | None] = [None] * len(entries)
    unmatched_nodes = dict.fromkeys(range(len(model_nodes)))
    for step, in_order in _STEPS:
        open_entries = [number for number, node in enumerate(meant) if node is None]
        nodes = _alike((step(model_nodes[node]), node) for node in unmatched_nodes)
        for key, numbers in _alike((step(entries[number]), number) for number in open_entries).items():
            candidates = nodes.get(key, [])
            if len(candidates) == len(numbers) and (in_order or len(candidates) == 1):
                for number, node in zip(numbers, candidates, strict=True):
                    meant[number] = node
                    del unmatched_nodes[node]
    return meant


def _alike(pairs: Iterator[tuple[Sequence[str], int]]) -> dict[Hashable, list[int]]:
    indices_by_key: dict[Hashable, list[int]] = {}
    for key, index in pairs:
        if all(key):
            indices_by_key.setdefault(tuple(key), []).append(index)
    return indices_by_key


class _MismatchExplainer:
    def __init__(
        self,
        specialized: Specialized,
        model_nodes: Sequence[PlanEntry],
        devices: Sequence[str],
        verdicts: Mapping[str, Sequence[Verdict]],
        alike: Mapping[str, tuple[int, int]],
    ) -> None:
        self._alike = alike
        self._atom_of = specialized.graph.atom_of
        self._devices = devices
        self._verdicts = verdicts
        self._by_name = {model_node.name: model_node for model_node in model_nodes}
        self._gone = {
            **dict.fromkeys(specialized.folded, "is folded"),
            **dict.fromkeys(specialized.unused, "is unused"),
        }

    def mismatch_reason(
        self, entry: PlanEntry, node: int | None, entries_by_atom: Mapping[int, Mapping[str, str]]
    ) -> str:
        if node is None:
            return self._why_not_found(entry)
        atom = self._atom_of[node]
        conflicting_names = [name for device, name in entries_by_atom[atom].items() if device != entry.device]
        if conflicting_names:
            other = next(device for device in entries_by_atom[atom] if device != entry.device)
            return f"it is now in one atom with {conflicting_names[0]!r}, which the plan has on {other!r}"
        if entry.device not in self._devices:
            return f"device {entry.device!r} is none of the devices {', '.join(self._devices)}"
        verdict = self._verdicts[entry.device][atom]
        return "" if verdict else f"{entry.device!r} refuses it now: {verdict}"

    def _why_not_found(self, entry: PlanEntry) -> str:
        same = self._by_name.get(entry.name)
        if same is None and entry.name in self._gone:
            return f"the node {self._gone[entry.name]} now"
        entries, nodes = self._alike[entry.content_hash]
        if nodes and (same is None or not _own_name(entry)):
            alike = f"{nodes} nodes match" if nodes > 1 else "one node matches"
            return f"it is ambiguous: {alike}, and {entries} entries could mean {'them' if nodes > 1 else 'it'}"
        if same is None:
            return "the node is gone"
        if same.op_type != entry.op_type:
            return f"the node is {same.op_type} now and was {entry.op_type}"
        if same.content_hash != entry.content_hash:
            return "the node has other attributes, constants or inputs now"
        return "the node cannot be distinguished from similar ones"
