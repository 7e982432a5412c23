"""Cached conversions of a model: at each set of input shapes, and with dynamic shapes.

A model specialized and converted, for one set of input shapes after the other, the work done once where it can be.

1. For the first shapes, converters see traced numbers for the dimensions that the model leaves open. What they make
   is a template, unless a node was refused, since only operations say how dimensions follow from each other.
2. For every further one, the numbers of a template are computed anew, if all that was decided on the way would be
   decided so again. If not, one more template is made.
3. A model of fixed shapes, or one with a refused node, is prepared and converted for each set of shapes.
4. Last, nodes that stand for one thing become one atom (`atoms`).

A model at one set of shapes, converted for all sizes, and its segments for devices that take adapter IR.

The nodes are those of a plan at some shapes. What follows from shapes alone, and was evaluated there, a segment is
given: single sizes and shapes as inputs, tables by operations that compute them again (`conversion_tracing`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from nnadapter.converters.convert import Conversion, convert_graph
from nnadapter.converters.custom import KernelCalls
from nnadapter.ir.model import Model
from nnadapter.ir.operations.custom import CUSTOM
from nnadapter.offering.atoms import captured_names, groups_of, with_atoms, with_own_sources, with_per_node_conversions
from nnadapter.offering.conversion_tracing import ConversionTracing
from nnadapter.offering.part import Part
from nnadapter.offering.segments import ShapedModel
from nnadapter.offering.traced_conversions import ConversionTemplate, Converted, DynamicConversion
from nnadapter.onnx.preparation.prepare import Prepared, Shapes, Specialized, specialize
from nnadapter.process.cache import counts_of
from nnadapter.process.forking import new_lock
from partition.plan import Step

_TEMPLATES = 8
"""Templates per model; beyond them the one used longest ago goes."""
_MOST_IN_VAIN = 8
"""Tracing is given up for a model after so many attempts in a row that no other shape had any use of."""


class Conversions:
    """Specializes and converts one prepared model; safe to use from many threads.

    Args:
        prepared: the model.
        calls: what kernels of the session's devices compute; None where there are none.
    """

    def __init__(self, prepared: Prepared, calls: KernelCalls | None = None) -> None:
        self._prepared = prepared
        self._calls = calls
        self._templates: tuple[ConversionTemplate, ...] = ()
        self._in_vain = 0
        self._counts = counts_of("converted models")
        self._lock = new_lock()
        self._apart: frozenset[str] = frozenset()

    @property
    def apart(self) -> frozenset[str]:
        """Values that no atom holds inside."""
        return self._apart

    def keep_apart(self, values: frozenset[str]) -> None:
        """Let no atom hold any of `values` inside from now on, and others as they come."""
        if values != self._apart:
            self._apart = values
            self.clear()

    def call_kernels(self, nodes: frozenset[str]) -> None:
        """Let exactly these nodes be calls of kernels, by name, beside those that have no converter."""
        if self._calls is not None and nodes != self._calls.forced:
            self._calls = replace(self._calls, forced=nodes)
            self.clear()

    @property
    def called(self) -> frozenset[str]:
        """Names of nodes that are calls of kernels although they have a converter."""
        return frozenset() if self._calls is None else self._calls.forced

    @property
    def templates(self) -> tuple[ConversionTemplate, ...]:
        """What was made so far, the newest first."""
        return self._templates

    def of(self, shapes: Shapes) -> Converted:
        """Return the model for these input shapes, converted.

        Raises:
            InvalidModelError: the model contradicts itself at these shapes.
        """
        specialized, conversion = self._of(shapes)
        return specialized, with_per_node_conversions(specialized, conversion)

    def _of(self, shapes: Shapes) -> Converted:
        for template in self._templates:
            filled = template.specialize(shapes)
            if filled is not None:
                self._in_vain = 0
                self._counts.hits += 1
                self._keep(template)
                return filled
        self._counts.misses += 1
        specialized = with_own_sources(specialize(self._prepared, shapes), self._apart)
        made = self._template(shapes, specialized)
        filled = None if made is None else made.specialize(shapes)
        return filled or with_atoms(specialized, converted(specialized, self._apart, self._calls), self._apart)

    def _template(self, shapes: Shapes, specialized: Specialized) -> ConversionTemplate | None:
        if self._in_vain >= _MOST_IN_VAIN:
            self.clear()
            return None
        tracing = ConversionTracing(self._prepared, shapes, specialized, self._calls)
        if not tracing.has_open_dimensions:
            return None
        try:
            template = tracing.template(self._apart)
        except Exception:  # noqa: BLE001  what saves work must not be what fails; nothing traced gives the same
            template = None
            self._counts.failures += 1
        self._in_vain += 1
        if template is not None:
            self._keep(template)
        return template

    def _keep(self, template: ConversionTemplate) -> None:
        """Let a template be the first that is tried; the one used longest ago goes."""
        with self._lock:
            if self._templates[:1] != (template,):
                others = (other for other in self._templates if other is not template)
                self._templates = (template, *others)[:_TEMPLATES]

    def clear(self) -> None:
        """Forget every template."""
        with self._lock:
            self._templates = ()


def converted(specialized: Specialized, apart: Collection[str] = (), calls: KernelCalls | None = None) -> Conversion:
    """The model converted for its shapes, nothing traced; no group holds a value of `apart` inside."""
    graph = specialized.graph
    return convert_graph(
        specialized.nodes,
        graph.values,
        specialized.constants,
        graph.outputs,
        captured_names(graph),
        groups_of(specialized, apart),
        calls,
    )


def convert_dynamic(model: ShapedModel) -> DynamicConversion | None:
    """Return the model for all sizes, of the same atoms; None where some are known only for these shapes."""
    if CUSTOM in model.conversion.model.operation_types:
        return None  # kernels are bound to types
    specialized = model.specialized
    nodes_alone = replace(specialized, graph=replace(specialized.graph, atoms=()))
    tracing = ConversionTracing(model.prepared, model.shapes, nodes_alone, None, is_open=True)
    opened = tracing.opened(model.apart)
    return opened if opened is not None and opened.atoms == model.graph.atoms else None


def dynamic_ir_part(opening: DynamicConversion, step: Step, *, with_tables: bool = True) -> Part:
    """The operations of `step`, and what these read that follows from shapes alone.

    Args:
        opening: the model for all sizes.
        step: of a plan of it.
        with_tables: operations make tables, of sizes that are inputs; else the tables are inputs, too.
    """
    conversion = opening.conversion
    own = [operation for node in step.nodes for operation in conversion.operations[node]]
    operand_of, model = conversion.operand_of, conversion.model
    tables = opening.behind(_read(model, own)) if with_tables else ()
    operations = sorted({*own, *tables})
    read = _read(model, operations)
    inputs = [name for name in step.inputs if name in operand_of]
    inputs += [name for name in opening.given_sizes(read) if name not in inputs]
    if not with_tables:
        inputs += {operand: name for name, operand in opening.tables.items() if operand in read}.values()
    wanted = [operand_of[name] for name in step.outputs]
    part = conversion.part(operations, [operand_of[name] for name in inputs], wanted)
    return Part(part, tuple(inputs))


def _read(model: Model, operations: Iterable[int]) -> set[int]:
    return {operand for operation in operations for operand in model.operations[operation].inputs}
