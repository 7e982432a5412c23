"""Work of a graph in FLOPs and bytes, operation classes, and seconds by roofline or by measured lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from math import ceil
from types import MappingProxyType
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from nnadapter.converters.convert import Conversion
from nnadapter.drivers.capability import Profile
from nnadapter.ir import SCHEMAS, Model, Operation
from nnadapter.records import dataclass, field
from partition import Graph, Value


class OperationClass(StrEnum):
    """Class of an operation by its kind of work. Names are stable, since calibration files use them.

    Among the classes of a node's operations, the first one here counts.
    """

    CONVOLUTION = "convolution"
    NARROW = "narrow"
    MATRIX = "matrix"
    PAIRED = "paired"
    """Products of two computed tensors, without weights to pack."""
    RECURRENT = "recurrent"
    DEPTHWISE = "depthwise"
    SUM_NORMALIZATION = "sum normalization"
    """Normalizations of the sum of two computed [batch, rows, width] tensors."""
    NORMALIZATION = "normalization"
    REDUCTION = "reduction"
    FUNCTION = "function"
    """Elementwise functions of many steps: exp, erf, GELU."""
    PIECEWISE = "piecewise"
    ELEMENTWISE = "elementwise"
    """Arithmetic, comparisons, casts."""
    MOVEMENT = "movement"
    OTHER = "other"
    VIEW = "view"
    LAYOUT = "layout"
    """Layout change between convolutions and other operations; see `layout_changes`."""


NARROW_CHANNELS = 16
"""Fewer channels fill no vector, so engines use other kernels."""


CLASSES = tuple(OperationClass)

CLASS_OF_TYPE: Mapping[str, OperationClass] = MappingProxyType(
    {type_: OperationClass(row.cost) for type_, row in SCHEMAS.items()}
)


def channels_of(model: Model, operation: Operation) -> tuple[int, int]:
    """Return a convolution's input channels (0 if narrow) and output channels, both per group; otherwise (0, 0)."""
    if operation.type != "CONV_2D":
        return 0, 0
    group = operation.attributes["group"]
    output_channels, read = model.operands[operation.inputs[1]].type.dimensions[:2]
    group_channels = (
        output_channels // group if isinstance(group, int) and 1 < group < output_channels else output_channels
    )
    return (0 if read < NARROW_CHANNELS else read), group_channels


def class_of(model: Model, operation: Operation) -> OperationClass:
    """Return the class of an operation, which also depends on its inputs."""
    operation_class = CLASS_OF_TYPE.get(operation.type, OperationClass.OTHER)  # an external type
    if operation.type == "MAT_MUL" and all(model.operands[operand].value is None for operand in operation.inputs):
        return OperationClass.PAIRED
    if operation.type == "LAYER_NORMALIZATION" and _is_sum(model, operation.inputs[0]):
        return OperationClass.SUM_NORMALIZATION
    if operation.type != "CONV_2D":
        return operation_class
    read = model.operands[operation.inputs[1]].type.dimensions[1]
    if read == 1 and operation.attributes["group"] != 1:
        return OperationClass.DEPTHWISE
    return OperationClass.NARROW if read < NARROW_CHANNELS else operation_class


def _is_sum(model: Model, operand: int) -> bool:
    maker = model.producer.get(operand)
    if maker is None or model.operations[maker].type != "ADD":
        return False
    dimensions = model.operands[operand].type.dimensions
    parts = [model.operands[index] for index in model.operations[maker].inputs]
    return len(dimensions) == 3 and all(part.value is None and part.type.dimensions == dimensions for part in parts)


FUSIBLE_CLASSES = frozenset({OperationClass.FUNCTION, OperationClass.PIECEWISE, OperationClass.ELEMENTWISE})
PRODUCER_CLASSES: Mapping[OperationClass, OperationClass] = MappingProxyType(
    {
        OperationClass.CONVOLUTION: OperationClass.CONVOLUTION,
        OperationClass.NARROW: OperationClass.CONVOLUTION,
        OperationClass.DEPTHWISE: OperationClass.CONVOLUTION,
        OperationClass.MATRIX: OperationClass.MATRIX,
        OperationClass.PAIRED: OperationClass.MATRIX,
    }
)
"""Class of a producer -> producer class of fused consumers; `ELEMENTWISE` after a standalone fusible producer."""
_FIRST = {OperationClass.CONVOLUTION: 0, OperationClass.MATRIX: 1, OperationClass.ELEMENTWISE: 2}


