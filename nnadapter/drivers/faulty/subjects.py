"""What a call of a driver is about: a model's operations, as far as faults ask for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from zlib import crc32

from nnadapter.drivers.faulty.script import Fault
from nnadapter.drivers.interface import SegmentModel
from nnadapter.ir.model import Model
from nnadapter.onnx.domains import op_name


@dataclass(frozen=True)
class Subject:
    """Operations in their order: of each its type, and the names of the nodes that it stands for."""

    operations: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @cached_property
    def key(self) -> str:
        """What tells it from others, here and in another process; the sizes of tensors are no part of it."""
        return f"{crc32(self.to_bytes()):08x}"

    def concerns(self, fault: Fault) -> bool:
        """Whether calls about it are those that a fault is for."""
        return (fault.op_type is None and fault.name is None) or next(self.positions(fault), None) is not None

    def positions(self, fault: Fault) -> Iterator[int]:
        """Where the operations are that a fault is for."""
        op_type = None if fault.op_type is None else _plain(fault.op_type)
        for position, (type_, names) in enumerate(self.operations):
            if op_type is not None and op_type not in (_plain(type_), _family(type_)):
                continue
            if fault.name is None or any(fnmatchcase(name, fault.name) for name in names):
                yield position

    def to_bytes(self) -> bytes:
        """It as bytes, for `subject_in`."""
        return json.dumps(self.operations, separators=(",", ":")).encode()


NOTHING = Subject()
"""Calls that are about no model."""


def subject_of(model: SegmentModel) -> Subject:
    """Return what a call about a model is about."""
    if isinstance(model, Model):
        return Subject(tuple((operation.type, operation.origins) for operation in model.operations))
    return Subject(tuple((op_name(node.domain, node.op_type), (node.name,)) for node in model.graph.node))


def subject_in(written: bytes) -> Subject:
    """Return what `Subject.to_bytes` wrote.

    Raises:
        ValueError: it is nothing of the kind.
    """
    rows = json.loads(written)
    if not isinstance(rows, list):
        raise ValueError
    return Subject(tuple((str(type_), tuple(map(str, names))) for type_, names in rows))


def _plain(type_: str) -> str:
    return type_.removeprefix("ai.onnx::").replace("_", "").lower()


def _family(type_: str) -> str:
    """CONV_2D is Conv, as RESIZE_LINEAR is Resize."""
    return _plain(type_.removesuffix("_2D").removesuffix("_NEAREST").removesuffix("_LINEAR"))
