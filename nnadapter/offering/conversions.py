"""A model specialized and converted, for one set of input shapes after the other, the work done once where it can be.

1. For the first shapes, converters see traced numbers for the dimensions that the model leaves open. What they make
   is a template, unless a node was refused, since only operations say how dimensions follow from each other.
2. For every further one, the numbers of a template are computed anew, if all that was decided on the way would be
   decided so again. If not, one more template is made.
3. A model of fixed shapes, or one with a refused node, is prepared and converted for each set of shapes.
4. Last, nodes that stand for one thing become one atom (`atoms`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from nnadapter.converters.calls import KernelCalls
from nnadapter.converters.convert import Conversion, convert_graph
from nnadapter.offering.atoms import captured_names, groups_of, with_atoms, with_own_sources, with_per_node_conversions
from nnadapter.offering.conversion_tracing import ConversionTracing
from nnadapter.offering.traced_conversions import ConversionTemplate, Converted
from nnadapter.onnx.preparation.prepare import Prepared, Shapes, Specialized, specialize
from nnadapter.process.cache import counts_of
from nnadapter.process.forking import new_lock

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
            filled = template.filled(shapes)
            if filled is not None:
                self._in_vain = 0
                self._counts.hits += 1
                self._keep(template)
                return filled
        self._counts.misses += 1
        specialized = with_own_sources(specialize(self._prepared, shapes), self._apart)
        made = self._template(shapes, specialized)
        filled = None if made is None else made.filled(shapes)
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
