"""Operation classes that cost alike, and producer-consumer fusion of elementwise classes.

What an operation comes behind: one that changes number by number rides along where a device fuses it with that.

A convolution with a sum and a Relu behind it is one pass over memory on most devices; the same sum behind a copy is a
pass of its own. Who fuses what, and what is left of its cost, a calibration measures (`probes.py`): the same operation
behind a convolution, behind a product of matrices, behind another one of its kind, and by itself.

Engines keep tensors between convolutions in a layout of their own, channels in blocks or last. Where one goes to
something else, or comes from there, it may have to change its layout, and that is a pass over memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from nnadapter.ir.model import Model, Operation
from nnadapter.ir.operations import SCHEMAS


class OperationClass(StrEnum):
    """What kind of work an operation is; the names are stable, since calibrations are kept by them.

    Where several run as one, the first of this list is what they count as.
    """

    CONVOLUTION = "convolution"
    NARROW = "narrow"
    """Convolutions that read few channels for each one that they make, as those that read pictures."""
    MATRIX = "matrix"
    """Matrix products, and what consists of them: attention."""
    PAIRED = "paired"
    """Products of two tensors that are both computed: nothing can be packed before, as it is of weights."""
    RECURRENT = "recurrent"
    """Networks that take one step after the other: products that wait for each other."""
    DEPTHWISE = "depthwise"
    """Convolutions with one input channel per group: few products per byte."""
    SUM_NORMALIZATION = "sum normalization"
    """Normalizations of sums of two computed tensors, [batch, rows, width]: engines have a kernel for both as one."""
    NORMALIZATION = "normalization"
    """Several passes over a tensor: softmax, layer normalization."""
    REDUCTION = "reduction"
    """Sums, extremes and pools over axes or windows."""
    FUNCTION = "function"
    """Elementwise functions that take many steps: exp, erf, GELU."""
    PIECEWISE = "piecewise"
    """Elementwise functions of straight pieces, which some engines fuse, and others compute in several steps."""
    ELEMENTWISE = "elementwise"
    """Arithmetic, comparisons, casts."""
    MOVEMENT = "movement"
    """Copies in another order or place."""
    OTHER = "other"
    """No operation of the adapter IR, or one that a custom kernel computes."""
    VIEW = "view"
    """The same bytes under other dimensions; no traffic."""
    LAYOUT = "layout"
    """No operation: a tensor that goes from convolutions to what is none, or back; see `nnadapter.costs.classes`."""


NARROW_CHANNELS = 16
"""Fewer channels than so many fill no vector, and engines have other kernels for them."""


CLASSES = tuple(OperationClass)
"""In their order."""

CLASS_OF_TYPE: Mapping[str, OperationClass] = MappingProxyType(
    {type_: OperationClass(row.cost) for type_, row in SCHEMAS.items()}
)
"""Operation type -> class: every row of the schema table."""


def channels_of(model: Model, operation: Operation) -> tuple[int, int]:
    """Return the channels that a convolution reads for each one that it makes, and those that it makes, per group.

    0 where they are few, and for other operations.
    """
    if operation.type != "CONV_2D":
        return 0, 0
    group = operation.attributes["group"]
    output_channels, read = model.operands[operation.inputs[1]].type.dimensions[:2]
    group_channels = (
        output_channels // group if isinstance(group, int) and 1 < group < output_channels else output_channels
    )
    return (0 if read < NARROW_CHANNELS else read), group_channels


def class_of(model: Model, operation: Operation) -> OperationClass:
    """Return the class of one operation; what it reads counts: channels, weights, sums."""
    operation_class = CLASS_OF_TYPE.get(operation.type, OperationClass.OTHER)  # one from outside
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
    """Whether it is [batch, rows, width], and the sum of two such tensors that are computed."""
    maker = model.producer.get(operand)
    if maker is None or model.operations[maker].type != "ADD":
        return False
    dimensions = model.operands[operand].type.dimensions
    parts = [model.operands[index] for index in model.operations[maker].inputs]
    return len(dimensions) == 3 and all(part.value is None and part.type.dimensions == dimensions for part in parts)


FUSIBLE_CLASSES = frozenset({OperationClass.FUNCTION, OperationClass.PIECEWISE, OperationClass.ELEMENTWISE})
"""What may ride along."""
PRODUCER_CLASSES: Mapping[OperationClass, OperationClass] = MappingProxyType(
    {
        OperationClass.CONVOLUTION: OperationClass.CONVOLUTION,
        OperationClass.NARROW: OperationClass.CONVOLUTION,
        OperationClass.DEPTHWISE: OperationClass.CONVOLUTION,
        OperationClass.MATRIX: OperationClass.MATRIX,
        OperationClass.PAIRED: OperationClass.MATRIX,
    }
)
"""Class -> as what those behind it see it. Behind one of `FUSIBLE_CLASSES` that is by itself they see `ELEMENTWISE`."""
_FIRST = {OperationClass.CONVOLUTION: 0, OperationClass.MATRIX: 1, OperationClass.ELEMENTWISE: 2}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a cost is known of: operations of one class, behind another one or by themselves."""

    operation_class: OperationClass
    producer_class: OperationClass | None = None
    """`CONVOLUTION`, `MATRIX` or `ELEMENTWISE`, see `PRODUCER_CLASSES`."""

    def __str__(self) -> str:
        """In words."""
        return f"{self.operation_class.value}{f' behind {self.producer_class.value}' if self.producer_class else ''}"


@dataclass(frozen=True, slots=True)
class Reading:
    """One operation reads what another one made."""

    consumer: int
    producer: int
    fits: bool
    """It is as large as what the reader makes."""
    value: int
    """Which one."""


def producers_of(
    classes: Sequence[OperationClass], readings: Sequence[Reading], external_values: frozenset[int] = frozenset()
) -> list[OperationClass | None]:
    """Return, for every operation, what it comes behind; None for those by themselves.

    1. It is one of `FUSIBLE_CLASSES`, and reads a value as large as its own.
    2. Nobody but riders reads that value, and it is none of `external_values`.
    3. What was made by a rider that rides comes behind the same as that.
    4. Behind a convolution it reads nothing smaller that was computed: to spread that, engines give up their layout.

    Args:
        classes: of the operations.
        readings: those of values that operations made, in an order in which operations can run.
        external_values: values that somebody outside reads.
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
    """Return the readings at which a tensor goes from convolutions to what is none, or back, each value once a way.

    What rides behind a convolution counts as one. Windows and sums over a picture take it as it is.

    Args:
        classes: of the operations.
        carriers: what each comes behind, from `producers_of`.
        readings: as there.
    """

    def is_convolution(number: int) -> bool:
        whose = carriers[number] if classes[number] in FUSIBLE_CLASSES else PRODUCER_CLASSES.get(classes[number])
        return whose is OperationClass.CONVOLUTION

    changes: dict[tuple[int, bool], Reading] = {}
    for reading in readings:
        maker_is_conv, reader_is_conv = is_convolution(reading.producer), is_convolution(reading.consumer)
        neutral = _AS_IT_IS & {classes[reading.producer], classes[reading.consumer]}
        if maker_is_conv != reader_is_conv and not neutral and reading.consumer != reading.producer:
            changes.setdefault((reading.value, reader_is_conv), reading)
    return list(changes.values())


_AS_IT_IS = frozenset({OperationClass.REDUCTION, OperationClass.VIEW, OperationClass.OTHER})
"""What does not ask for a layout."""