@dataclass(frozen=True, slots=True)
class Kind:
    """Key of a `Line` of costs: an operation class, standalone or fused with a producer class."""

    operation_class: OperationClass
    producer_class: OperationClass | None = None
    """A value of `PRODUCER_CLASSES`, or `ELEMENTWISE`; None if standalone."""

    def __str__(self) -> str:
        return f"{self.operation_class.value}{f' after {self.producer_class.value}' if self.producer_class else ''}"


@dataclass(frozen=True, slots=True)
class Reading:
    """Use of one operation's result by another."""

    consumer: int
    producer: int
    fits: bool
    """The value has the size of the consumer's result."""
    value: int


def producers_of(
    classes: Sequence[OperationClass], readings: Sequence[Reading], external_values: frozenset[int] = frozenset()
) -> list[OperationClass | None]:
    """Return the producer class that each operation is fused with; None if standalone.

    It is fused if all of these hold:

    1. It is fusible, and reads a value of its own size.
    2. Only fusible operations read that value, and it is not external.
    3. After a convolution, it broadcasts no other computed value, since engines would then change the layout.

    An operation after a fused one has the same producer class.
    """
    spread = {reading.consumer for reading in readings if not reading.fits}
    needed = {
        reading.value for reading in readings if classes[reading.consumer] not in FUSIBLE_CLASSES
    } | external_values
    carriers: list[OperationClass | None] = [None] * len(classes)
    for reading in readings:
        if (
            classes[reading.consumer] not in FUSIBLE_CLASSES
            or reading.value in needed
            or reading.consumer == reading.producer
        ):
            continue
        made_by = classes[reading.producer]
        carrier = PRODUCER_CLASSES.get(made_by)
        if carrier is None and made_by in FUSIBLE_CLASSES:
            carrier = carriers[reading.producer] or OperationClass.ELEMENTWISE
        if carrier is OperationClass.CONVOLUTION and reading.consumer in spread:
            continue
        current_carrier = carriers[reading.consumer]
        if carrier is not None and (current_carrier is None or _FIRST[carrier] < _FIRST[current_carrier]):
            carriers[reading.consumer] = carrier
    return carriers


def layout_changes(
    classes: Sequence[OperationClass], carriers: Sequence[OperationClass | None], readings: Sequence[Reading]
) -> list[Reading]:
    """Return the edges at which a tensor changes layout, once per value and direction.

    Operations fused with a convolution count as convolutions; reductions and views accept any layout.
    """

    def is_convolution(number: int) -> bool:
        whose = carriers[number] if classes[number] in FUSIBLE_CLASSES else PRODUCER_CLASSES.get(classes[number])
        return whose is OperationClass.CONVOLUTION

    changes: dict[tuple[int, bool], Reading] = {}
    for reading in readings:
        maker_is_conv, reader_is_conv = is_convolution(reading.producer), is_convolution(reading.consumer)
        neutral = _ANY_LAYOUT & {classes[reading.producer], classes[reading.consumer]}
        if maker_is_conv != reader_is_conv and not neutral and reading.consumer != reading.producer:
            changes.setdefault((reading.value, reader_is_conv), reading)
    return list(changes.values())


_ANY_LAYOUT = frozenset({OperationClass.REDUCTION, OperationClass.VIEW, OperationClass.OTHER})


Numbers = NDArray[np.float64]


Seconds = Annotated[float, Meta(ge=0, le=1e6)]


