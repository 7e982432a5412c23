"""MatMulNBits: a product with weights of few bits, which stay packed until a device unpacks them."""

from __future__ import annotations

from math import prod

from nnadapter.converters.casting import reshaped
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import converter
from nnadapter.ir.model import ABSENT
from nnadapter.ir.operations.matrix import PACKED_BITS
from nnadapter.onnx.further_schemas import MICROSOFT
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason

_GROUP_INDICES = 4


@converter("MatMulNBits", 1, domain=MICROSOFT)
def convert_mat_mul_n_bits(context: ConversionContext, node: OnnxNode) -> None:
    """MatMulNBits of 2, 4 or 8 bits, zero points packed, as reals or absent. Source: com.microsoft MatMulNBits-1.

    1. `accuracy_level` says how coarsely a device may compute; the adapter IR computes with the reals themselves.
    2. Refused: weights whose inputs were put in another order (`g_idx`), or that were packed for one processor.
    """
    if node.input(_GROUP_INDICES):
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE, "MatMulNBits has 'g_idx', which gives every row of B a group; expected none"
        )
    if node.integer("weight_prepacked", 0):
        raise Refusal(Reason.UNSUPPORTED_ATTRIBUTE, "attribute 'weight_prepacked' of MatMulNBits is not 0; expected 0")
    bits, block_size = node.integer("bits", 4), node.integer("block_size")
    if bits not in PACKED_BITS:
        raise Refusal(
            Reason.UNSUPPORTED_ATTRIBUTE,
            f"attribute 'bits' of MatMulNBits is {bits}; expected one of {list(PACKED_BITS)}",
        )
    units, blocks = node.integer("N"), -(-node.integer("K") // max(block_size, 1))
    scale = _as_matrix(context, node, 2, (units, blocks))
    zero_point = ABSENT
    if node.input(3):
        packed = not context.type_of(node.input(3)).dtype.is_floating
        columns = -(-blocks * bits // 8) if packed else blocks
        zero_point = _as_matrix(context, node, 3, (units, columns))
    inputs = [context.operand(node.input(0)), context.operand(node.input(1)), scale, zero_point]
    inputs.append(context.optional_operand(node.input(5)))
    while inputs[-1] == ABSENT:
        inputs.pop()
    context.add("MAT_MUL_N_BITS", inputs, {"bits": bits, "block_size": block_size}, node.outputs)


def _as_matrix(context: ConversionContext, node: OnnxNode, position: int, shape: tuple[int, int]) -> int:
    """Scales or zero points, which may come as a vector, as [N, ...]."""
    type_ = context.type_of(node.input(position))
    if type_.size != prod(shape):
        raise Refusal(
            Reason.INVALID_NODE,
            f"{node.input(position)!r} of MatMulNBits is {type_}; expected {list(shape)} for its attributes",
        )
    return reshaped(context, context.operand(node.input(position)), shape)
