"""Exporters of linear algebra: matrix products, Einsum and Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.exporting.writer import NodeWriter, exporter
from nnadapter.ir.operand import DataType
from nnadapter.onnx.schemas import MICROSOFT


def swapped(write: NodeWriter, name: str, rank: int) -> str:
    """A value with its last two axes exchanged."""
    return write.node("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])


@exporter("FULLY_CONNECTED")
def export_fully_connected(write: NodeWriter) -> str:
    """FULLY_CONNECTED: Gemm on matrices, else a product and a sum. Source: ONNX Gemm-13."""
    x, weight, bias = write.inputs
    if write.type.rank == 2:
        return write.node("Gemm", x, weight, bias, transB=1)
    product = write.node("MatMul", x, swapped(write, weight, 2))
    return write.node("Add", product, bias) if bias else product


@exporter("MAT_MUL")
def export_mat_mul(write: NodeWriter) -> str:
    """MAT_MUL; operands are transposed by ops of their own. Source: ONNX MatMul-13.

    A transposed matrix times a vector is the vector times the matrix. ONNX Runtime 1.32 gets the first one wrong.
    """
    x, y = write.inputs
    x_rank, y_rank = (type_.rank if type_ else 0 for type_ in write.types)
    turned = (write.operation.transpose_x, write.operation.transpose_y)
    if (x_rank == 1 and turned[1]) or (y_rank == 1 and turned[0]):
        return write.node("MatMul", y, x)
    operands = zip((x, y), (x_rank, y_rank), turned, strict=True)
    return write.node("MatMul", *(swapped(write, name, rank) if turn else name for name, rank, turn in operands))


@exporter("EINSUM")
def export_einsum(write: NodeWriter) -> str:
    """EINSUM. Source: ONNX Einsum-12.

    onnx 1.23 infers no shape from an equation without any letter, and its reference computes none.
    """
    return write.node("Einsum", *write.inputs, equation=write.operation.equation or "->")


@exporter("MAT_MUL_N_BITS")
def export_mat_mul_n_bits(write: NodeWriter) -> Sequence[str]:
    """MAT_MUL_N_BITS, for which ONNX itself has no op. Source: com.microsoft MatMulNBits-1."""
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


@exporter("DFT")
def export_dft(write: NodeWriter) -> str:
    """DFT. Source: ONNX DFT-20."""
    of = write.operation
    numbers = [write.number(number, DataType.INT64) for number in (of.length, of.axis)]
    return write.node("DFT", write.inputs[0], *numbers, inverse=of.inverse, onesided=of.onesided)


@exporter("STFT")
def export_stft(write: NodeWriter) -> str:
    """STFT. Source: ONNX STFT-17."""
    of = write.operation
    x, window = write.inputs
    step, length = (write.number(size, DataType.INT64) for size in (of.frame_step, of.frame_length))
    return write.node("STFT", x, step, window, length, onesided=of.onesided)
