"""The meanings of products of matrices."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import FUSED, FUSED_INTEGERS, Example, OperationDoc, tensor

MEANINGS: Mapping[str, OperationDoc] = {
    "FULLY_CONNECTED": OperationDoc(
        summary="A layer of a network: rows of numbers times a matrix of weights.",
        formula="output[…, n] = activation(bias[n] + sum over k of input[…, k] * weight[n, k])",
        inputs={
            "input": "[…, K]: any leading axes, which are kept.",
            "weight": "[N, K]: a row for every output, as PyTorch's Linear and Gemm with transB have it.",
            "bias": "[N]; none adds nothing.",
        },
        attributes=FUSED,
        outputs={"output": "[…, N]. The data type of `input`."},
        example=Example(
            (tensor([[1.0, 2.0]]), tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -2.0]]), tensor([0.0, 10.0, 0.0])),
            {"fuse_code": "relu"},
        ),
        traps=(
            "The weight is [N, K], not [K, N].",
            "NNAPI's flattens leading axes to one; this one keeps them.",
            "Quantized: zero points are subtracted first; the weight may be quantized along axis 0. Without a"
            " quantized result, the sums come out in int32, and no fuse code applies.",
            "matmul_to_fully_connected makes it of MAT_MUL with a constant matrix.",
        ),
        flops="2 * output elements * K, 1 more for each with a bias, and the activation's steps",
    ),
    "MAT_MUL": OperationDoc(
        summary="A product of matrices, or of stacks of them, as numpy.matmul.",
        formula="output[…, i, j] = activation(sum over k of x[…, i, k] * y[…, k, j])",
        inputs={
            "x": "[…, M, K], or [K]; [M, K] is read as [K, M] with transpose_x.",
            "y": "[…, K, N], or [K].",
        },
        attributes={
            "transpose_x": "True: the last two axes of x change places before.",
            "transpose_y": "True: the last two axes of y change places before: it is […, N, K].",
            **FUSED,
        },
        outputs={"output": "[…, M, N], leading axes broadcast. The data type of `x`."},
        example=Example(
            (tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([[1.0, 0.0], [1.0, -1.0]])),
            {"transpose_y": True},
        ),
        traps=(
            "A vector on the left is a row, one on the right a column; that axis of 1 is not in the result. Two"
            " vectors give a scalar. Vectors cannot be transposed.",
            "Leading axes broadcast, the last two do not.",
            "Integers wrap around in their own data type.",
            FUSED_INTEGERS,
            "Quantized: zero points are subtracted first; y may be quantized along its output axis. Without a"
            " quantized result, the sums come out in int32, and no fuse code applies.",
            "fuse_attention makes ATTENTION of two of them with a SOFTMAX between.",
        ),
        flops="2 * output elements * K, and the activation's steps",
    ),
    "MAT_MUL_N_BITS": OperationDoc(
        summary="FULLY_CONNECTED with a weight of few bits that stays packed, in blocks with a scale and a zero point.",
        formula="W[n, k] = (integer[n, k] - zero_point[n, b]) * scale[n, b] with b = floor(k / block_size)\n"
        "integer[n, k] = floor(weight[n, b, floor(p * bits / 8)] / 2^((p * bits) mod 8)) mod 2^bits"
        " with p = k mod block_size\n"
        "output[…, n] = bias[n] + sum over k of x[…, k] * W[n, k]",
        inputs={
            "x": "[…, K]: any leading axes, which are kept.",
            "weight": "[N, blocks, block_size * bits / 8] with blocks = ceil(K / block_size); unsigned integers, the"
            " first one in the lowest bits of a byte.",
            "scale": "[N, blocks].",
            "zero_point": "uint8: [N, ceil(blocks * bits / 8)], packed as the weight is. Floating-point: [N, blocks]."
            " None: 2^(bits - 1) everywhere.",
            "bias": "[N]; none adds nothing.",
        },
        attributes={
            "bits": "Of an integer: 2, 4 or 8.",
            "block_size": "Integers in a block; they fill whole bytes.",
        },
        outputs={"output": "[…, N]. The data type of `x`."},
        example=Example(
            (tensor([[1.0, 10.0, 100.0]]), tensor([[[0x98], [0x0F]]], "uint8"), tensor([[0.5, 2.0]])),
            {"bits": 4, "block_size": 2},
        ),
        traps=(
            "K need not fill the last block: what lies behind K is not read.",
            "The zero point of 4 bits that is left out is 8, not 0.",
            "With 8 bits the integers are unsigned, too.",
            "Rows of packed zero points begin at a byte of their own.",
            "It is no quantized operation: operands have no quantization, and x is floating-point.",
        ),
        flops="2 * output elements * K, and 1 more for each with a bias",
    ),
}
"""By operation."""
