"""Bodies of ops with block-quantized weights of few bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.ir.derived import derived
from nnadapter.ir.operand import Array
from nnadapter.onnx.body import BodyBuilder, function_op, sliced
from nnadapter.onnx.schemas import Refusal
from nnadapter.records import dataclass
from partition.graph import Reason

_IN_BYTES = {"int4": "int8", "uint4": "uint8"}
"""Types stored as one byte per element, and that byte's type."""
_BITS = (2, 4, 8)
_LEAST_BLOCK = 16
_N_BITS = {"accuracy_level": 0, "bits": 4, "block_size": int, "K": int, "N": int, "weight_prepacked": 0}

_FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_BNB4_NUMBERS = (
    (*_FP4, *(-number for number in _FP4)),
    (
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ),
)
"""FP4 and NF4 codes, relative to the block's maximum, as in bitsandbytes."""


@function_op("MatMulNBits", "A B scales zero_points? g_idx? bias?", "Y", _N_BITS, required=["K", "N", "block_size"])
def mat_mul_n_bits(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft MatMulNBits-1, for devices that take ONNX; the IR has its own operation."""
    node, dtype = body.node, body.dtype()
    units, depth = node.integer("N"), node.integer("K")
    bits, block_size = node.integer("bits"), _block_size(body)
    if body.input(4) or node.integer("weight_prepacked"):
        raise body.unsupported("weight_prepacked", "is 1, or input g_idx is present; expected neither")
    _refuse_bits(body, bits)
    blocks = -(-depth // block_size)
    reals = body.cast(body.reshape(_integers(body, body.input(1), bits), units, blocks, block_size), dtype)
    reals = body.Sub(reals, _zero_points(body, (units, blocks), bits))
    reals = body.Mul(reals, body.reshape(body.input(2), units, blocks, 1))
    weight = body.reshape(reals, units, blocks * block_size)
    if blocks * block_size > depth:
        weight = sliced(body, weight, 1, 0, depth)
    product = body.MatMul(body.input(0), body.Transpose(weight, perm=(1, 0)))
    return [body.plus(product, body.input(5))]


def _block_size(body: BodyBuilder) -> int:
    size = body.node.integer("block_size")
    if size < _LEAST_BLOCK or size & (size - 1):
        raise body.unsupported("block_size", f"is {size}; expected a power of two, {_LEAST_BLOCK} or more")
    return size


def _refuse_bits(body: BodyBuilder, bits: int) -> None:
    if bits not in _BITS:
        raise body.unsupported("bits", f"is {bits}; expected 2, 4 or 8")


def _integers(body: BodyBuilder, packed: str, bits: int) -> str:
    """Unpack integers of `bits` bits from bytes, lowest first, along a new axis."""
    if bits == 8:
        return packed
    parts = []
    for shift in range(0, 8, bits):
        above = 8 - bits - shift  # shifts higher bits out of the byte
        shifted = body.BitShift(packed, body.constant(above, "uint8"), direction="LEFT") if above else packed
        part = body.BitShift(shifted, body.constant(8 - bits, "uint8"), direction="RIGHT")
        parts.append(body.unsqueeze(part, -1))
    return body.Concat(*parts, axis=-1)


def _zero_points(body: BodyBuilder, shape: tuple[int, int], bits: int) -> str:
    units, blocks = shape
    dtype = body.dtype()
    if not body.input(3):
        return body.constant(1 << (bits - 1), dtype)
    if body.dtype(3) != "uint8":
        return body.reshape(body.cast(body.input(3), dtype), units, blocks, 1)
    points = body.reshape(_integers(body, body.input(3), bits), units, -1)
    if blocks * bits % 8:
        points = sliced(body, points, 1, 0, blocks)
    return body.reshape(body.cast(points, dtype), units, blocks, 1)


@function_op(
    "MatMulBnb4",
    "A B absmax",
    "Y",
    {"K": int, "N": int, "block_size": int, "quant_type": int, "training_mode": 0, "transB": 1},
    required=["K", "N", "block_size", "quant_type"],
)
def mat_mul_bnb4(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft MatMulBnb4-1, with two elements per byte.

    Refused: non-constant weights, and `transB` 0, for which ONNX Runtime's CPU kernel deviates from the schema.
    """
    node = body.node
    units, depth, kind = (node.integer(name, -1) for name in ("N", "K", "quant_type"))
    if kind not in range(len(_BNB4_NUMBERS)):
        raise body.unsupported("quant_type", f"is {kind}; expected 0 for FP4 or 1 for NF4")
    if not node.integer("transB"):
        raise body.unsupported("transB", "is 0; expected 1")
    block_size = _block_size(body)
    packed, most = body.contents(1), body.contents(2)
    count = units * depth
    if min(units, depth) < 1 or packed.size != -(-count // 2) or most.size != -(-count // block_size):
        raise body.invalid(
            f"has {packed.size} bytes and {most.size} scales for a weight of {units} by {depth}; "
            f"expected {-(-count // 2)} bytes and {-(-count // block_size)} scales"
        )
    weight = derived(_bnb4_weight, packed, most, units=units, depth=depth, block_size=block_size, kind=kind)
    return [body.MatMul(body.input(0), body.constant(weight, body.dtype()))]


def _bnb4_weight(packed: Array, most: Array, *, units: int, depth: int, block_size: int, kind: int) -> Array:
    """Dequantize to a weight `[K, N]`. `most` has a scale per block: consecutive elements of the transposed weight."""
    count = units * depth
    codes = np.stack((packed.reshape(-1) >> 4, packed.reshape(-1) & 15), axis=-1).reshape(-1)[:count]
    scales = np.repeat(most.reshape(-1).astype(np.float32), block_size)[:count]
    weight = (np.array(_BNB4_NUMBERS[kind], np.float32)[codes] * scales).reshape(units, depth)
    return np.ascontiguousarray(weight.T.astype(most.dtype))


@function_op(
    "GatherBlockQuantized",
    "data indices scales zero_points?",
    "output",
    {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1},
)
def gather_block_quantized(body: BodyBuilder) -> Sequence[str]:
    """Expand com.microsoft GatherBlockQuantized-1. Rows are dequantized after lookup.

    Default zero points are 0, or half the range in a table of bytes. Refused: floating-point tables, and blocks along
    other axes than the last.
    """
    table = _Table.of(body)
    reals, scale = table.reals(0), table.rows(body.input(2))
    if body.input(3):
        points = sliced(body, table.reals(3), -1, 0, table.blocks)
        reals = body.Sub(reals, table.spread(points))
    elif table.is_bytes:
        reals = body.Sub(reals, body.constant(1 << (table.bits - 1), table.dtype))
    return [body.Mul(reals, table.spread(scale))]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    body: BodyBuilder
    axis: int
    dtype: str
    bits: int
    is_bytes: bool
    length: int
    blocks: int

    @classmethod
    def of(cls, body: BodyBuilder) -> _Table:
        node, rank, dtype = body.node, body.rank(0), body.dtype(0)
        axes = [node.integer(name) for name in ("gather_axis", "quantize_axis")]
        if axes[1] not in (-1, rank - 1) or axes[0] in (-1, rank - 1):
            raise body.unsupported(
                "quantize_axis",
                f"is {axes[1]} and gather_axis is {axes[0]}; expected the last axis and any other axis",
            )
        if dtype not in (*_IN_BYTES, "uint8"):
            raise Refusal(Reason.UNSUPPORTED_DTYPE, f"{node.op_type} has a table of {dtype}; expected integers")
        bits = node.integer("bits") if dtype == "uint8" else 8
        _refuse_bits(body, bits)
        width, blocks = body.width(0), body.width(2)
        if width is None or blocks is None or blocks != -(-(width * 8 // bits) // _block_size(body)):
            raise body.invalid(f"has {blocks} scales for a row of {width} elements; expected one for each block")
        length = width * 8 // bits
        return cls(
            body=body,
            axis=axes[0],
            dtype=body.dtype(2),
            bits=bits,
            is_bytes=dtype == "uint8",
            length=length,
            blocks=blocks,
        )

    def rows(self, table: str) -> str:
        return self.body.Gather(table, self.body.input(1), axis=self.axis)

    def reals(self, position: int) -> str:
        """Gather the selected rows of input `position`, with each quantized integer as a float."""
        body, dtype = self.body, self.body.dtype(position)
        if dtype in _IN_BYTES:  # Gather supports bytes at any opset
            byte_table = derived(_as_bytes, body.contents(position), dtype=_IN_BYTES[dtype])
            return body.cast(self.rows(body.constant(byte_table, _IN_BYTES[dtype])), self.dtype)
        packed = body.cast(self.rows(body.input(position)), self.dtype)
        return packed if self.bits == 8 else self._joined(self._parts(packed))

    def _parts(self, packed: str) -> str:
        body, parts, remaining = self.body, list[str](), packed
        for _ in range(8 // self.bits - 1):
            above = body.Floor(body.Mul(remaining, body.constant(0.5**self.bits, self.dtype)))
            scaled = body.Mul(above, body.constant(float(1 << self.bits), self.dtype))
            parts.append(body.unsqueeze(body.Sub(remaining, scaled), -1))
            remaining = above
        return body.Concat(*parts, body.unsqueeze(remaining, -1), axis=-1)

    def spread(self, parameters: str) -> str:
        body, block = self.body, _block_size(self.body)
        many = body.Expand(body.unsqueeze(parameters, -1), body.constant((block,)))
        return sliced(body, self._joined(many), -1, 0, self.length)

    def _joined(self, x: str) -> str:
        rank = self.body.rank(0) - 1 + self.body.rank(1)
        return self.body.reshape(x, *(0,) * (rank - 1), -1)


def _as_bytes(table: Array, *, dtype: str) -> Array:
    return table.astype(dtype)
