"""Preparation: propagate shapes and fold constants to a fixed point."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod

import onnx

from nnadapter import limits
from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Array, freeze
from nnadapter.onnx.graphs import read_nodes, values_of
from nnadapter.onnx.inference import Inference, InitialFacts, Types
from nnadapter.onnx.inlining import expand_functions, inline_branches
from nnadapter.onnx.model import OnnxModel, OnnxNode, Operators, read_model
from nnadapter.onnx.normal_form import check_versions, in_order, with_dense, with_imports
from nnadapter.onnx.parts import check_equations
from nnadapter.onnx.preparation.branch_decisions import Choice
from nnadapter.onnx.preparation.folding import Folding, is_known
from nnadapter.onnx.preparation.node_hashes import NodeHashes, structure_of
from nnadapter.onnx.preparation.shape_facts import Forward, empty_parts, infer_ranks, marked, without_parts
from nnadapter.onnx.references import array_of, read_ahead, with_references
from nnadapter.onnx.signature import Shapes
from nnadapter.process.resources import paused_collection
from nnadapter.records import dataclass, field, replace
from partition.graph import Graph, Node, Value

_WHOLE_ROUNDS = 2
"""Rounds that only infer over the entire graph. Later rounds, and the first if `has_rules`, also infer node by node."""
_MOST_ROUNDS = 6
"""Maximum number of rounds, so that time stays linear."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Prepared(OnnxModel):
    """Model with all shape-independent work done."""

    constants: Mapping[str, Array]
    evaluated: frozenset[int]
    """Positions of nodes that are evaluated into `constants`."""
    inference: Inference
    values: Mapping[str, Value]
    """Types and shapes that hold at any input shapes."""
    defaults: Mapping[str, Array]
    """Initializers that are also inputs."""
    stated: Types = field(default_factory=dict)
    """Types from other sources than onnx."""
    referenced_arrays: Sequence[Array] = ()
    """Arrays that references need to stay alive."""
    original: Prepared | None = None
    """Model before constant `If` nodes were inlined, or None."""
    functions: tuple[tuple[str, OnnxNode], ...] = ()
    """Pairs of an original node's name and a function op that was expanded there."""
    branch_decisions: Choice = ()
    """Branches inlined because of inputs."""

    @cached_property
    def remaining(self) -> tuple[int, ...]:
        return tuple(index for index in range(len(self.nodes)) if index not in self.evaluated)

    def accepts(self, shapes: Shapes) -> bool:
        return self.inference.agrees(InitialFacts(shapes, self.constants, self.remaining))

    @cached_property
    def types(self) -> Mapping[str, onnx.ValueInfoProto]:
        """Types of all values, as onnx infers them for any input shapes."""
        return self.inference.types(InitialFacts({}, self.constants, range(len(self.nodes)), self.stated))

    @cached_property
    def inferred_ranks(self) -> Mapping[str, Value]:
        """Values that have no rank in `values`, with inferred ranks."""
        facts = InitialFacts({}, self.constants, range(len(self.nodes)), self.stated)
        return infer_ranks(self.inference, self.nodes, facts, self.values)

    @cached_property
    def structure(self) -> NodeHashes:
        return structure_of(self.graph, self.nodes, self.constants)


@dataclass(frozen=True, eq=False)
class Specialized:
    """Model at one set of input shapes."""

    model_nodes: Graph
    graph: Graph
    nodes: tuple[OnnxNode, ...]
    positions: tuple[int, ...]
    constants: Mapping[str, Array]
    folded: tuple[str, ...]
    """Names of nodes evaluated before the run."""
    unused: tuple[str, ...]
    """Names of nodes that no output needs."""


@paused_collection
def prepare(model: onnx.ModelProto, operators: Operators) -> Prepared:
    """Do all shape-independent work on `model`; `operators` adds facts from converters and kernels.

    An `If` with a constant condition becomes its branch, so the model may be rewritten.

    Raises:
        InvalidModelError: the graph or an Einsum equation is invalid.
    """
    check_versions(model)
    check_equations(model)
    model = with_dense(model)
    nodes = read_nodes(model)
    model = with_imports(model, {node.domain for node in nodes})
    ordered = in_order(model, nodes)
    expanded, origins = expand_functions(ordered, operators, nodes=nodes if ordered is model else None)
    read = nodes if expanded is model else None
    return without_empty_parts(inline_constant_branches(prepare_expanded(expanded, origins, operators, read)))


def without_empty_parts(prepared: Prepared) -> Prepared:
    """Return the model without Concat inputs that are empty at all input shapes."""
    parts = empty_parts(prepared.nodes, prepared.values, prepared.constants)
    if not parts:
        return prepared
    origins = [node.origins[0] for node in prepared.graph.nodes]
    pruned = prepare_expanded(without_parts(prepared.model, parts), origins, prepared.operators)
    return replace(
        pruned,
        original=prepared.original,
        branch_decisions=prepared.branch_decisions,
        referenced_arrays=(*prepared.referenced_arrays, *pruned.referenced_arrays),
    )


