"""Model graph to divide between devices, verdicts on its atoms, and element types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import ceil, prod
from types import MappingProxyType
from typing import cast

_TABLE = (
    (1, "float32", 4),
    (2, "uint8", 1),
    (3, "int8", 1),
    (4, "uint16", 2),
    (5, "int16", 2),
    (6, "int32", 4),
    (7, "int64", 8),
    (8, "string", 0),
    (9, "bool", 1),
    (10, "float16", 2),
    (11, "float64", 8),
    (12, "uint32", 4),
    (13, "uint64", 8),
    (14, "complex64", 8),
    (15, "complex128", 16),
    (16, "bfloat16", 2),
    (17, "float8_e4m3fn", 1),
    (18, "float8_e4m3fnuz", 1),
    (19, "float8_e5m2", 1),
    (20, "float8_e5m2fnuz", 1),
    (21, "uint4", 0.5),
    (22, "int4", 0.5),
    (23, "float4_e2m1fn", 0.5),
    (24, "float8_e8m0fnu", 1),
    (25, "uint2", 0.25),
    (26, "int2", 0.25),
    (27, "float6_e2m3fn", 0.75),
    (28, "float6_e3m2fn", 0.75),
)
"""Element types: number in `TensorProto.DataType`, name, and bytes of one packed element (0 for strings)."""

DTYPE_OF_ELEMENT_TYPE: Mapping[int, str] = MappingProxyType({number: name for number, name, _ in _TABLE})
"""Names of data types by number in `TensorProto.DataType`."""
ELEMENT_TYPE_OF_DTYPE: Mapping[str, int] = MappingProxyType({name: number for number, name, _ in _TABLE})
ITEMSIZE_OF_DTYPE: Mapping[str, float] = MappingProxyType({name: size for _, name, size in _TABLE})
"""Bytes of one element by data type; fractional for packed sub-byte types."""


class Reason(StrEnum):
    """Reason for a refusal. The values are stable, since reports and rules use them."""

    UNSUPPORTED_OPERATION = "unsupported_operation"
    UNSUPPORTED_VERSION = "unsupported_version"
    """The op is supported in other schema versions."""
    UNSUPPORTED_DOMAIN = "unsupported_domain"
    UNSUPPORTED_ATTRIBUTE = "unsupported_attribute"
    """The op is supported with other attribute values."""
    UNSUPPORTED_DTYPE = "unsupported_dtype"
    UNSUPPORTED_RANK = "unsupported_rank"
    UNSUPPORTED_TYPE = "unsupported_type"
    """A value is not a dense tensor of numbers."""
    NOT_CONSTANT = "not_constant"
    DYNAMIC_SHAPE = "dynamic_shape"
    """A shape is unknown although the model's input shapes are known."""
    DATA_DEPENDENT_SHAPE = "data_dependent_shape"
    CONTROL_FLOW = "control_flow"
    INVALID_NODE = "invalid_node"
    """The node contradicts its schema or shapes."""
    SWITCHED_OFF = "switched_off"
    RULE = "rule"
    """A user's rule or limit forbids the placement."""
    MEMORY_LIMIT = "memory_limit"
    """The segment has too many bytes or nodes; its halves may fit."""
    SEGMENT_LIMIT = "segment_limit"
    """The device refuses the segment for a reason other than memory."""
    COMPILE_FAILED = "compile_failed"
    """Compilation failed although the device had accepted the segment."""
    BANNED = "banned"
    """A failure with this driver version bans the node until a certain day."""
    DRIVER_ERROR = "driver_error"
    WRONG_RESULT = "wrong_result"
    """The result differed from the CPU's in a comparison."""
    DEVICE_REFUSED = "device_refused"
    """The device's software refused without a reason code."""


@dataclass(frozen=True, slots=True)
class Supported:
    """Verdict of a device that can run the atom. Truthy."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Verdict of a device that cannot run the atom. Falsy."""

    reason: Reason
    detail: str
    """One sentence with the node's property and the device's requirement."""

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}"


Verdict = Supported | Unsupported

