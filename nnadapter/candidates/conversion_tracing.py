"""Conversion with symbolic sizes, and the shape-derived values that segments read."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from math import prod
from typing import Any

from nnadapter.candidates.atoms import groups_of, with_atoms
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.convert import Conversion, GrowingConversion
from nnadapter.converters.custom import KernelCalls
from nnadapter.converters.resampling import resized
from nnadapter.converters.shape_arithmetic import MOST_ELEMENTS, evaluate, shape_of
from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Array
from nnadapter.ir.structure import (
    DynamicDimensions,
    ShapeDerivedTables,
    ShapeDerivedValues,
    SymbolicArray,
    SymbolicModel,
)
from nnadapter.ir.symbolic_numbers import SymbolicNumber, SymbolicTrace, size_hint, substitute_sizes
from nnadapter.onnx.construction import info_of
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.graphs import value_of, values_of
from nnadapter.onnx.inference import Inference
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.preparation.folding import evaluate as evaluate_nodes
from nnadapter.onnx.preparation.prepare import Prepared, Specialized
from nnadapter.onnx.schemas import MICROSOFT, Refusal
from nnadapter.onnx.signature import Shapes
from nnadapter.records import dataclass, replace
from partition.graph import Value

Converted = tuple[Specialized, Conversion]


@dataclass(frozen=True, eq=False)
class ConversionTemplate:
    """Converted model with symbolic dimensions. The guards of its trace limit the shapes that it holds for."""

    shapes: Mapping[str, tuple[Any, ...]]
    trace: SymbolicTrace
    specialized: Specialized
    conversion: Conversion
    model: SymbolicModel
    traced: Mapping[str, tuple[Any, ...]]
    sizes: Mapping[str, SymbolicArray]

    @cached_property
    def _dimensions(self) -> DynamicDimensions:
        return DynamicDimensions(self.shapes)

    def specialize(self, shapes: Shapes) -> Converted | None:
        """Return the model at other input shapes; None if guards fail."""
        variables = self._dimensions.variables(shapes)
        replayed = None if variables is None else self.trace.replay(variables)
        if replayed is None:
            return None
        try:
            return self._specialized(replayed), self._conversion(replayed)
        except ArithmeticError:  # a size overflows the model's integer type
            return None

    def _specialized(self, replayed: Sequence[Any]) -> Specialized:
        graph = self.specialized.graph
        sizes = {name: array.specialize(replayed) for name, array in self.sizes.items()}
        return replace(
            self.specialized,
            graph=graph.revalued(_FilledValues(graph.values, self.traced, replayed)),
            constants=ChainMap(sizes, self.specialized.constants),  # type: ignore[arg-type]
        )

    def _conversion(self, replayed: Sequence[Any]) -> Conversion:
        return replace(self.conversion, model=self.model.specialize(replayed), source=(self.model, replayed))


@dataclass(frozen=True, eq=False)
class DynamicConversion:
    """Model converted for all sizes: no guard depends on the contents of shape-derived values."""

    shapes: Mapping[str, tuple[Any, ...]]
    trace: SymbolicTrace
    atoms: tuple[tuple[int, ...], ...]
    conversion: Conversion
    sizes: Mapping[str, SymbolicArray]

    @cached_property
    def tables(self) -> Mapping[str, int]:
        """Operands of the shape-derived values that operations compute, by name."""
        conversion = self.conversion
        table_operands = {
            operand for table in conversion.tables for operand in conversion.model.operations[table].outputs
        }
        return {name: operand for name, operand in conversion.operand_of.items() if operand in table_operands}

    def given_sizes(self, operands: set[int]) -> Iterator[str]:
        """Yield the names of shape-derived values among `operands` that are model inputs instead of constants."""
        input_operands = operands.intersection(self.conversion.model.inputs)
        return (name for name in self.sizes if self.conversion.operand_of.get(name) in input_operands)

    def table_operations(self, operands: Iterable[int]) -> Iterator[int]:
        """Yield the operations that compute the shape-derived values among `operands`, directly or indirectly."""
        model, tables = self.conversion.model, self.conversion.tables
        pending, visited = list(operands), set[int]()
        while pending:
            source = model.producer.get(pending.pop())
            if source in tables and source not in visited:
                visited.add(source)
                pending.extend(model.operations[source].inputs)
                yield source


class _FilledValues(Mapping[str, Value]):
    """Values with concrete shapes, computed lazily from the sizes that a replayed trace returned."""

    def __init__(
        self, values: Mapping[str, Value], traced: Mapping[str, tuple[Any, ...]], replayed: Sequence[Any]
    ) -> None:
        self._values = values
        self._traced = traced
        self._known = replayed

    def __getitem__(self, name: str) -> Value:
        value, dimensions = self._values[name], self._traced.get(name)
        return value if dimensions is None else replace(value, shape=substitute_sizes(dimensions, self._known))

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def shape_derived_values_of(opening: DynamicConversion, names: Iterable[str]) -> ShapeDerivedValues:
    """Return the function that computes the values `names` from concrete sizes."""
    requested_names = tuple(names)
    tables = [name for name in requested_names if name not in opening.sizes]
    sizes = {name: opening.sizes[name] for name in requested_names if name in opening.sizes}
    return ShapeDerivedValues(requested_names, sizes, _tables(opening, tables) if tables else None)


def _tables(opening: DynamicConversion, names: Sequence[str]) -> ShapeDerivedTables:
    conversion = opening.conversion
    operand_of, model = conversion.operand_of, conversion.model
    table_operands = [operand_of[name] for name in names]
    operations = sorted(opening.table_operations(table_operands))
    read = {operand for operation in operations for operand in model.operations[operation].inputs}
    inputs = tuple(opening.given_sizes(read))
    part = conversion.part(operations, [operand_of[name] for name in inputs], table_operands)
    return ShapeDerivedTables(part, {name: opening.sizes[name] for name in inputs}, tuple(names))


Sizes = tuple[Any, ...]
_Rule = Callable[[OnnxNode, Sequence["Sizes | None"], "Sizes"], "Sizes | None"]
"""(node, input dimensions, inferred dimensions of a result) -> symbolic dimensions, if known."""


def sizes_left(
    node: OnnxNode, dimensions_of: Callable[[str], Sizes | None], values: Mapping[str, Value]
) -> dict[str, Sizes]:
    """Infer the symbolic dimensions of an unconverted node's results, by a rule for its op type.

    `dimensions_of` returns None if unknown. Results that contradict the current types in `values` are omitted.
    """
    rule, first = _RULES.get((node.domain, node.op_type)), _FIRST_RULES.get((node.domain, node.op_type))
    if (rule is None and first is None) or node.contradiction:
        return {}
    read = [dimensions_of(name) if name else None for name in node.inputs]
    sizes_by_name = dict[str, Sizes]()
    for position, name in enumerate(node.outputs):
        inferred = values[name].shape if name in values else None
        output_rule = rule if position or first is None else first
        sizes = None if inferred is None or output_rule is None else output_rule(node, read, inferred)
        if sizes is not None and agree(sizes, inferred):
            sizes_by_name[name] = sizes
    return sizes_by_name


def runs_graphs(node: OnnxNode) -> bool:
    """Return whether subgraphs determine a node's result sizes."""
    return not node.domain and node.op_type in _RUNNING_GRAPHS and not node.contradiction


