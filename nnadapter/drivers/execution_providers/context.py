"""A provider's context: verdicts by its graph assignment, programs, and programs from bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from nnadapter.drivers.execution_providers.backing import Backing
from nnadapter.drivers.execution_providers.program import deserialize_program
from nnadapter.drivers.interface import Admission, Context, Program
from nnadapter.traces.trace import SILENT, Trace
from partition.verdict import Verdict

if TYPE_CHECKING:
    import onnx

    from nnadapter.drivers.execution_providers.asking import Asker


class EpContext(Context):
    """A provider with its options; what has to do with ONNX models is imported when one is judged or compiled."""

    def __init__(self, backing: Backing, trace: Trace = SILENT, lane: str = "") -> None:
        self._backing = backing
        self._trace, self._lane = trace, lane

    def supported(self, model: onnx.ModelProto) -> Sequence[Verdict]:
        """See `Context.supported`: what the provider is assigned of the graph."""
        return self._asker.supported(model)

    def admit(self, model: onnx.ModelProto) -> Admission:
        """See `Context.admit`: what was taken node by node; with open sizes, what the provider is assigned of it."""
        return self._asker.admit(model)

    def with_trace(self, trace: Trace, lane: str) -> EpContext:
        """See `Context.with_trace`: ONNX Runtime's own events are in it, and those of the provider that it tells."""
        return EpContext(self._backing, trace, lane)

    def compile(self, model: onnx.ModelProto) -> Program:
        """See `Context.compile`.

        Raises:
            CompilationError: the provider fails, or leaves nodes to ONNX Runtime's CPU.
        """
        return self._asker.compile(model)

    def deserialize(self, blob: bytes) -> Program:
        """See `Context.deserialize`."""
        return deserialize_program(blob, self._backing)

    def deserialize_view(self, blob: memoryview) -> Program:
        """See `Context.deserialize_view`."""
        return deserialize_program(blob, self._backing, is_checked=True)

    def close(self) -> None:
        """See `Context.close`."""
        asker = vars(self).get("_asker")
        if asker is not None:
            asker.close()

    @cached_property
    def _asker(self) -> Asker:
        from nnadapter.drivers.execution_providers.asking import Asker

        return Asker(self._backing, self._trace, self._lane)
