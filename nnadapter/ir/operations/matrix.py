"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import FLOATING, NUMERIC, DataType, OperandType
from nnadapter.ir.operations.row import Types, integer, present, row
from nnadapter.ir.operations.shape_rules import Dimensions, broadcast, check_dimensions, check_vector
from nnadapter.ir.operations.windows import FUSE_ATTRIBUTES, fusable, fused
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role


def _fully_connected(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, weight = present(types, 0), present(types, 1)
    if weight.rank != 2:
        raise InvalidModelError(f"weight has dimensions {list(weight.dimensions)}, expected two, [N, K]")
    units, depth = weight.dimensions
    if first.dimensions[-1] != depth:
        raise InvalidModelError(f"the last axis of input has {first.dimensions[-1]} elements, expected {depth}")
    bias = types[2] if len(types) > 2 else None
    if bias is not None:
        check_vector("bias", bias, units)
    return (OperandType(first.dtype, (*first.dimensions[:-1], units)),)


def _fully_connected_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    size = outputs[0].size
    biased = len(types) > 2 and types[2] is not None
    return 2 * size * present(types, 1).dimensions[1] + (size if biased else 0)


def _operand(name: str, type_: OperandType, transposed: object) -> Dimensions:
    dimensions = type_.dimensions
    if not transposed:
        return dimensions
    if len(dimensions) < 2:
        raise InvalidModelError(
            f"transpose_{name} is True on {name} of rank {len(dimensions)}, expected rank 2 or more"
        )
    return (*dimensions[:-2], dimensions[-1], dimensions[-2])


def _operands(types: Types, attributes: Attributes) -> tuple[Dimensions, Dimensions]:
    first, second = present(types, 0), present(types, 1)
    if second.rank == 0:
        raise InvalidModelError("y has rank 0, expected rank 1 or more")
    return _operand("x", first, attributes["transpose_x"]), _operand("y", second, attributes["transpose_y"])


def _mat_mul(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    x, y = _operands(types, attributes)
    # As in numpy.matmul, a vector on the left is a row and one on the right a column, whose axis of 1 goes away again.
    depth = y[0] if len(y) == 1 else y[-2]
    if x[-1] != depth:
        raise InvalidModelError(f"x {list(x)} and y {list(y)} share no inner size: {x[-1]} against {depth}")
    batch = broadcast((x[:-2], y[:-2])) if len(x) > 2 or len(y) > 2 else ()
    rows = x[-2:-1]
    columns = y[-1:] if len(y) > 1 else ()
    return (OperandType(present(types, 0).dtype, (*batch, *rows, *columns)),)


def _mat_mul_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    x, _ = _operands(types, attributes)
    return 2 * outputs[0].size * x[-1]


PACKED_BITS = (2, 4, 8)
"""Bits of an integer of which several may lie in a byte, none in two."""


def _mat_mul_n_bits(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    x, weight, scale, *others = types
    assert x is not None and weight is not None and scale is not None, "`check_inputs` has seen them"
    bits, block_size = integer(attributes, "bits"), integer(attributes, "block_size")
    if bits not in PACKED_BITS:
        raise InvalidModelError(f"bits is {bits}, expected one of {list(PACKED_BITS)}")
    if block_size < 1 or block_size * bits % 8:
        raise InvalidModelError(f"block_size is {block_size}, expected 1 or more, and whole bytes of {bits} bits")
    if weight.rank != 3:
        raise InvalidModelError(f"weight has dimensions {list(weight.dimensions)}, expected three, [N, blocks, bytes]")
    units, blocks = weight.dimensions[0], -(-x.dimensions[-1] // block_size)
    check_dimensions("weight", weight, (units, blocks, block_size * bits // 8))
    check_dimensions("scale", scale, (units, blocks))
    zero_point, bias = (*others, None, None)[:2]
    if zero_point is not None:
        packed = zero_point.dtype is DataType.UINT8
        check_dimensions("zero_point", zero_point, (units, -(-blocks * bits // 8) if packed else blocks))
    if bias is not None:
        check_vector("bias", bias, units)
    return (OperandType(x.dtype, (*x.dimensions[:-1], units)),)


def _mat_mul_n_bits_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    size = outputs[0].size
    biased = len(types) > 4 and types[4] is not None
    return 2 * size * present(types, 0).dimensions[-1] + (size if biased else 0)


ROWS: tuple[OperationSchema, ...] = (
    row(
        "FULLY_CONNECTED",
        (
            Role("input", FLOATING),
            Role("weight", FLOATING, same_dtype_as="input"),
            Role("bias", FLOATING, optional=True, same_dtype_as="input"),
        ),
        fusable(_fully_connected),
        fused(_fully_connected_flops),
        "NNAPI FULLY_CONNECTED, with every leading axis kept; ONNX Gemm-13 with transB",
        attributes=FUSE_ATTRIBUTES,
        ranks=(1, 64),
    ),
    row(
        "MAT_MUL",
        (Role("x", NUMERIC), Role("y", NUMERIC, same_dtype_as="x")),
        fusable(_mat_mul),
        fused(_mat_mul_flops),
        "NNADAPTER_MAT_MUL; NNAPI BATCH_MATMUL; ONNX MatMul-13",
        attributes=(
            Attribute("transpose_x", AttributeKind.BOOL, False),
            Attribute("transpose_y", AttributeKind.BOOL, False),
            *FUSE_ATTRIBUTES,
        ),
        ranks=(1, 64),
    ),
    row(
        "MAT_MUL_N_BITS",
        (
            Role("x", FLOATING),
            Role("weight", frozenset({DataType.UINT8})),
            Role("scale", FLOATING, same_dtype_as="x"),
            Role("zero_point", FLOATING | {DataType.UINT8}, optional=True),
            Role("bias", FLOATING, optional=True, same_dtype_as="x"),
        ),
        _mat_mul_n_bits,
        _mat_mul_n_bits_flops,
        "ONNX Runtime MatMulNBits-1: FULLY_CONNECTED whose weight [N, K] is packed in blocks along K, the first "
        "integer in the lowest bits of a byte, each block with a scale and a zero point; none stands for 2^(bits - 1)",
        attributes=(Attribute("bits", AttributeKind.INT), Attribute("block_size", AttributeKind.INT)),
        ranks=(1, 64),
    ),
)
"""The rows of this family."""