def resizes(node: OnnxNode) -> bool:
    """Return whether the converter infers a node's result sizes even after a refusal: Resize since opset 11."""
    return (
        not node.domain and node.op_type == "Resize" and node.since_version > _OLDER_RESIZE and not node.contradiction
    )


def sizes_by_names(
    inference: Inference,
    index: int,
    dimensions_of: Callable[[str], Sizes | None],
    values: Mapping[str, Value],
    constants: Mapping[str, Array],
) -> dict[str, Sizes]:
    """Return the symbolic dimensions of a node's results by ONNX shape inference, with a name per symbolic size.

    Omitted are dimensions that differ between branches of an `If`, and results that contradict `values`.
    """
    names = dict[str, Any]()
    input_types = {
        name: info_of(replace(values[name], shape=_named(dimensions_of(name), names)))
        for name in inference.read_by(index)
        if name in values and name not in constants
    }
    try:
        inferred = inference.types_of_one(index, input_types, constants, states_inside=False)
    except InvalidModelError:  # the contradiction may come from the names: the current shapes have none
        return {}
    result_sizes = {name: _traced(value_of(info).shape, names) for name, info in inferred.items() if name in values}
    return {
        name: sizes for name, sizes in result_sizes.items() if sizes is not None and agree(sizes, values[name].shape)
    }


def _traced(shape: Sizes | None, names: Mapping[str, Any]) -> Sizes | None:
    sizes = None if shape is None else tuple(names.get(size) if isinstance(size, str) else size for size in shape)
    return None if sizes is None or any(size is None for size in sizes) else sizes