class MeasuredWork(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Timed operations, which correct the predictions of a `Line`."""

    flops: Annotated[float, Meta(ge=0)]
    nbytes: Annotated[float, Meta(ge=0)]
    padding: Annotated[float, Meta(ge=1)]
    """FLOPs with padding over FLOPs without it."""
    quotient: Annotated[float, Meta(gt=0)]
    """Measured seconds divided by predicted seconds."""
    trust: Annotated[float, Meta(ge=0, le=1)]
    """Weight, smaller for times near the noise."""


class Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"measured_work": "seen"}):
    """Measured seconds of one kind of operation: a + hypot(b x flops, c x bytes).

    Arithmetic and traffic overlap only partly. Near timed sizes the measured quotients correct the line, because of
    caches and kernels (kernel regression: Nadaraya and Watson, 1964).
    """

    seconds: Seconds
    seconds_per_flop: Seconds
    seconds_per_byte: Seconds
    error: Seconds
    """Median of |line - measured| / measured."""
    block: Annotated[int, Meta(ge=1)] = 1
    measured_work: tuple[MeasuredWork, ...] = ()

    def per_operation(self, work: float) -> float:
        """Return the seconds of `work` FLOPs and `work` bytes."""
        return float(self.of(np.array([work]), np.array([work]))[0])

    def of(self, flops: Numbers, nbytes: Numbers, channels: Numbers | None = None) -> Numbers:
        """Return each operation's seconds; `channels` are [operations, 2]."""
        padding = np.ones_like(flops) if channels is None else padding_of(channels, self.block)
        padded_flops = flops * padding
        seconds: Numbers = self.seconds + np.hypot(padded_flops * self.seconds_per_flop, nbytes * self.seconds_per_byte)
        return seconds * self._nearby_residual(padded_flops, nbytes, padding) if self.measured_work else seconds

    def _nearby_residual(self, flops: Numbers, nbytes: Numbers, padding: Numbers) -> Numbers:
        places = np.log1p(
            [[measurement.flops, measurement.nbytes, measurement.padding] for measurement in self.measured_work]
        )
        away = np.zeros((len(flops), len(places)))
        for query, timed in zip((flops, nbytes, padding), places.T, strict=True):
            away += np.square((np.log1p(query)[:, None] - timed) / _REACH)
        near = np.exp(-0.5 * away) * [measurement.trust for measurement in self.measured_work]
        log_correction: Numbers = (
            near @ np.log([measurement.quotient for measurement in self.measured_work]) / (near.sum(axis=1) + _DOUBT)
        )
        return np.exp(log_correction)


_REACH = np.log(2.0)
"""Kernel bandwidth, as the logarithm of a size ratio."""
_DOUBT = 0.25
"""Weight of the line among the measurements; an exact measurement has weight 1."""


def padding_of(channels: Numbers, block: int) -> Numbers:
    """Return the factor by which padding to multiples of `block` channels increases FLOPs, by operation."""
    some = np.maximum(channels, 1.0)
    padded_channels = np.where(channels > 0, np.ceil(some / block) * block, 1.0)
    padding: Numbers = (padded_channels / some).prod(axis=1)
    return padding


def roofline(profile: Profile, flops: Numbers, nbytes: Numbers, peaks: Numbers | float | None = None) -> Numbers:
    """Return each operation's seconds by a device's limits.

    Source: Williams, Waterman, Patterson: Roofline (CACM 2009).
    """
    peak = profile.peak_flops if peaks is None else peaks
    return profile.operation_seconds + np.maximum(flops / peak, nbytes / profile.bandwidth)


Indices = NDArray[np.int64]

UNKNOWN_DIMENSION = 1024
_UNKNOWN_ITEM_BYTES = 4
_RANK = {operation_class: rank for rank, operation_class in enumerate(CLASSES)}
_PICKING = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})


@dataclass(frozen=True, eq=False)
class UnitWork:
    """Work of units, which are nodes that run as one. Arrays of [units]."""

    flops: Numbers
    nbytes: Numbers
    classes: Indices
    dtypes: Indices
    """Data types of the main nodes' first inputs: positions in `GraphWork.dtypes`."""
    producer_classes: Indices = field(default_factory=lambda: np.zeros(0, np.int64))
    """Positions in `CLASSES`, -1 if standalone; empty if not requested."""
    channels: Numbers | None = None
    """Channels [units, 2] of the main node, if requested."""
    changed: Indices = field(default_factory=lambda: np.zeros(0, np.int64))
    """Units that read a value whose layout changes."""
    changed_bytes: Numbers = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, eq=False)
