"""Adapter context: a device that takes ONNX models is offered models of the adapter IR.

Verdicts, refusals of nodes and what they run as are told by operation: an operation that became several nodes is taken
if all of them are, and runs as its first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from nnadapter.drivers.boundary import blamed_nodes
from nnadapter.drivers.capability import Capability, ModelForm, Profile
from nnadapter.drivers.interface import Admission, Compatibility, Context as DriverContext, Program, SegmentModel
from nnadapter.errors import CompilationError, DriverError
from nnadapter.ir.model import Model
from nnadapter.traces.trace import Trace
from partition.verdict import SUPPORTED, Supported, Unsupported, Verdict

if TYPE_CHECKING:
    from nnadapter.drivers.kernel import Kernel
    from nnadapter.exporting.export import Export


class ExportingContext(DriverContext):
    """A context that writes adapter IR as ONNX; a model that is ONNX already goes on as it is.

    Args:
        inner: the driver's own.
        capability: of its device.
    """

    def __init__(self, inner: DriverContext, capability: Capability) -> None:
        self.inner = inner
        self._capability = capability
        self._exports: WeakKeyDictionary[Model, Export] = WeakKeyDictionary()

    def supported(self, model: SegmentModel) -> Sequence[Verdict]:
        """See `Context.supported`: per operation, why ONNX cannot say it, or what the device says of its nodes."""
        if not isinstance(model, Model):
            return self.inner.supported(model)
        exported = self._exported(model)
        count = len(exported.model.graph.node)
        by_node = list(self.inner.supported(exported.model))
        if len(by_node) != count:
            raise DriverError(f"the driver gave {len(by_node)} verdicts for {count} nodes, expected one for each")
        return [
            exported.refusals.get(position) or _joined([by_node[node] for node in nodes])
            for position, nodes in enumerate(exported.nodes)
        ]

    def admit(self, model: SegmentModel) -> Admission:
        """See `Context.admit`."""
        if not isinstance(model, Model):
            return self.inner.admit(model)
        exported = self._exported(model)
        for refusal in exported.refusals.values():
            return Admission(verdict=refusal)
        admission = self.inner.admit(exported.model)
        if not isinstance(admission, Admission) or not admission.runs_as:
            return admission  # whoever asked looks at what it is
        is_complete = len(admission.runs_as) == len(exported.model.graph.node)
        runs_as = tuple(admission.runs_as[nodes[0]] for nodes in exported.nodes) if is_complete else ()
        return replace(admission, runs_as=runs_as)

    def profile(self) -> Profile | None:
        """See `Context.profile`."""
        return self.inner.profile()

    def kernels(self) -> Sequence[Kernel]:
        """See `Context.kernels`."""
        return self.inner.kernels()

    def compile(self, model: SegmentModel) -> Program:
        """See `Context.compile`; operations are blamed, not nodes."""
        return self._compiled(self.inner.compile, model)

    def compile_whole_graph(self, model: SegmentModel) -> Program:
        """See `Context.compile_whole_graph`; operations are blamed, not nodes."""
        return self._compiled(self.inner.compile_whole_graph, model)

    def clone_with_constants(self, program: Program, model: SegmentModel) -> Program | None:
        """See `Context.clone_with_constants`: ONNX models are compiled."""
        return None if isinstance(model, Model) else self.inner.clone_with_constants(program, model)

    def deserialize(self, blob: bytes) -> Program:
        """See `Context.deserialize`."""
        return self.inner.deserialize(blob)

    def deserialize_view(self, blob: memoryview) -> Program:
        """See `Context.deserialize_view`."""
        return self.inner.deserialize_view(blob)

    def check_blob(self, blob: memoryview) -> Compatibility | None:
        """See `Context.check_blob`."""
        return self.inner.check_blob(blob)

    def with_trace(self, trace: Trace, lane: str) -> DriverContext:
        """See `Context.with_trace`."""
        return ExportingContext(self.inner.with_trace(trace, lane), self._capability)

    def close(self) -> None:
        """See `Context.close`."""
        self._exports.clear()
        self.inner.close()

    def _exported(self, model: Model) -> Export:
        """The model as its device takes it, written once."""
        export = self._exports.get(model)
        if export is None:
            from nnadapter.exporting.export import export_model  # loaded where a model is written
            from nnadapter.onnx.references import inlined

            export = export_model(model)
            if not self._capability.supports_external_initializers:
                export = replace(export, model=inlined(export.model))
            self._exports[model] = export
        return export

    def _compiled(self, compile_model: Any, model: SegmentModel) -> Program:
        if not isinstance(model, Model):
            program: Program = compile_model(model)
            return program
        exported = self._exported(model)
        for refusal in exported.refusals.values():
            raise CompilationError(f"the model has an operation that ONNX cannot say: {refusal.detail}")
        try:
            program = compile_model(exported.model)
        except CompilationError as error:
            refused = _by_operation(blamed_nodes(error, len(exported.model.graph.node)), exported)
            raise CompilationError(str(error), refused=refused) from error
        return program


def _joined(verdicts: Sequence[Verdict]) -> Verdict:
    return next((verdict for verdict in verdicts if not isinstance(verdict, Supported)), SUPPORTED)


def _by_operation(refused: Mapping[int, Unsupported], exported: Export) -> dict[int, Unsupported]:
    blamed: dict[int, Unsupported] = {}
    for position, nodes in enumerate(exported.nodes):
        blamed.update((position, refused[node]) for node in nodes if node in refused)
    return blamed


def taking_ir(capability: Capability, context: DriverContext) -> tuple[Capability, DriverContext]:
    """Return a context that takes adapter IR, and the capability that says so; both as they are if they do."""
    if capability.form is ModelForm.IR:
        return capability, context
    return replace(capability, form=ModelForm.IR), ExportingContext(context, capability)
