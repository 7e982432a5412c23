"""A model of adapter IR -> NNAdapterModel."""

from __future__ import annotations

from nnadapter.drivers.native.attributes import attribute
from nnadapter.drivers.native.codes import DATA_TYPES, LAYOUTS, LIFETIMES
from nnadapter.drivers.native.sizes import NumberedSizes, known
from nnadapter.drivers.native.structures import Holder
from nnadapter.errors import InvalidModelError
from nnadapter.ir.model import Model, Operation
from nnadapter.ir.operand import PACKED, Array, Operand, Quantization
from nnadapter.ir.operations import schema_of
from nnadapter.ir.packing import pack


def build(model: Model, holder: Holder, sizes: NumberedSizes | None = None) -> int:
    """Return the address of `model` in C; it lives as long as `holder`. Only constants that are packed are copied.

    Args:
        model: the model.
        holder: keeps it alive.
        sizes: those that the model leaves open, which its runs are told; None where it leaves none open.

    Raises:
        InvalidModelError: a tensor has more bytes than can be told.
    """
    operands = [_operand(holder, operand, sizes) for operand in model.operands]
    operations = [_operation(holder, operation, sizes) for operation in model.operations]
    return holder.make(
        "Model",
        operand_count=len(operands),
        operation_count=len(operations),
        input_count=len(model.inputs),
        output_count=len(model.outputs),
        operands=holder.pointers(operands),
        operations=holder.pointers(operations),
        inputs=holder.values("i32", model.inputs),
        outputs=holder.values("i32", model.outputs),
        size_count=0 if sizes is None else len(sizes),
    )


def contents(array: Array) -> int | None:
    """The address of an array's first element; None if it has none."""
    address: int = array.__array_interface__["data"][0]
    return address if array.nbytes else None


def aligned(array: Array) -> Array:
    """Return `array` contiguous, with every element where its type belongs; copied only where it must be."""
    # A scalar is contiguous; copying it by ascontiguousarray would give it an axis.
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy(order="C")


def _operand(holder: Holder, operand: Operand, sizes: NumberedSizes | None) -> int:
    type_ = operand.type
    places = None if sizes is None else sizes.address_of_places(holder, type_.dimensions)
    return holder.make(
        "Operand",
        name=operand.name.encode(),
        data_type=DATA_TYPES[type_.dtype],
        layout=LAYOUTS[type_.layout],
        lifetime=LIFETIMES[operand.lifetime],
        rank=type_.rank,
        dimensions=holder.values("i64", map(int, known(type_.dimensions))),
        quantization=None if type_.quantization is None else _quantization(holder, type_.quantization),
        data=None if operand.value is None else _constant(holder, operand, operand.value),
        bytes=_told_bytes(operand) if places is None else 0,
        sizes=places,
    )


def _told_bytes(operand: Operand) -> int:
    """The bytes of an operand, which C would cut to 64 bits."""
    nbytes = operand.type.nbytes
    if nbytes >> 63:
        raise InvalidModelError(
            f"sizes are too large for a driver in C: {operand.name!r} has {nbytes:.3g} bytes; give smaller inputs"
        )
    return nbytes


def _constant(holder: Holder, operand: Operand, value: Array) -> int | None:
    return contents(holder.keep(pack(value) if operand.type.dtype in PACKED else aligned(value)))


def _quantization(holder: Holder, quantization: Quantization) -> int:
    return holder.make(
        "Quantization",
        axis=-1 if quantization.axis is None else quantization.axis,
        count=len(quantization.scale),
        scales=holder.values("f64", quantization.scale),
        zero_points=holder.values("i64", quantization.zero_point),
    )


def _operation(holder: Holder, operation: Operation, sizes: NumberedSizes | None) -> int:
    kinds = {row.name: row.kind for row in schema_of(operation.type).attributes}
    attributes = [attribute(holder, name, kinds[name], value, sizes) for name, value in operation.attributes.items()]
    return holder.make(
        "Operation",
        type=operation.type.encode(),
        input_count=len(operation.inputs),
        output_count=len(operation.outputs),
        attribute_count=len(attributes),
        origin_count=len(operation.origins),
        inputs=holder.values("i32", operation.inputs),
        outputs=holder.values("i32", operation.outputs),
        attributes=holder.pointers(attributes),
        origins=holder.texts(operation.origins),
    )