class GraphWork:
    """Work of a graph's nodes and values, cached."""

    graph: Graph
    conversion: Conversion

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of values that nodes read or return, constants included, in order of first use."""
        nodes = self.graph.nodes
        return tuple(
            dict.fromkeys(name for node in nodes for name in (*node.inputs, *node.captured, *node.outputs) if name)
        )

    @cached_property
    def column(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.names)}

    @cached_property
    def nbytes(self) -> Numbers:
        values = self.graph.values
        return np.array([_nbytes(values.get(name)) for name in self.names], dtype=np.float64)

    @cached_property
    def unknown(self) -> int:
        """Number of values of assumed size."""
        values = self.graph.values
        return sum(1 for name in self.names if _is_unknown(values.get(name)))

    @cached_property
    def flops(self) -> Numbers:
        """FLOPs by node; 0 if unknown."""
        return np.array([flops or 0 for flops in self.conversion.flops], dtype=np.float64)

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """Distinct data types of nodes' first inputs; empty if unknown."""
        return tuple(dict.fromkeys(("", *self._first_dtypes)))

    @cached_property
    def computing(self) -> frozenset[str]:
        """Data types of the first inputs of nodes with FLOPs."""
        return frozenset(dtype for dtype, flops in zip(self._first_dtypes, self.conversion.flops, strict=True) if flops)

    @cached_property
    def _first_dtypes(self) -> list[str]:
        values = self.graph.values
        firsts = (values.get(node.inputs[0]) if node.inputs else None for node in self.graph.nodes)
        return ["" if value is None else value.dtype or "" for value in firsts]

    @cached_property
    def _kinds(self) -> tuple[Indices, Indices]:
        place = {dtype: position for position, dtype in enumerate(self.dtypes)}
        dtypes = [place[dtype] for dtype in self._first_dtypes]
        return _classes(self.conversion), np.array(dtypes, dtype=np.int64)

    @cached_property
    def _channels(self) -> Numbers:
        return _channels(self.conversion)

    def per_node(self, *, with_fusion_context: bool) -> UnitWork:
        """Return the work of every node by itself; see `of`."""
        standalone = self.conversion.per_node
        members = np.array(standalone.nodes, dtype=np.int64)
        flops, (classes, dtypes) = self.flops.copy(), self._kinds
        classes = classes.copy()
        if standalone.nodes:
            like = np.array(standalone.like, dtype=np.int64)
            flops[members] = np.array(
                [node_flops or 0 for node_flops in standalone.conversion.flops], dtype=np.float64
            )[like]
            classes[members] = _classes(standalone.conversion)[like]
        nbytes = self._boundary_bytes(np.arange(len(classes)), len(classes))
        nbytes[classes == _RANK[OperationClass.VIEW]] = 0.0
        if not with_fusion_context:
            return UnitWork(flops, nbytes, classes, dtypes)
        channels = self._channels.copy()
        if standalone.nodes:
            channels[members] = _channels(standalone.conversion)[like]
        return UnitWork(
            flops, nbytes, classes, dtypes, *self._fusion_context(np.arange(len(classes)), classes, channels)
        )

    @cached_property
    def _reads(self) -> tuple[Indices, Indices, Numbers]:
        column, nbytes = self.column, self.nbytes
        rows = [(index, column[name]) for index, node in enumerate(self.graph.nodes) for name in node.reads]
        picked = {
            (index, column[node.inputs[0]]): nbytes[column[node.outputs[0]]]
            for index, node in enumerate(self.graph.nodes)
            if node.op_type in _PICKING and node.inputs and node.inputs[0] and node.outputs[0]
        }
        pairs = np.array(rows, dtype=np.int64).reshape(-1, 2)
        read = nbytes[pairs[:, 1]]
        for position, row in enumerate(rows if picked else ()):
            if row in picked:
                read[position] = min(read[position], picked[row])
        return pairs[:, 0], pairs[:, 1], read

    @cached_property
    def _makers(self) -> Indices:
        producer = self.graph.producer
        return np.array([producer.get(name, -1) for name in self.names], dtype=np.int64)

    def of(self, unit_of: Sequence[int] | Indices, units: int, *, with_fusion_context: bool) -> UnitWork:
        """Return the work of units; each node belongs to the unit `unit_of[node]`.

        `with_fusion_context` adds producer classes, channels and layout changes.
        """
        unit = np.asarray(unit_of, dtype=np.int64)
        classes, dtypes = self._kinds
        main = _mains(unit, units, self.flops, classes)
        unit_classes = classes[main]
        nbytes = np.where(unit_classes == _RANK[OperationClass.VIEW], 0.0, self._boundary_bytes(unit, units))
        flops = np.bincount(unit, self.flops, units).astype(np.float64)
        more = self._fusion_context(unit, unit_classes, self._channels[main]) if with_fusion_context else ()
        return UnitWork(flops, nbytes, unit_classes, dtypes[main], *more)

    def _fusion_context(
        self, unit: Indices, classes: Indices, channels: Numbers
    ) -> tuple[Indices, Numbers, Indices, Numbers]:
        """Return producer classes, channels and layout changes. Fusion through a view is not recognized."""
        reader, value, _ = self._reads
        is_produced = self._makers[value] >= 0
        readers, makers, values = unit[reader[is_produced]], unit[self._makers[value[is_produced]]], value[is_produced]
        outside = readers != makers
        output_bytes = np.zeros(len(classes))
        np.maximum.at(output_bytes, unit[self._makers[self._makers >= 0]], self.nbytes[self._makers >= 0])
        readings = [
            Reading(*fields)
            for fields in zip(
                readers[outside].tolist(),
                makers[outside].tolist(),
                (self.nbytes[values] == output_bytes[readers])[outside].tolist(),
                values[outside].tolist(),
                strict=True,
            )
        ]
        output_columns = frozenset(self.column[name] for name in self.graph.outputs if name in self.column)
        named = [CLASSES[class_index] for class_index in classes.tolist()]
        carriers = producers_of(named, readings, output_columns)
        carrier_ranks = np.array([-1 if carrier is None else _RANK[carrier] for carrier in carriers], dtype=np.int64)
        changes = layout_changes(named, carriers, readings)
        changed = np.array([change.consumer for change in changes], dtype=np.int64)
        return (
            carrier_ranks,
            channels,
            changed,
            2.0 * self.nbytes[np.array([change.value for change in changes], dtype=np.int64)],
        )

    def _boundary_bytes(self, unit: Indices, units: int) -> Numbers:
        reader, value, read = self._reads
        maker = np.where(self._makers >= 0, unit[self._makers], -1)
        outside = unit[reader] != maker[value]
        pairs = unit[reader[outside]] * len(self.names) + value[outside]
        _, first = np.unique(pairs, return_index=True)
        bytes_in = np.bincount(unit[reader[outside]][first], read[outside][first], units)
        is_output = np.ones(len(self.names), dtype=bool)
        is_output[value] = False
        is_output[value[outside]] = True
        is_output[[self.column[name] for name in self.graph.outputs if name in self.column]] = True
        is_output &= maker >= 0
        bytes_out = np.bincount(maker[is_output], self.nbytes[is_output], units)
        return (bytes_in + bytes_out).astype(np.float64)