def inline_constant_branches(prepared: Prepared) -> Prepared:
    """Inline the branch of each `If` with a constant condition."""
    original = prepared
    while conditions := _known_conditions(prepared):
        try:
            prepared = replace(inline_decided_branches(prepared, conditions), original=original)
        except InvalidModelError:
            break  # An invalid branch is harmless while it is not inlined.
    return prepared


def inline_decided_branches(prepared: Prepared, conditions: Mapping[int, bool]) -> Prepared:
    """Replace `If` nodes in `conditions` by branches; inlined nodes get the `If`'s origin. Raises InvalidModelError."""
    inlined, stands_for = inline_branches(prepared.model, conditions)
    origin = {name: prepared.graph.nodes[position].origins[0] for name, position in stands_for}
    expanded, names = expand_functions(inlined, prepared.operators)
    result = prepare_expanded(expanded, [origin[name] for name in names], prepared.operators)
    return replace(result, branch_decisions=prepared.branch_decisions)


def _known_conditions(prepared: Prepared) -> dict[int, bool]:
    return {
        position: bool(prepared.constants[node.inputs[0]].reshape(-1)[0])
        for position, node in enumerate(prepared.nodes)
        if node.op_type == "If"
        and node.domain == ""
        and node.attributes.keys() >= {"then_branch", "else_branch"}
        and node.inputs
        and node.inputs[0] in prepared.constants
        and prepared.constants[node.inputs[0]].size == 1
    }


def prepare_expanded(
    model: onnx.ModelProto,
    origins: Sequence[str],
    operators: Operators,
    read: tuple[Node, ...] | None = None,
) -> Prepared:
    """Prepare a model whose functions are expanded: infer shapes and fold constants. Arguments as in `read_model`."""
    model, weight_arrays = with_references(model)
    onnx_model = read_model(model, operators, origins, read or ())
    initializers = _initializers(model, onnx_model.graph.constants)
    inference = Inference(onnx_model)
    facts = InitialFacts({}, initializers, range(len(onnx_model.nodes)))
    if inference.has_further:
        onward = Forward(onnx_model, inference, facts, _once_bytes(initializers), dynamic_shapes=True)
        onward.propagate()
        facts = replace(facts, stated=onward.stated)
    values = inference.values(facts)
    folding = _fold(onnx_model, facts, values, _once_bytes(initializers))
    values = _fold_further(onnx_model, folding, inference, facts, values)
    return Prepared(
        model=model,
        graph=onnx_model.graph,
        nodes=onnx_model.nodes,
        operators=operators,
        constants={**initializers, **folding.folded},
        evaluated=frozenset(folding.evaluated),
        inference=inference,
        values=values,
        stated=facts.stated,
        defaults=_initializers(model, frozenset(onnx_model.graph.inputs)),
        referenced_arrays=weight_arrays,
    )


def _once_bytes(constants: Mapping[str, Array]) -> int:
    constant_bytes = sum(array.nbytes for array in constants.values())
    return min(limits.FOLDED_BYTES, limits.FREELY_FOLDED_BYTES + limits.FOLDING_GROWTH * constant_bytes)


def specialize(prepared: Prepared, shapes: Shapes) -> Specialized:
    """Return the model at these input shapes, or raise InvalidModelError."""
    graph = prepared.graph
    added: dict[str, Array] = {}
    constants = ChainMap(added, prepared.constants)  # type: ignore[arg-type]
    evaluated = set(prepared.evaluated)
    remaining_nodes = _reached(graph, constants)
    stated: dict[str, onnx.ValueInfoProto] = {}
    for number in range(_MOST_ROUNDS):
        if number >= _WHOLE_ROUNDS or (number == 0 and prepared.inference.has_rules):
            facts = InitialFacts(shapes, constants, remaining_nodes, stated)
            onward = Forward(prepared, prepared.inference, facts, limits.FOLDED_BYTES_PER_SHAPE)
            folding = onward.propagate()
            added.update(folding.folded)
            evaluated |= folding.evaluated
            stated = onward.stated
            remaining_nodes = _reached(graph, constants)
        # at the declared shapes, the values of `prepare` still hold
        if not (number or stated or evaluated) and _is_as_prepared(prepared, shapes, remaining_nodes):
            values = prepared.values
            break
        facts = InitialFacts(shapes, constants, remaining_nodes, stated)
        values = prepared.inference.values(facts)
        folding = _fold(prepared, facts, values, limits.FOLDED_BYTES_PER_SHAPE)
        evaluated |= folding.evaluated
        fresh = [name for name in folding.folded if name not in constants]
        added.update(folding.folded)
        # another round helps only if constants were added and a value is still unknown
        if not fresh or all(
            is_known(graph, index, values) for index in remaining_nodes if index not in folding.evaluated
        ):
            break
        remaining_nodes = _reached(graph, constants)
    return _specialized(
        prepared, constants, evaluated, values, _reached(graph, constants) if added else remaining_nodes
    )


