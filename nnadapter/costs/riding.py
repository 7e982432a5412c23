"""What an operation comes behind: one that changes number by number rides along where a device fuses it with that.

A convolution with a sum and a Relu behind it is one pass over memory on most devices; the same sum behind a copy is a
pass of its own. Who fuses what, and what is left of its cost, a calibration measures (`probes.py`): the same operation
behind a convolution, behind a product of matrices, behind another one of its kind, and by itself.

Engines keep tensors between convolutions in a layout of their own, channels in blocks or last. Where one goes to
something else, or comes from there, it may have to change its layout, and that is a pass over memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from nnadapter.costs.classes import OperationClass

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
    behind: OperationClass | None = None
    """`CONVOLUTION`, `MATRIX` or `ELEMENTWISE`, see `PRODUCER_CLASSES`."""

    def __str__(self) -> str:
        """In words."""
        return f"{self.operation_class.value}{f' behind {self.behind.value}' if self.behind else ''}"


@dataclass(frozen=True, slots=True)
class Reading:
    """One operation reads what another one made."""

    reader: int
    maker: int
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
    spread = {reading.reader for reading in readings if not reading.fits}
    needed = {reading.value for reading in readings if classes[reading.reader] not in FUSIBLE_CLASSES} | external_values
    carriers: list[OperationClass | None] = [None] * len(classes)
    for reading in readings:
        if classes[reading.reader] not in FUSIBLE_CLASSES or reading.value in needed or reading.reader == reading.maker:
            continue
        made_by = classes[reading.maker]
        carrier = PRODUCER_CLASSES.get(made_by)
        if carrier is None and made_by in FUSIBLE_CLASSES:
            carrier = carriers[reading.maker] or OperationClass.ELEMENTWISE
        if carrier is OperationClass.CONVOLUTION and reading.reader in spread:
            continue
        current_carrier = carriers[reading.reader]
        if carrier is not None and (current_carrier is None or _FIRST[carrier] < _FIRST[current_carrier]):
            carriers[reading.reader] = carrier
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
        maker_is_conv, reader_is_conv = is_convolution(reading.maker), is_convolution(reading.reader)
        neutral = _AS_IT_IS & {classes[reading.maker], classes[reading.reader]}
        if maker_is_conv != reader_is_conv and not neutral and reading.reader != reading.maker:
            changes.setdefault((reading.value, reader_is_conv), reading)
    return list(changes.values())


_AS_IT_IS = frozenset({OperationClass.REDUCTION, OperationClass.VIEW, OperationClass.OTHER})
"""What does not ask for a layout."""