def _named(sizes: Sizes | None, names: dict[str, Any]) -> tuple[int | str, ...] | None:
    """Replace symbolic sizes in a shape by names, and add these to `names`."""
    if sizes is None:
        return None
    named = list[int | str]()
    for size in sizes:
        if isinstance(size, SymbolicNumber):
            first = size.trace.representative(size.number)
            named.append(f"{_NAME}{first}")
            names.setdefault(f"{_NAME}{first}", size)
        else:
            named.append(int(size))
    return tuple(named)


def agree(sizes: Sizes, inferred: Sizes | None) -> bool:
    """Return whether `sizes` equal the inferred ones at the current shapes. Inferred names equal any size."""
    return (
        inferred is not None
        and len(sizes) == len(inferred)
        and all(
            not isinstance(inferred_size, int) or size == inferred_size
            for size, inferred_size in zip(size_hint(sizes), inferred, strict=True)
        )
    )


def _like_first_input(node: OnnxNode, read: Sequence[Sizes | None], inferred: Sizes) -> Sizes | None:
    return read[0]


def _rows_of_the_first(node: OnnxNode, read: Sequence[Sizes | None], inferred: Sizes) -> Sizes | None:
    return _led_by(read[0][0], inferred) if read[0] and len(read[0]) > 1 else None


def _targets_of_rows(node: OnnxNode, read: Sequence[Sizes | None], inferred: Sizes) -> Sizes | None:
    targets = node.integer("targets", 1)  # an SVMRegressor has one target
    return (read[0][0], targets) if read[0] and len(read[0]) > 1 else None


def _picked(node: OnnxNode, read: Sequence[Sizes | None], inferred: Sizes) -> Sizes | None:
    data, places = read
    return (*data[:-1], prod(places)) if data and len(data) > 1 and places is not None else None


def _one_hot(node: OnnxNode, read: Sequence[Sizes | None], inferred: Sizes) -> Sizes | None:
    return None if read[0] is None or not inferred or not isinstance(inferred[-1], int) else (*read[0], inferred[-1])


def _led_by(size: Any, inferred: Sizes) -> Sizes | None:
    trailing_sizes = inferred[1:]
    return (
        (size, *trailing_sizes)
        if inferred and all(isinstance(dimension, int) for dimension in trailing_sizes)
        else None
    )


def _sampled(node: OnnxNode, read: Sequence[Sizes | None], inferred: Sizes) -> Sizes | None:
    return (read[0][0], node.integer("sample_size", 1)) if read[0] else None


