"""The graph that is partitioned: nodes, values, and the atoms that stand or fall together.

Nothing here knows ONNX, a device or a driver. Nodes are kept in a topological order and are referred to by
their position in it; values are referred to by name. Everything is frozen; what can be derived (producers,
consumers, the edges between atoms) is derived once and kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, prod
from typing import cast

_STATIC_DIMENSION_TYPES = frozenset((int,))
"""Kinds of dimensions that are known."""


class GraphError(ValueError):
    """The graph is not one: a name is defined twice, an order is not topological, an atom is not convex."""


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of one value of the graph before it runs."""

    name: str
    """The value's name, unique in the graph."""
    dtype: str | None = None
    """A numpy data type name such as `float32`, `string`, a container such as `sequence(float32)`; None if unknown."""
    shape: tuple[int | str | None, ...] | None = None
    """Dimensions; a name or None stands for one that is not known. None if not even the rank is."""
    itemsize: float = 0
    """Bytes of one element; 0 where elements have no size of their own (strings, sequences)."""
    data_dependent: bool = False
    """The shape depends on the values of a tensor (NonZero and what follows from it)."""

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape if every dimension is a known number, else None."""
        if self.shape is None:
            return None
        if _STATIC_DIMENSION_TYPES.issuperset(map(type, self.shape)):  # nearly always, and it is asked for very often
            return cast("tuple[int, ...]", self.shape)
        dimensions = tuple(size for size in self.shape if size is not None and not isinstance(size, str))
        return dimensions if len(dimensions) == len(self.shape) else None

    @property
    def nbytes(self) -> int | None:
        """Bytes of the whole value, or None where a dimension is not known."""
        shape = self.static_shape
        return None if shape is None else ceil(prod(shape) * self.itemsize)


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the graph."""

    name: str
    """Unique and stable: the model's own name, or op type and position where the model has none."""
    op_type: str
    domain: str
    """The operator set's domain; empty for ONNX's own."""
    inputs: tuple[str, ...]
    """Input value names by position; empty strings stand for absent optional inputs."""
    outputs: tuple[str, ...]
    """Output value names by position; empty strings stand for outputs nobody asked for."""
    captured: tuple[str, ...] = ()
    """Outer values that the node's own sub-graphs read (If, Loop, Scan)."""
    origins: tuple[str, ...] = ()
    """Names of the model's own nodes that this node stands for."""
    reads: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Every value the node reads, captured ones included, absent ones left out."""

    def __post_init__(self) -> None:
        """Note what the node reads."""
        is_complete = not self.captured and "" not in self.inputs
        reads = self.inputs if is_complete else tuple(name for name in (*self.inputs, *self.captured) if name)
        object.__setattr__(self, "reads", reads)


@dataclass(frozen=True, eq=False)
class Graph:
    """A model's graph as the partitioner sees it."""

    nodes: tuple[Node, ...]
    """In a topological order."""
    values: Mapping[str, Value]
    """What is known of each value; a name may be missing, which means that nothing is known."""
    constants: frozenset[str]
    """Names whose contents are known before the run (initializers)."""
    inputs: tuple[str, ...]
    """Model inputs, constants left out."""
    outputs: tuple[str, ...]
    """Model outputs."""
    atoms: tuple[tuple[int, ...], ...] = ()
    """Groups of nodes with one verdict each, every node in exactly one; one node each if left empty.
    Ordered so that every atom comes after those it reads from."""

    def __post_init__(self) -> None:
        """Check the order and the atoms. Atoms of one node each are in order if the nodes are."""
        _check_nodes(self)
        if self.atoms:
            _check_atoms(self)
        else:
            object.__setattr__(self, "atoms", tuple((index,) for index in range(len(self.nodes))))

    def value(self, name: str) -> Value:
        """What is known of the value `name`."""
        return self.values.get(name) or Value(name)

    def derive(self) -> None:
        """Derive now what is derived, so that `revalued` graphs share it."""
        _ = self.producer, self.consumers, self.atom_of, self.atom_predecessors

    def revalued(self, values: Mapping[str, Value]) -> Graph:
        """The same graph with something else known of its values; what was derived is shared."""
        graph = object.__new__(Graph)
        graph.__dict__.update(self.__dict__, values=values)
        return graph

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """For every value that a node makes, the position of that node."""
        return {name: index for index, node in enumerate(self.nodes) for name in node.outputs if name}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[int, ...]]:
        """For every value that a node reads, the positions of those nodes, each once, ascending."""
        readers_by_value: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for name in node.reads:
                readers = readers_by_value.get(name)
                if readers is None:
                    readers_by_value[name] = [index]
                elif readers[-1] != index:
                    readers.append(index)
        return {name: tuple(readers) for name, readers in readers_by_value.items()}

    @cached_property
    def atom_of(self) -> tuple[int, ...]:
        """For every node, the position of its atom."""
        node_atoms = [-1] * len(self.nodes)
        for atom, nodes in enumerate(self.atoms):
            for node in nodes:
                node_atoms[node] = atom
        return tuple(node_atoms)

    @cached_property
    def atom_predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For every atom, the other atoms it reads from, each once."""
        nodes, atom_of = self.nodes, self.atom_of
        home = {name: atom_of[index] for name, index in self.producer.items()}
        predecessors = []
        for atom, members in enumerate(self.atoms):
            read = [home[name] for node in members for name in nodes[node].reads if name in home]
            is_distinct = len(read) < 2 and atom not in read  # nearly always
            predecessors.append(
                tuple(read)
                if is_distinct
                else tuple(dict.fromkeys(predecessor for predecessor in read if predecessor != atom))
            )
        return tuple(predecessors)


def _check_nodes(graph: Graph) -> None:
    names: set[str] = set()
    defined_names: set[str] = set(graph.inputs) | graph.constants
    later = graph.producer
    for node in graph.nodes:
        if node.name in names:
            raise GraphError(f"two nodes are named {node.name!r}; every node needs a name of its own")
        names.add(node.name)
        for name in node.reads:
            if name not in defined_names and name in later:
                raise GraphError(f"node {node.name!r} reads {name!r} before it is made: nodes are not in order")
        for name in node.outputs:
            if name and name in defined_names:
                raise GraphError(f"value {name!r} is made twice, the second time by node {node.name!r}")
            defined_names.add(name)


def _check_atoms(graph: Graph) -> None:
    covered = sorted(node for nodes in graph.atoms for node in nodes)
    if covered != list(range(len(graph.nodes))):
        raise GraphError("the atoms do not hold every node exactly once")
    for atom, predecessors in enumerate(graph.atom_predecessors):
        if any(predecessor >= atom for predecessor in predecessors):
            raise GraphError(f"atom {atom} reads from an atom after it: atoms are not in order, or not convex")
