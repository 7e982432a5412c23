"""CUSTOM: the node that it stands for."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.exporting.writer import NodeWriter, exporter
from nnadapter.ir.operations.custom import CUSTOM, CustomCall


@exporter(CUSTOM)
def export_custom(write: NodeWriter) -> Sequence[str]:
    """CUSTOM: its op, of its domain and version, with the node's own inputs and attributes."""
    call = CustomCall.of(write.operation.attributes)
    names = [name or "" for name in call.spread(write.inputs)]
    return write.of_version(call.domain, call.op_type, call.since_version, names, len(call.outputs), call.attributes)