def _is_as_prepared(prepared: Prepared, shapes: Shapes, remaining_nodes: Sequence[int]) -> bool:
    return len(remaining_nodes) == len(prepared.graph.nodes) and prepared.inference.states_already(shapes)


def _specialized(
    prepared: Prepared,
    constants: Mapping[str, Array],
    evaluated: set[int],
    values: Mapping[str, Value],
    positions: Sequence[int],
) -> Specialized:
    graph = prepared.graph
    _check_elements(graph, positions, values)
    removed_positions = sorted(set(range(len(graph.nodes))) - set(positions))
    return Specialized(
        model_nodes=graph,
        graph=_remaining_graph(graph, positions, frozenset(constants), marked(graph, positions, values)),
        nodes=tuple(prepared.nodes[index] for index in positions),
        positions=tuple(positions),
        constants=constants,
        folded=tuple(graph.nodes[index].name for index in removed_positions if index in evaluated),
        unused=tuple(graph.nodes[index].name for index in removed_positions if index not in evaluated),
    )


def _check_elements(graph: Graph, positions: Sequence[int], values: Mapping[str, Value]) -> None:
    for index in positions:
        for name in graph.nodes[index].outputs:
            shape = values[name].static_shape if name in values else None
            if shape is not None and prod(shape) > limits.ELEMENTS:
                node = graph.nodes[index]
                raise InvalidModelError(
                    f"node {node.name!r} ({node.op_type}) produces {name!r} of shape {list(shape)}: {prod(shape):,} "
                    f"elements, expected at most {limits.ELEMENTS:,}; check the sizes of its inputs"
                )


def _remaining_graph(
    graph: Graph, positions: Sequence[int], constants: frozenset[str], values: Mapping[str, Value]
) -> Graph:
    if len(positions) == len(graph.nodes) and constants == graph.constants:
        return graph.revalued(values)
    return Graph(
        nodes=tuple(graph.nodes[index] for index in positions),
        values=values,
        constants=constants,
        inputs=graph.inputs,
        outputs=graph.outputs,
    )


def _initializers(model: onnx.ModelProto, names: frozenset[str]) -> dict[str, Array]:
    tensors = [tensor for tensor in model.graph.initializer if tensor.name in names]
    prefetched_buffers = read_ahead(tensors)
    arrays = {tensor.name: _contents(tensor) for tensor in tensors}
    del prefetched_buffers
    return arrays


def _contents(tensor: onnx.TensorProto) -> Array:
    try:
        array = array_of(tensor)
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidModelError(
            f"initializer {tensor.name!r} with dims {list(tensor.dims)} cannot be read: "
            f"{' '.join(str(error).split())}; export the model again"
        ) from error
    return freeze(array)


def _reached(graph: Graph, constants: Mapping[str, Array]) -> list[int]:
    folded = frozenset(name for name in constants if name in graph.producer)
    needed_names = set(filter(None, graph.outputs))
    positions = []
    for index in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[index]
        if not needed_names.isdisjoint(node.outputs) and any(
            name in needed_names and name not in folded for name in node.outputs
        ):
            positions.append(index)
            needed_names.update(node.reads)
    return positions[::-1]


def _fold(read: OnnxModel, facts: InitialFacts, values: Mapping[str, Value], budget: float) -> Folding:
    folding = Folding(read, facts.constants, budget)
    for index in facts.nodes:
        if not folding.measure(index, values):
            folding.await_evaluation(index, values)
    folding.evaluate()
    return folding


def _fold_further(
    read: OnnxModel, folding: Folding, inference: Inference, facts: InitialFacts, values: dict[str, Value]
) -> dict[str, Value]:
    """Fold static sizes of partially known shapes, and dependent nodes; return updated `values`.

    Nodes such as Range are then inferred one by one.
    """
    graph = read.graph
    for _ in range(_MOST_ROUNDS):
        sized_nodes = [index for index in facts.nodes if folding.take_sizes(index, values)]
        if not sized_nodes:
            break
        values = dict(values)
        for index in facts.nodes:
            if folding.can_evaluate(index):
                if not is_known(graph, index, values):
                    folding.evaluate()
                    infos = inference.types_of_one(index, {}, folding.known)
                    values.update(values_of(infos.values()))
                folding.await_evaluation(index, values)
        folding.evaluate()
    return values
