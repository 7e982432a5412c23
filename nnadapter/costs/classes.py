"""Classes of operations: those of one class cost alike, so that a device is measured once per class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

from nnadapter.ir.model import Model, Operation
from nnadapter.ir.operations import (
    accumulation,
    attention,
    bits,
    convolution,
    custom,
    elementwise,
    functions,
    generation,
    indexing,
    linear_algebra,
    losses,
    matrix,
    movement,
    normalization,
    norms,
    pooling,
    quantization,
    recurrent,
    reduction,
    resizing,
    sampling,
    scattering,
    spectral,
    volumes,
    window_pooling,
)
from nnadapter.ir.schema import OperationSchema


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
    """No operation: a tensor that goes from convolutions to what is none, or back; see `nnadapter.costs.riding`."""


NARROW_CHANNELS = 16
"""Fewer channels than so many fill no vector, and engines have other kernels for them."""


CLASSES = tuple(OperationClass)
"""In their order."""

_Rows = Sequence[OperationSchema]
_FAMILIES: tuple[tuple[OperationClass, tuple[_Rows, ...]], ...] = (
    (OperationClass.CONVOLUTION, (convolution.ROWS, volumes.ROWS)),
    (OperationClass.MATRIX, (matrix.ROWS, attention.ROWS, linear_algebra.ROWS, spectral.ROWS)),
    (OperationClass.RECURRENT, (recurrent.ROWS,)),
    (OperationClass.NORMALIZATION, (normalization.ROWS, norms.ROWS, losses.ROWS)),
    (OperationClass.REDUCTION, (reduction.ROWS, pooling.ROWS, window_pooling.ROWS, accumulation.ROWS)),
    (OperationClass.FUNCTION, (functions.ROWS,)),
    (OperationClass.ELEMENTWISE, (elementwise.ROWS, bits.ROWS, quantization.ROWS)),
    (
        OperationClass.MOVEMENT,
        (movement.ROWS, indexing.ROWS, generation.ROWS, resizing.ROWS, scattering.ROWS, sampling.ROWS),
    ),
    (OperationClass.OTHER, (custom.ROWS,)),
)
_OTHERWISE = {
    OperationClass.CONVOLUTION: "DEFORMABLE_CONV_2D",
    OperationClass.FUNCTION: (
        "EXP LOG SQRT ERF SIN COS TANH SIGMOID SOFTPLUS SOFTSIGN MISH SWISH ELU SELU GELU POW ROTARY_EMBEDDING"
    ),
    OperationClass.PIECEWISE: "HARD_SIGMOID HARD_SWISH",
    OperationClass.ELEMENTWISE: "SQUARE NOT_EQUAL FLOOR_DIV IS_NAN IS_INF BATCH_NORMALIZATION THRESHOLDED_RELU SHRINK",
    OperationClass.MOVEMENT: "TRILU",
    OperationClass.VIEW: "RESHAPE ASSIGN STORAGE_CAST BIT_CAST",
}
"""Operations whose class is not their family's."""


def _classes() -> Iterator[tuple[str, OperationClass]]:
    for operation_class, schema_tables in _FAMILIES:
        yield from ((row.type, operation_class) for rows in schema_tables for row in rows)
    for operation_class, names in _OTHERWISE.items():
        yield from ((name, operation_class) for name in names.split())


CLASS_OF_TYPE: Mapping[str, OperationClass] = MappingProxyType(dict(_classes()))
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