SUPPORTED = Supported()


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the first refusal, or SUPPORTED."""
    for verdict in verdicts:
        if isinstance(verdict, Unsupported):
            return verdict
    return SUPPORTED


_STATIC_DIMENSION_TYPES = frozenset((int,))


class GraphError(ValueError):
    """Error: a name is defined twice, an order is not topological, or an atom is not convex."""


@dataclass(frozen=True, slots=True)
class Value:
    """Known facts about a value, before any run."""

    name: str
    """Unique in the graph."""
    dtype: str | None = None
    """numpy name, `string`, or a container such as `sequence(float32)`; None if unknown."""
    shape: tuple[int | str | None, ...] | None = None
    """Dimensions, with a name or None for each unknown one; None if the rank is unknown."""
    itemsize: float = 0
    """Bytes of one element; 0 for strings and sequences."""
    data_dependent: bool = False
    """True if the shape depends on contents of a tensor (NonZero)."""

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        if self.shape is None:
            return None
        if _STATIC_DIMENSION_TYPES.issuperset(map(type, self.shape)):  # nearly always, and a hot path
            return cast("tuple[int, ...]", self.shape)
        dimensions = tuple(size for size in self.shape if size is not None and not isinstance(size, str))
        return dimensions if len(dimensions) == len(self.shape) else None

    @property
    def nbytes(self) -> int | None:
        shape = self.static_shape
        return None if shape is None else ceil(prod(shape) * self.itemsize)


@dataclass(frozen=True, slots=True)
class Node:
    """Node of the graph."""

    name: str
    """Unique and stable: the model's name, or op type and position."""
    op_type: str
    domain: str
    """Empty for ONNX's own domain."""
    inputs: tuple[str, ...]
    """Value names; empty for absent optional inputs."""
    outputs: tuple[str, ...]
    """Value names; empty for omitted outputs."""
    captured: tuple[str, ...] = ()
    """Outer values read by subgraphs (If, Loop, Scan)."""
    origins: tuple[str, ...] = ()
    """Original model nodes that this node replaces."""
    reads: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        is_complete = not self.captured and "" not in self.inputs
        reads = self.inputs if is_complete else tuple(name for name in (*self.inputs, *self.captured) if name)
        object.__setattr__(self, "reads", reads)


@dataclass(frozen=True, eq=False)
class Graph:
    """Model graph: nodes in topological order, grouped into atoms."""

    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    """Facts by name; a missing name means unknown."""
    constants: frozenset[str]
    """Names of initializers."""
    inputs: tuple[str, ...]
    """Model inputs without constants."""
    outputs: tuple[str, ...]
    atoms: tuple[tuple[int, ...], ...] = ()
    """Groups of nodes with one verdict each, in topological order; one node each if empty."""

    def __post_init__(self) -> None:
        _check_nodes(self)
        if self.atoms:
            _check_atoms(self)
        else:
            object.__setattr__(self, "atoms", tuple((index,) for index in range(len(self.nodes))))

    def value(self, name: str) -> Value:
        return self.values.get(name) or Value(name)

    def derive(self) -> None:
        """Compute the cached properties, so that `revalued` graphs share them."""
        _ = self.producer, self.consumers, self.atom_of, self.atom_predecessors

    def revalued(self, values: Mapping[str, Value]) -> Graph:
        """Return the graph with other facts about its values, and the same cached properties."""
        graph = object.__new__(Graph)
        graph.__dict__.update(self.__dict__, values=values)
        return graph

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """Value name -> position of the producing node."""
        return {name: index for index, node in enumerate(self.nodes) for name in node.outputs if name}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[int, ...]]:
        """Value name -> distinct ascending positions of the reading nodes."""
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
        """Atom index of every node."""
        node_atoms = [-1] * len(self.nodes)
        for atom, nodes in enumerate(self.atoms):
            for node in nodes:
                node_atoms[node] = atom
        return tuple(node_atoms)

    @cached_property
    def atom_predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Distinct other atoms that each atom reads from."""
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
                raise GraphError(
                    f"node {node.name!r} reads {name!r} before it is produced: nodes are not in topological order"
                )
        for name in node.outputs:
            if name and name in defined_names:
                raise GraphError(f"value {name!r} is produced twice, the second time by node {node.name!r}")
            defined_names.add(name)


def _check_atoms(graph: Graph) -> None:
    covered = sorted(node for nodes in graph.atoms for node in nodes)
    if covered != list(range(len(graph.nodes))):
        raise GraphError("the atoms do not contain every node exactly once")
    for atom, predecessors in enumerate(graph.atom_predecessors):
        if any(predecessor >= atom for predecessor in predecessors):
            raise GraphError(f"atom {atom} reads from a later atom: atoms are not in topological order, or not convex")
