"""A model specialized and converted, for one set of input shapes after the other, the work done once where it can be.

1. For the first shapes, converters see traced numbers for the dimensions that the model leaves open. What they make
   is a template, unless a node was refused, since only operations say how dimensions follow from each other.
2. For every further one, the numbers of a template are computed anew, if all that was decided on the way would be
   decided so again. If not, one more template is made.
3. A model of fixed shapes, or one with a refused node, is prepared and converted for each set of shapes.
4. Last, nodes that stand for one thing become one atom (`atoms`).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from nnadapter.converters.calls import KernelCalls
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.convert import Conversion, GrowingConversion, convert_graph
from nnadapter.converters.sizes import MOST_ELEMENTS, SizeArray, evaluate, shape_of
from nnadapter.ir.operand import Array
from nnadapter.ir.structure import TracedModel
from nnadapter.ir.tracing import Trace, Traced, settled
from nnadapter.offering.atoms import captured_names, groups_of, with_atoms, with_nodes_alone, with_own_sources
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.preparation.folding import evaluate as evaluate_nodes
from nnadapter.onnx.preparation.prepare import Prepared, Shapes, Specialized, specialize
from nnadapter.onnx.refusal import Refusal
from nnadapter.process.cache import counts_of
from partition.graph import Value

_TEMPLATES = 8
"""Templates per model; beyond them the one used longest ago goes."""
_MOST_IN_VAIN = 8
"""Tracing is given up for a model after so many attempts in a row that no other shape had any use of."""

Converted = tuple[Specialized, Conversion]


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
        self._lock = Lock()
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
        return specialized, with_nodes_alone(specialized, conversion)

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
        tracing = _Tracing(self._prepared, shapes, specialized, self._calls)
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


@dataclass(frozen=True, slots=True, eq=False)
class ConversionTemplate:
    """A converted model whose dimensions are traced."""

    shapes: Mapping[str, tuple[Any, ...]]
    """Per input, its dimensions, traced where the model leaves them open."""
    trace: Trace
    specialized: Specialized
    conversion: Conversion
    model: TracedModel
    """The converted model."""
    traced: Mapping[str, tuple[Any, ...]]
    """Values whose dimensions are traced, and these."""
    sizes: Mapping[str, SizeArray]
    """Contents that follow from dimensions."""

    def filled(self, shapes: Shapes) -> Converted | None:
        """The model for other input shapes; None if it would not be this one."""
        variables = list(self._variables(shapes))
        if None in variables:
            return None
        known = self.trace.replay(variables)
        if known is None:
            return None
        try:
            return self._specialized(known), self._conversion(known)
        except ArithmeticError:  # a size that the model's own type cannot hold
            return None

    def _variables(self, shapes: Shapes) -> Iterator[Any]:
        """The open dimensions; None among them if the shapes differ elsewhere."""
        if shapes.keys() != self.shapes.keys():
            yield None
            return
        for name, dimensions in self.shapes.items():
            sizes = shapes[name]
            if len(sizes) != len(dimensions):
                yield None
                return
            for size, dimension in zip(sizes, dimensions, strict=True):
                if isinstance(dimension, Traced):
                    yield size
                elif size != dimension:
                    yield None

    def _specialized(self, known: Sequence[Any]) -> Specialized:
        graph = self.specialized.graph
        sizes = {name: array.filled(known) for name, array in self.sizes.items()}
        return replace(
            self.specialized,
            graph=graph.revalued(_FilledValues(graph.values, self.traced, known)),
            constants=ChainMap(sizes, self.specialized.constants),  # type: ignore[arg-type]
        )

    def _conversion(self, known: Sequence[Any]) -> Conversion:
        return replace(self.conversion, model=self.model.filled(known), source=(self.model, known))


class _FilledValues(Mapping[str, Value]):
    """What is known of values for the sizes of a replay, worked out when it is asked for."""

    def __init__(
        self, values: Mapping[str, Value], traced: Mapping[str, tuple[Any, ...]], known: Sequence[Any]
    ) -> None:
        self._values = values
        self._traced = traced
        self._known = known

    def __getitem__(self, name: str) -> Value:
        value, dimensions = self._values[name], self._traced.get(name)
        return value if dimensions is None else replace(value, shape=settled(dimensions, self._known))

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class _Tracing:
    """Converts one specialized model once more, its open dimensions traced."""

    def __init__(self, prepared: Prepared, shapes: Shapes, specialized: Specialized, calls: KernelCalls | None) -> None:
        self._prepared = prepared
        self._calls = calls
        self._specialized = specialized
        self._trace = Trace()
        self._shapes = {name: self._dimensions(name, shape) for name, shape in shapes.items()}
        self._sizes: dict[str, SizeArray] = {}
        self._settled: dict[str, Array] = {}
        self._known: Mapping[str, Array] = {}
        self._context = ConversionContext(
            {**specialized.graph.values, **{name: self._input(name) for name in self._shapes}},
            ChainMap(self._settled, prepared.constants),  # type: ignore[arg-type]
            self._sizes,
            typed_names=self._shapes.keys(),
        )

    @property
    def has_open_dimensions(self) -> bool:
        """Whether there is anything to trace."""
        return any(isinstance(size, Traced) for shape in self._shapes.values() for size in shape)

    def template(self, apart: frozenset[str]) -> ConversionTemplate | None:
        """The template; None where a dimension is known only for these shapes. See `with_atoms` for `apart`."""
        nodes, graph = self._specialized.nodes, self._specialized.graph
        kept: dict[int, list[int]] = {}
        for node, position in enumerate(self._specialized.positions):
            kept.setdefault(position, []).append(node)
        groups = groups_of(self._specialized, apart)
        growing = GrowingConversion(self._context, nodes, graph.outputs, groups, self._calls)
        behind = self._behind(kept.keys())
        self._known = ChainMap(self._evaluated(behind), self._specialized.constants)  # type: ignore[arg-type]
        try:
            for index in sorted(kept.keys() | behind):
                for node in kept.get(index, ()):
                    growing.add(node)
                if index in behind:
                    self._follow(self._prepared.nodes[index])
        except Refusal:
            return None
        conversion = growing.finish()
        if self._context.guessed or not all(conversion.verdicts):
            return None
        specialized, grouped = with_atoms(self._specialized, conversion, apart)
        specialized.graph.derive()
        traced = dict(self._traced_values(conversion))
        return ConversionTemplate(
            shapes=self._shapes,
            trace=self._trace,
            specialized=specialized,
            conversion=grouped,
            model=TracedModel(grouped.model),
            traced={**traced, **dict(_of_copies(specialized, traced))},
            sizes={name: array for name, array in self._sizes.items() if name in self._specialized.constants},
        )

    def _dimensions(self, name: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
        declared = self._prepared.graph.value(name).shape
        if declared is None or len(declared) != len(shape):
            declared = (None,) * len(shape)
        return tuple(
            size if isinstance(known, int) else self._trace.variable(size)
            for size, known in zip(shape, declared, strict=True)
        )

    def _input(self, name: str) -> Value:
        return replace(self._specialized.graph.value(name), shape=self._shapes[name])

    def _behind(self, kept: Set[int]) -> set[int]:
        """Positions of nodes that were evaluated for these shapes and whose results are still read."""
        own, known = self._specialized.own, self._prepared.constants
        pending = [name for index in kept for name in own.nodes[index].reads] + list(own.outputs)
        positions: set[int] = set()
        while pending:
            name = pending.pop()
            index = own.producer.get(name)
            if index is None or index in kept or index in positions or name in known:
                continue
            positions.add(index)
            if not _measures(self._prepared.nodes[index]):  # of what it measures, only the dimensions are asked for
                pending.extend(own.nodes[index].reads)
        return positions

    def _evaluated(self, behind: Set[int]) -> dict[str, Array]:
        """What preparation did not keep of the results of those nodes, because only they read it."""
        nodes, constants = self._prepared.nodes, self._specialized.constants
        missing = {
            index: names
            for index in sorted(behind)
            if (names := [name for name in nodes[index].outputs if name and name not in constants])
        }
        wanted = [name for names in missing.values() for name in names]
        return evaluate_nodes(self._prepared, list(missing), constants, wanted) if missing else {}

    def _follow(self, node: OnnxNode) -> None:
        """Take over what a node made of sizes, traced where there is a rule for it."""
        known = self._known
        if _measures(node):
            self._sizes[node.outputs[0]] = shape_of(node, self._context.dimensions(node.inputs[0]))
            return
        inputs = [self._contents(name) if name else None for name in node.inputs]
        single = len(node.outputs) == 1 and node.outputs[0] in known
        whole = all(sizes is not None for name, sizes in zip(node.inputs, inputs, strict=True) if name)
        made = evaluate(node, inputs, known[node.outputs[0]]) if single and whole else None
        if made is not None:
            self._sizes[node.outputs[0]] = made
            return
        for name in filter(None, node.inputs):
            self._context.constant(name)  # decided on from here on, so that the results stay what they are
        self._settled.update((name, known[name]) for name in node.outputs if name in known)

    def _contents(self, name: str) -> SizeArray | None:
        """Sizes, or a small constant; None for a large one, of which no rule makes anything."""
        sizes = self._sizes.get(name)
        if sizes is None and self._context.constant(name).size <= MOST_ELEMENTS:
            sizes = SizeArray.of(self._context.constant(name))
        return sizes

    def _traced_values(self, conversion: Conversion) -> Iterator[tuple[str, tuple[Any, ...]]]:
        for name, operand in conversion.operand_of.items():
            dimensions = conversion.model.operands[operand].type.dimensions
            if any(isinstance(size, Traced) for size in dimensions):
                yield name, dimensions
        for name, dimensions in self._shapes.items():
            if name not in conversion.operand_of:
                yield name, dimensions


def _of_copies(
    specialized: Specialized, traced: Mapping[str, tuple[Any, ...]]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Traced dimensions of what repeated nodes make: those of what the model's own node makes."""
    for node, position in zip(specialized.graph.nodes, specialized.positions, strict=True):
        for name, own in zip(node.outputs, specialized.own.nodes[position].outputs, strict=True):
            if name != own and own in traced:
                yield name, traced[own]


def _measures(node: OnnxNode) -> bool:
    return node.op_type in ("Shape", "Size") and node.domain in ("", "ai.onnx")
