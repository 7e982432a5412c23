"""The graph that is partitioned: nodes, values and atoms; verdicts of devices on them; and the element types."""

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
"""Number in `TensorProto.DataType`, name, bytes of one element when packed; strings have no size of their own."""

DTYPE_OF_ELEMENT_TYPE: Mapping[int, str] = MappingProxyType({number: name for number, name, _ in _TABLE})
"""The name of each element type. Source: onnx.proto, `TensorProto.DataType`."""
ELEMENT_TYPE_OF_DTYPE: Mapping[str, int] = MappingProxyType({name: number for number, name, _ in _TABLE})
"""The other way round."""
ITEMSIZE_OF_DTYPE: Mapping[str, float] = MappingProxyType({name: size for _, name, size in _TABLE})
"""Bytes of one element by name; types narrower than a byte are packed."""


class Reason(StrEnum):
    """Why a device does not take an atom. The values are stable: reports and rules name them."""

    UNSUPPORTED_OPERATION = "unsupported_operation"
    """No converter, or no kernel on the device, for this op."""
    UNSUPPORTED_VERSION = "unsupported_version"
    """The op is known, this schema version of it is not."""
    UNSUPPORTED_DOMAIN = "unsupported_domain"
    """The op belongs to a domain that is not understood."""
    UNSUPPORTED_ATTRIBUTE = "unsupported_attribute"
    """The op is known, this attribute value of it is not."""
    UNSUPPORTED_DTYPE = "unsupported_dtype"
    """The device does not compute in this data type."""
    UNSUPPORTED_RANK = "unsupported_rank"
    """The device does not take tensors of this rank."""
    UNSUPPORTED_TYPE = "unsupported_type"
    """A value is not a dense tensor: a sequence, an optional, a map, a sparse tensor or strings."""
    NOT_CONSTANT = "not_constant"
    """An input must be known at compile time and is not."""
    DYNAMIC_SHAPE = "dynamic_shape"
    """A shape is not known although the shapes of all model inputs are."""
    DATA_DEPENDENT_SHAPE = "data_dependent_shape"
    """A shape depends on the values of a tensor, so it is known only after that tensor is."""
    CONTROL_FLOW = "control_flow"
    """The op runs another graph."""
    INVALID_NODE = "invalid_node"
    """The node contradicts its own schema or its shapes."""
    SWITCHED_OFF = "switched_off"
    """The person switched the op off on this device."""
    RULE = "rule"
    """A rule or a limit of the person forbids it: a ban, a pin to another device, or a segment not worth it."""
    MEMORY_LIMIT = "memory_limit"
    """The segment is too large for the device: for its memory, or in the number of its nodes. Its halves may do."""
    SEGMENT_LIMIT = "segment_limit"
    """The segment as a whole is not acceptable to the device, for another reason than memory."""
    COMPILE_FAILED = "compile_failed"
    """The device said yes and then failed to compile."""
    BANNED = "banned"
    """It failed before on this version of the device's driver, and is not given to it until a day."""
    DRIVER_ERROR = "driver_error"
    """The driver failed while it was asked."""
    WRONG_RESULT = "wrong_result"
    """The device computed something else than the CPU, when it was compared."""
    DEVICE_REFUSED = "device_refused"
    """The device's own software said no and gave no code."""


@dataclass(frozen=True, slots=True)
class Supported:
    """The device takes the atom. It is true, as every object is, so that `if verdict` reads as it should."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The device does not take the atom."""

    reason: Reason
    """The code."""
    detail: str
    """One sentence with what was found and what would be accepted."""

    def __bool__(self) -> bool:
        """False, so that `if verdict` reads as it should."""
        return False

    def __str__(self) -> str:
        """The code and the sentence."""
        return f"{self.reason.value}: {self.detail}"


Verdict = Supported | Unsupported
"""Either answer."""

SUPPORTED = Supported()
"""The one value that every yes may share."""


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the first refusal among `verdicts`, or a yes: an atom stands only if all its parts do."""
    for verdict in verdicts:
        if isinstance(verdict, Unsupported):
            return verdict
    return SUPPORTED


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