def _attended(node: OnnxNode, read: Sequence[Sizes | None], inferred: Sizes) -> Sizes | None:
    if not read[0] or node.input(1):
        return read[0]
    heads = node.integer("num_heads", 1)
    return (*read[0][:-1], read[0][-1] * heads // (heads + 2 * node.integer("kv_num_heads", 1)))


_MACHINE_LEARNING = "ai.onnx.ml"
_RUNNING_GRAPHS = frozenset(("If", "Scan"))
_OLDER_RESIZE = 10
_NAME = "traced size "
_FIRST_RULES: Mapping[tuple[str, str], _Rule] = {(MICROSOFT, "GroupQueryAttention"): _attended}
_RULES: Mapping[tuple[str, str], _Rule] = {
    (domain, op_type): rule
    for domain, op_types, rule in (
        (_MACHINE_LEARNING, "Binarizer CategoryMapper Imputer LabelEncoder Normalizer Scaler", _like_first_input),
        (MICROSOFT, "MoE QMoE", _like_first_input),
        # Scatter whose data arguments decide the result, as image features inserted among token embeddings.
        ("", "Scatter ScatterElements ScatterND", _like_first_input),
        # Dropout with training_mode, which drops elements
        ("", "Bernoulli RandomNormalLike RandomUniformLike Dropout", _like_first_input),
        (_MACHINE_LEARNING, "LinearClassifier SVMClassifier", _rows_of_the_first),
        (_MACHINE_LEARNING, "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor", _rows_of_the_first),
        ("", "Multinomial", _sampled),
        (_MACHINE_LEARNING, "ArrayFeatureExtractor", _picked),
        (_MACHINE_LEARNING, "LinearRegressor SVMRegressor", _targets_of_rows),
        (_MACHINE_LEARNING, "OneHotEncoder", _one_hot),
    )
    for op_type in op_types.split()
}


class ConversionTracing:
    """Conversion of a specialized model with symbolic dimensions in place of its dynamic ones.

    `specialized` is the model at `shapes`, one node per atom, and `calls` are nodes that custom kernels compute. If
    `is_open`, operations compute shape-derived tables; otherwise guards fix the contents of these tables.
    """

    def __init__(
        self,
        prepared: Prepared,
        shapes: Shapes,
        specialized: Specialized,
        calls: KernelCalls | None,
        *,
        is_open: bool = False,
    ) -> None:
        self._prepared = prepared
        self._calls = calls
        self._is_open = is_open
        self._specialized = specialized
        self._trace = SymbolicTrace()
        self._shapes = {name: self._dimensions(name, shape) for name, shape in shapes.items()}
        self._sizes: dict[str, SymbolicArray] = {}
        self._settled: dict[str, Array] = {}
        self._known: Mapping[str, Array] = {}
        self._tables: set[str] = set()
        self._fixed = _fixed_values(prepared) if is_open else frozenset[str]()
        self._typed = {*self._shapes, *self._fixed}
        self._values = {**specialized.graph.values, **{name: self._input(name) for name in self._shapes}}
        self._context = ConversionContext(
            self._values,
            ChainMap(self._settled, prepared.constants),  # type: ignore[arg-type]
            self._sizes,
            typed_names=self._typed,
            takes_sizes=is_open,
        )

    @property
    def has_open_dimensions(self) -> bool:
        return any(isinstance(size, SymbolicNumber) for shape in self._shapes.values() for size in shape)

    def template(self, visible_values: frozenset[str]) -> ConversionTemplate | None:
        """Return the conversion as a template; None if a dimension is known only for these shapes."""
        conversion = self._converted(visible_values)
        if conversion is None:
            return None
        specialized, grouped = with_atoms(self._specialized, conversion, visible_values)
        specialized.graph.derive()
        traced = dict(self._traced_values(conversion))
        return ConversionTemplate(
            shapes=self._shapes,
            trace=self._trace,
            specialized=specialized,
            conversion=grouped,
            model=SymbolicModel(grouped.model),
            traced={**traced, **dict(_of_copies(specialized, traced))},
            sizes={name: array for name, array in self._sizes.items() if name in self._specialized.constants},
        )

    def opened(self, visible_values: frozenset[str]) -> DynamicConversion | None:
        """Return the conversion for all sizes, or None as in `template`.

        Unconvertible nodes are omitted. If the sizes of their results are needed but cannot be inferred, return None.
        """
        conversion = self._converted(visible_values)
        if conversion is None:
            return None
        specialized, grouped = with_atoms(self._specialized, conversion, visible_values)
        return DynamicConversion(self._shapes, self._trace, specialized.graph.atoms, grouped, self._sizes)

    def _converted(self, visible_values: frozenset[str]) -> Conversion | None:
        nodes, graph = self._specialized.nodes, self._specialized.graph
        nodes_by_position: dict[int, list[int]] = {}
        for node, position in enumerate(self._specialized.positions):
            nodes_by_position.setdefault(position, []).append(node)
        groups = groups_of(self._specialized, visible_values)
        growing = GrowingConversion(self._context, nodes, graph.outputs, groups, self._calls)
        remaining, model_graph = nodes_by_position.keys(), self._specialized.model_nodes
        read = (name for index in remaining for name in model_graph.nodes[index].reads)
        evaluated_positions = self._evaluated_producers([*read, *model_graph.outputs], remaining, sized=False)
        if self._reads_remaining(evaluated_positions, remaining):
            return None
        sized = [name for index in evaluated_positions for name in self._sized_by(index)] if self._is_open else []
        measured = self._evaluated_producers(sized, remaining | evaluated_positions, sized=True)
        run = self._run_dependent(measured, remaining)
        evaluated_positions |= measured - run
        self._known = ChainMap(self._evaluated(evaluated_positions), self._specialized.constants)  # type: ignore[arg-type]
        self._values.update((value.name, value) for value in self._evaluated_types(evaluated_positions))
        self._values.update((value.name, value) for value in self._inferred_types(run))
        try:
            for index in sorted(remaining | evaluated_positions | run):
                for node in nodes_by_position.get(index, ()):
                    growing.add(node)
                    self._size_unconverted(nodes[node], index)
                if index in evaluated_positions:
                    self._follow(self._prepared.nodes[index], growing)
                elif index in run:  # nothing reads its result, and its sizes are known by now
                    growing.add_table(self._prepared.nodes[index])
        except Refusal:
            return None
        conversion = growing.finish()
        is_whole = self._is_open or all(conversion.verdicts)
        return conversion if is_whole and not self._context.guessed else None

    def _dimensions(self, name: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
        declared = self._prepared.graph.value(name).shape
        if declared is None or len(declared) != len(shape):
            declared = (None,) * len(shape)
        return tuple(
            size if isinstance(declared_size, int) else self._trace.variable(size)
            for size, declared_size in zip(shape, declared, strict=True)
        )

    def _input(self, name: str) -> Value:
        return replace(self._specialized.graph.value(name), shape=self._shapes[name])

    def _evaluated_producers(self, names: Iterable[str], other_positions: Set[int], *, sized: bool) -> set[int]:
        """Return the positions of nodes that compute `names`, directly or indirectly.

        Nodes at `other_positions` are excluded. Only if `sized`, the search follows the inputs of Shape and Size.
        """
        model_graph, constants = self._specialized.model_nodes, self._prepared.constants
        pending, positions = list(names), set[int]()
        while pending:
            name = pending.pop()
            index = model_graph.producer.get(name)
            if index is None or index in other_positions or index in positions or name in constants:
                continue
            positions.add(index)
            if not _measures(self._prepared.nodes[index]):
                pending.extend(model_graph.nodes[index].reads)
            elif sized:
                pending.extend(self._sized_by(index))
        return positions

    def _reads_remaining(self, evaluated_positions: Set[int], remaining_positions: Set[int]) -> bool:
        model_graph, constants, nodes = self._specialized.model_nodes, self._specialized.constants, self._prepared.nodes
        read = (
            name
            for index in evaluated_positions
            if not _measures(nodes[index])
            for name in model_graph.nodes[index].reads
        )
        return any(name not in constants and model_graph.producer.get(name) in remaining_positions for name in read)

    def _sized_by(self, index: int) -> list[str]:
        node = self._prepared.nodes[index]
        return [name for name in node.inputs if _measures(node) and name not in self._fixed]

    def _run_dependent(self, positions: Set[int], remaining_positions: Set[int]) -> Set[int]:
        model_graph, constants, nodes = self._specialized.model_nodes, self._specialized.constants, self._prepared.nodes
        run = set(remaining_positions)
        for index in sorted(positions):
            is_known = _measures(nodes[index]) and nodes[index].outputs[0] in constants
            read = [] if is_known else [name for name in model_graph.nodes[index].reads if name not in constants]
            if any(name in self._shapes or model_graph.producer.get(name) in run for name in read):
                run.add(index)
        return run - remaining_positions

    def _evaluated(self, positions: Set[int]) -> dict[str, Array]:
        nodes, constants = self._prepared.nodes, self._specialized.constants
        missing = {
            index: names
            for index in sorted(positions)
            if (names := [name for name in nodes[index].outputs if name and name not in constants])
        }
        missing_names = [name for names in missing.values() for name in names]
        return evaluate_nodes(self._prepared, list(missing), constants, missing_names) if missing else {}

    def _evaluated_types(self, positions: Iterable[int]) -> Iterator[Value]:
        names = (name for index in positions for name in self._prepared.nodes[index].outputs if name in self._known)
        for name in names:
            value, array = self._values.get(name) or Value(name), self._known[name]
            if value.static_shape is None:
                yield replace(value, dtype=array.dtype.name, shape=array.shape)

    def _inferred_types(self, run: Iterable[int]) -> Iterator[Value]:
        inference, nodes, contents = self._prepared.inference, self._prepared.nodes, self._known
        values = dict(self._specialized.graph.values)
        for index in sorted(run):
            input_types = {name: info_of(values[name]) for name in nodes[index].inputs if name in values}
            try:
                result_types = inference.types_of_one(index, input_types, contents) | inference.stated_of_one(
                    index, values, contents
                )
            except InvalidModelError:  # no device runs it
                continue
            fresh = values_of(info for name, info in result_types.items() if name not in values)
            values.update(fresh)
            yield from fresh.values()

    def _size_unconverted(self, node: OnnxNode, index: int) -> None:
        if not self._is_open or all(name in self._context.operand_of for name in node.outputs if name):
            return
        if runs_graphs(node) and node.outputs == self._prepared.nodes[index].outputs:
            sized = self._sized_by_graphs(index)
        elif resizes(node):
            sized = self._sized_by_converter(node)
        else:
            sized = sizes_left(node, self._sizes_of, self._values)
        for name, sizes in sized.items():
            self._values[name] = replace(self._values[name], shape=sizes)
            self._context.forget_type(name)  # the refusing converter has cached it
            self._typed.add(name)

    def _sized_by_converter(self, node: OnnxNode) -> dict[str, Sizes]:
        (output,) = node.outputs
        try:
            sizes = resized(self._context, node)
        except Refusal:
            return {}
        return {output: sizes} if agree(sizes, self._values[output].shape) else {}

    def _sized_by_graphs(self, index: int) -> dict[str, Sizes]:
        """Return the result sizes of a node with subgraphs.

        If some are unknown, the inference is repeated with guards that dimensions of equal name are equal.
        """
        prepared = self._prepared
        sizes_by_name = dict[str, Sizes]()
        for is_asked in (False, True):
            if is_asked:
                self._guard_equal_names()
            sizes_by_name = sizes_by_names(prepared.inference, index, self._sizes_of, self._values, prepared.constants)
            if sizes_by_name.keys() >= set(filter(None, prepared.nodes[index].outputs)):
                break
        return sizes_by_name

    def _guard_equal_names(self) -> None:
        first = dict[str, Any]()
        for name, sizes in self._shapes.items():
            for size, called in zip(sizes, self._prepared.graph.value(name).shape or (), strict=False):
                if isinstance(called, str) and called:
                    bool(first.setdefault(called, size) == size)

    def _sizes_of(self, name: str) -> tuple[Any, ...] | None:
        if name in self._context.operand_of:
            return self._context.dimensions(name)
        is_known = name in self._values and (name in self._typed or self._context.is_constant(name))
        return self._values[name].shape if is_known else None

    def _follow(self, node: OnnxNode, growing: GrowingConversion) -> None:
        contents = self._known
        if _measures(node):
            self._sizes[node.outputs[0]] = shape_of(node, self._context.dimensions(node.inputs[0]))
            return
        inputs = [self._contents(name) if name else None for name in node.inputs]
        single = len(node.outputs) == 1 and node.outputs[0] in contents
        is_complete = all(sizes is not None for name, sizes in zip(node.inputs, inputs, strict=True) if name)
        result = evaluate(node, inputs, contents[node.outputs[0]]) if single and is_complete else None
        if result is not None:
            self._sizes[node.outputs[0]] = result
        elif not (self._is_open and self._reads_shape_derived(node) and self._add_table(node, growing)):
            self._settle(node)

    def _reads_shape_derived(self, node: OnnxNode) -> bool:
        sizes = [self._sizes[name] for name in node.inputs if name in self._sizes]
        return not self._tables.isdisjoint(node.inputs) or any(size.is_traced for size in sizes)

    def _add_table(self, node: OnnxNode, growing: GrowingConversion) -> bool:
        added = growing.add_table(node)
        if added:
            self._tables.update(filter(None, node.outputs))
        return added

    def _settle(self, node: OnnxNode) -> None:
        """Fix a node's results to their current contents, with guards on its inputs."""
        for name in filter(None, node.inputs):
            self._context.constant(name)
        self._settled.update((name, self._known[name]) for name in node.outputs if name in self._known)

    def _contents(self, name: str) -> SymbolicArray | None:
        sizes = self._sizes.get(name)
        if sizes is not None or name in self._tables:
            return sizes
        constant = self._context.constant(name)
        return SymbolicArray.of(constant) if constant.size <= MOST_ELEMENTS else None

    def _traced_values(self, conversion: Conversion) -> Iterator[tuple[str, tuple[Any, ...]]]:
        for name, operand in conversion.operand_of.items():
            dimensions = conversion.model.operands[operand].type.dimensions
            if any(isinstance(size, SymbolicNumber) for size in dimensions):
                yield name, dimensions
        for name, dimensions in self._shapes.items():
            if name not in conversion.operand_of:
                yield name, dimensions


def _fixed_values(prepared: Prepared) -> Set[str]:
    return {name for name, value in prepared.values.items() if value.static_shape is not None}


def _of_copies(
    specialized: Specialized, traced: Mapping[str, tuple[Any, ...]]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for node, position in zip(specialized.graph.nodes, specialized.positions, strict=True):
        for name, original in zip(node.outputs, specialized.model_nodes.nodes[position].outputs, strict=True):
            if name != original and original in traced:
                yield name, traced[original]


def _measures(node: OnnxNode) -> bool:
    return node.op_type in ("Shape", "Size") and not plain_domain(node.domain)
