"""Conversions of a prepared model to adapter IR, cached for many input shapes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from nnadapter.candidates import atoms
from nnadapter.candidates.conversion_tracing import ConversionTemplate, ConversionTracing, Converted, DynamicConversion
from nnadapter.candidates.part import Part
from nnadapter.candidates.segments import ShapedModel
from nnadapter.converters.convert import Conversion, contradiction, convert_graph, output_types
from nnadapter.converters.custom import KernelCalls
from nnadapter.converters.registry import has_converter
from nnadapter.ir import Model
from nnadapter.ir.operations.custom import CUSTOM
from nnadapter.onnx.model import NO_RULES, Operators, Rules
from nnadapter.onnx.preparation import prepare as preparation
from nnadapter.onnx.preparation.prepare import Prepared, Specialized, specialize
from nnadapter.onnx.signature import Shapes
from nnadapter.process.resources import counts_of, new_lock
from nnadapter.records import replace
from partition import Step

if TYPE_CHECKING:
    import onnx


OPERATORS = Operators(has_converter, contradiction, output_types)


def offered_ops(model: onnx.ModelProto, domains: frozenset[str]) -> set[tuple[str, str]]:
    """Return the ops of `domains` without a converter, as (domain, op type)."""
    from nnadapter.onnx.schemas import external_versions, further_schema

    ops = {(node.domain, node.op_type) for node in model.graph.node if node.domain in domains}
    return {op for op in ops if further_schema(*op) is None and not external_versions(*op)}


def prepare(model: onnx.ModelProto, rules: Rules = NO_RULES) -> Prepared:
    """Return `model` after its shape-independent preparation; see `preparation.prepare`.

    `rules` give result types of ops that onnx does not know. Raises InvalidModelError.
    """
    return preparation.prepare(model, replace(OPERATORS, rules=rules))


_TEMPLATES = 8
_MOST_IN_VAIN = 8
"""Consecutive unused templates after which a model is no longer traced."""


class Conversions:
    """Conversions of one prepared model to adapter IR, one per set of input shapes. Thread-safe.

    `calls` are nodes that custom kernels compute.
    """

    def __init__(self, prepared: Prepared, calls: KernelCalls | None = None) -> None:
        self._prepared = prepared
        self._calls = calls
        self._templates: tuple[ConversionTemplate, ...] = ()
        self._in_vain = 0
        self._counts = counts_of("converted models")
        self._lock = new_lock()
        self._visible_values: frozenset[str] = frozenset()

    @property
    def visible_values(self) -> frozenset[str]:
        return self._visible_values

    def keep_visible(self, values: frozenset[str]) -> None:
        if values != self._visible_values:
            self._visible_values = values
            self.clear()

    def call_kernels(self, nodes: frozenset[str]) -> None:
        """Let exactly these nodes call custom kernels, in addition to nodes without a converter."""
        if self._calls is not None and nodes != self._calls.forced:
            self._calls = replace(self._calls, forced=nodes)
            self.clear()

    @property
    def called(self) -> frozenset[str]:
        """Nodes that call custom kernels although they have a converter."""
        return frozenset() if self._calls is None else self._calls.forced

    @property
    def templates(self) -> tuple[ConversionTemplate, ...]:
        """Cached conversions with symbolic sizes, the most recently used first."""
        return self._templates

    def of(self, shapes: Shapes) -> Converted:
        """Return the model specialized for these input shapes, and its conversion. Raises InvalidModelError."""
        specialized, conversion = self._of(shapes)
        return specialized, atoms.with_per_node_conversions(specialized, conversion)

    def _of(self, shapes: Shapes) -> Converted:
        for template in self._templates:
            filled = template.specialize(shapes)
            if filled is not None:
                self._in_vain = 0
                self._counts.hits += 1
                self._keep(template)
                return filled
        self._counts.misses += 1
        specialized = atoms.with_own_sources(specialize(self._prepared, shapes), self._visible_values)
        new_template = self._template(shapes, specialized)
        filled = None if new_template is None else new_template.specialize(shapes)
        return filled or atoms.with_atoms(
            specialized, converted(specialized, self._visible_values, self._calls), self._visible_values
        )

    def _template(self, shapes: Shapes, specialized: Specialized) -> ConversionTemplate | None:
        if self._in_vain >= _MOST_IN_VAIN:
            self.clear()
            return None
        tracing = ConversionTracing(self._prepared, shapes, specialized, self._calls)
        if not tracing.has_open_dimensions:
            return None
        try:
            template = tracing.template(self._visible_values)
        except Exception:  # noqa: BLE001  tracing only saves work; without it the result is the same
            template = None
            self._counts.failures += 1
        self._in_vain += 1
        if template is not None:
            self._keep(template)
        return template

    def _keep(self, template: ConversionTemplate) -> None:
        with self._lock:
            if self._templates[:1] != (template,):
                other_templates = (other for other in self._templates if other is not template)
                self._templates = (template, *other_templates)[:_TEMPLATES]

    def clear(self) -> None:
        with self._lock:
            self._templates = ()


def converted(
    specialized: Specialized, visible_values: Collection[str] = (), calls: KernelCalls | None = None
) -> Conversion:
    """Convert a model to adapter IR for its concrete shapes."""
    graph = specialized.graph
    return convert_graph(
        specialized.nodes,
        graph.values,
        specialized.constants,
        graph.outputs,
        atoms.captured_names(graph),
        atoms.groups_of(specialized, visible_values),
        calls,
    )


def convert_dynamic(model: ShapedModel) -> DynamicConversion | None:
    """Return the conversion for all sizes; None with custom kernels, or if it fits only the model's shapes."""
    if CUSTOM in model.conversion.model.operation_types:
        return None  # kernels are bound to types
    specialized = model.specialized
    nodes_alone = replace(specialized, graph=replace(specialized.graph, atoms=()))
    tracing = ConversionTracing(model.prepared, model.shapes, nodes_alone, None, is_open=True)
    opened = tracing.opened(model.visible_values)
    return opened if opened is not None and opened.atoms == model.graph.atoms else None


def dynamic_ir_part(opening: DynamicConversion, step: Step, *, with_tables: bool = True) -> Part:
    """Return the operations of `step` as a model, whose inputs include the sizes that the operations read.

    `with_tables` adds the operations that compute shape-derived tables; otherwise tables are inputs too.
    """
    conversion = opening.conversion
    step_operations = [operation for node in step.nodes for operation in conversion.operations[node]]
    operand_of, model = conversion.operand_of, conversion.model
    tables = opening.table_operations(_read(model, step_operations)) if with_tables else ()
    operations = sorted({*step_operations, *tables})
    read = _read(model, operations)
    inputs = [name for name in step.inputs if name in operand_of]
    inputs += [name for name in opening.given_sizes(read) if name not in inputs]
    if not with_tables:
        inputs += {operand: name for name, operand in opening.tables.items() if operand in read}.values()
    output_operands = [operand_of[name] for name in step.outputs]
    part = conversion.part(operations, [operand_of[name] for name in inputs], output_operands)
    return Part(part, tuple(inputs))


def _read(model: Model, operations: Iterable[int]) -> set[int]:
    return {operand for operation in operations for operand in model.operations[operation].inputs}
