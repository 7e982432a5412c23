"""Converters of matrix products, Einsum and Trilu."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.converters.context import ConversionContext, invalid
from nnadapter.converters.registry import NodeWriter, OnnxNode, Reason, Refusal, converter, exporter
from nnadapter.ir import ABSENT, DataType
from nnadapter.onnx.schemas import MICROSOFT


@converter("Gemm", 7, 9, 11, 13)
def convert_gemm(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Gemm to FULLY_CONNECTED or MAT_MUL.

    FULLY_CONNECTED requires real or quantized values, only B transposed, alpha 1, and C absent or a bias, so that B is
    never copied.
    """
    if _is_fully_connected(context, node):
        inputs, bias = context.operands(node, 2), _bias(context, node)
        context.add("FULLY_CONNECTED", inputs if bias == ABSENT else (*inputs, bias), outputs=node.outputs)
        return
    _add_products(context, node)


def _is_fully_connected(context: ConversionContext, node: OnnxNode) -> bool:
    first = context.type_of(node.input(0))
    return (
        (first.dtype.is_floating or first.quantization is not None)
        and not node.integer("transA", 0)
        and node.integer("transB", 0) != 0
        and node.number("alpha", 1.0) == 1
        and (not _adds(node) or _is_bias(context, node))
    )


def _adds(node: OnnxNode) -> bool:
    return bool(node.input(2)) and node.number("beta", 1.0) != 0


def _is_bias(context: ConversionContext, node: OnnxNode) -> bool:
    dimensions, units = context.dimensions(node.input(2)), _units(context, node)
    if context.is_constant(node.input(2)):
        return dimensions[:-1] in ((), (1,))
    return dimensions == (units,) and node.number("beta", 1.0) == 1


def _units(context: ConversionContext, node: OnnxNode) -> int:
    return context.dimensions(node.input(1))[0]


def _bias(context: ConversionContext, node: OnnxNode) -> int:
    if not _adds(node):
        return ABSENT
    units = _units(context, node)
    beta = node.number("beta", 1.0)
    if context.dimensions(node.input(2)) == (units,) and beta == 1:
        return context.operand(node.input(2))
    bias = context.constant(node.input(2))
    vector = np.broadcast_to(bias.reshape(-1), (units,)) * np.asarray(beta, bias.dtype)
    return context.add_constant(vector.astype(bias.dtype, copy=False))


def _add_products(context: ConversionContext, node: OnnxNode) -> None:
    transposed = {"transpose_x": bool(node.integer("transA", 0)), "transpose_y": bool(node.integer("transB", 0))}
    alpha = node.number("alpha", 1.0)
    inputs = context.operands(node, 2)
    last = node.outputs if not _adds(node) else ()
    result = context.apply("MAT_MUL", *inputs, outputs=last if alpha == 1 else (), **transposed)
    if alpha != 1:
        result = context.apply("MUL", result, _factor(context, node, "alpha", alpha), outputs=last)
    if not _adds(node):
        return
    addend = context.operand(node.input(2))
    beta = node.number("beta", 1.0)
    if beta != 1:
        addend = context.apply("MUL", addend, _factor(context, node, "beta", beta))
    context.apply("ADD", result, addend, outputs=node.outputs)


def _factor(context: ConversionContext, node: OnnxNode, name: str, value: float) -> int:
    data_type: DataType = context.type_of(node.input(0)).dtype
    if not data_type.is_floating and not value.is_integer():
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"attribute {name!r} of Gemm on {data_type.value} is {value}; expected a whole number",
        )
    return context.add_constant(np.array(value).astype(np.dtype(data_type)))


@converter("Trilu", 14)
def convert_trilu(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Trilu to TRILU, or to WHERE if the diagonal is a run-time value."""
    upper, diagonal = bool(node.integer("upper", 1)), node.input(1)
    if diagonal and not context.is_constant(diagonal):
        _select_triangle(context, node, "LESS" if upper else "GREATER")
        return
    k = context.single_integer(node, 1) if diagonal else 0
    context.add_for(node, "TRILU", {"upper": upper, "k": k})


def _select_triangle(context: ConversionContext, node: OnnxNode, beyond: str) -> None:
    source, diagonal = context.operands(node, 2)
    type_, number = context.type_of(source), context.type_of(diagonal)
    if type_.rank < 2 or number.size != 1 or number.rank > 1:
        raise invalid(f"inputs of Trilu are {type_} and {number}; expected matrices and a scalar")
    rows, columns = (np.arange(size, dtype=np.dtype(number.dtype)) for size in type_.dimensions[-2:])
    is_zeroed = context.apply(beyond, context.add_constant(columns - rows[:, None]), diagonal)
    zero = context.add_constant(np.zeros((), np.dtype(type_.dtype)))
    context.apply("WHERE", is_zeroed, zero, source, outputs=node.outputs)


@converter("Einsum", 12, 28)
def convert_einsum(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Einsum to EINSUM."""
    if not node.inputs:
        raise invalid("Einsum has no inputs; expected one or more")
    operands = map(context.operand, node.inputs)
    context.apply("EINSUM", *operands, outputs=node.outputs, equation=node.text("equation", ""))


@exporter("FULLY_CONNECTED")
def export_fully_connected(write: NodeWriter) -> str:
    """Export FULLY_CONNECTED as Gemm, but results of rank above 2 as MatMul and Add."""
    x, weight, bias = write.inputs
    if write.type.rank == 2:
        return write.node("Gemm", x, weight, bias, transB=1)
    product = write.node("MatMul", x, write.swapped(weight, 2))
    return write.node("Add", product, bias) if bias else product


@exporter("MAT_MUL")
def export_mat_mul(write: NodeWriter) -> str:
    """Export MAT_MUL as MatMul.

    For a vector and a transposed matrix, the operands are swapped: ONNX Runtime 1.32 computes the transpose wrongly.
    """
    x, y = write.inputs
    x_rank, y_rank = (type_.rank if type_ else 0 for type_ in write.types)
    turned = (write.operation.transpose_x, write.operation.transpose_y)
    if (x_rank == 1 and turned[1]) or (y_rank == 1 and turned[0]):
        return write.node("MatMul", y, x)
    operands = zip((x, y), (x_rank, y_rank), turned, strict=True)
    return write.node("MatMul", *(write.swapped(name, rank) if turn else name for name, rank, turn in operands))


@exporter("EINSUM")
def export_einsum(write: NodeWriter) -> str:
    """Export EINSUM as Einsum; onnx 1.23 requires `->` for an empty equation."""
    return write.node("Einsum", *write.inputs, equation=write.operation.equation or "->")


@exporter("MAT_MUL_N_BITS")
def export_mat_mul_n_bits(write: NodeWriter) -> Sequence[str]:
    """Export MAT_MUL_N_BITS as com.microsoft MatMulNBits."""
    x, weight, scale, zero_point, bias = write.inputs
    of = write.operation
    attributes = {
        "K": write.type.dimensions[-1],
        "N": of.weight.type.dimensions[0],
        "bits": of.bits,
        "block_size": of.block_size,
    }
    inputs = (x, weight, scale, zero_point, "", bias)
    return write.of_version(MICROSOFT, "MatMulNBits", 1, inputs, 1, attributes)