def _classes(conversion: Conversion) -> Indices:
    model, other = conversion.model, _RANK[OperationClass.OTHER]
    node_classes = [
        min((_RANK[class_of(model, model.operations[operation])] for operation in operations), default=other)
        for operations in conversion.operations
    ]
    return np.array(node_classes, dtype=np.int64)


def _channels(conversion: Conversion) -> Numbers:
    model = conversion.model
    rows = [
        max((channels_of(model, model.operations[operation]) for operation in operations), default=(0, 0))
        for operations in conversion.operations
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, 2)


def _mains(unit: Indices, units: int, flops: Numbers, classes: Indices) -> Indices:
    """Return each unit's main node: the node with the most FLOPs or, if equal, the lowest class."""
    order = np.lexsort((classes, -flops, unit))
    main = np.zeros(units, dtype=np.int64)
    main[unit[order[::-1]]] = order[::-1]
    return main


def _is_unknown(value: Value | None) -> bool:
    if value is None or value.shape is None:
        return True
    return any(size is None or isinstance(size, str) for size in value.shape)


def _nbytes(value: Value | None) -> float:
    if value is None:
        return UNKNOWN_DIMENSION * _UNKNOWN_ITEM_BYTES
    size = 1
    for dimension in (None,) if value.shape is None else value.shape:
        size *= UNKNOWN_DIMENSION if dimension is None or isinstance(dimension, str) else dimension
    return ceil(size * value.itemsize) if value.itemsize or value.dtype else size * _UNKNOWN_ITEM_BYTES
