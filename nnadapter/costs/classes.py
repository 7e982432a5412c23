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
    MATRIX = "matrix"
    """Matrix products, and what consists of them: attention."""
    RECURRENT = "recurrent"
    """Networks that take one step after the other: products that wait for each other."""
    DEPTHWISE = "depthwise"
    """Convolutions with one input channel per group: few products per byte."""
    NORMALIZATION = "normalization"
    """Several passes over a tensor: softmax, layer normalization."""
    REDUCTION = "reduction"
    """Sums, extremes and pools over axes or windows."""
    FUNCTION = "function"
    """Elementwise functions that take many steps: exp, erf, GELU."""
    ELEMENTWISE = "elementwise"
    """Arithmetic, comparisons, casts."""
    MOVEMENT = "movement"
    """Copies in another order or place."""
    OTHER = "other"
    """No operation of the adapter IR, or one that a custom kernel computes."""
    VIEW = "view"
    """The same bytes under other dimensions; no traffic."""


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


def class_of(model: Model, operation: Operation) -> OperationClass:
    """Return the class of one operation; a convolution by itself per channel is depthwise."""
    operation_class = CLASS_OF_TYPE[operation.type]
    if operation.type == "CONV_2D" and operation.attributes["group"] != 1:
        weight = model.operands[operation.inputs[1]].type.dimensions
        return OperationClass.DEPTHWISE if weight[1] == 1 else operation_class
    return operation_class
