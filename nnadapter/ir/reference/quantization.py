"""The meanings of operations between integers and reals."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.operand import DataType, Quantization, QuantizedType
from nnadapter.ir.reference.meaning import Example, OperationDoc, tensor

_HALVES = Quantization(scale=(0.5,), zero_point=(10,))
_BYTES = QuantizedType(DataType.UINT8, _HALVES)

MEANINGS: Mapping[str, OperationDoc] = {
    "QUANTIZE": OperationDoc(
        summary="Reals as the integers of a quantized operand.",
        formula="output = saturated(rint(input / scale) + zero_point)",
        inputs={"input": "Reals; taken as float32."},
        outputs={
            "output": "The dimensions of `input`. Data type, scale, zero point and axis are those that the model gives"
            " the result: no attribute says them."
        },
        example=Example((tensor([-6.0, -0.25, 0.25, 0.75, 200.0]),), results=(_BYTES,)),
        traps=(
            "Halves round to even, before the zero point is added.",
            "Too large and too small numbers become the largest and the smallest integer.",
            "Per axis, there is one scale and zero point for each index of the axis.",
            "What NaN becomes is not defined.",
        ),
    ),
    "DEQUANTIZE": OperationDoc(
        summary="The reals that a quantized operand stands for.",
        formula="output = (input - zero_point) * scale",
        inputs={"input": "A quantized operand of any integer type. Its type says scale, zero point and axis."},
        attributes={"to": "The data type of the result."},
        outputs={"output": "The data type `to`; dimensions and layout of `input`; not quantized."},
        example=Example((tensor([0, 10, 11, 255], "uint8"),), quantizations=(_HALVES,)),
        traps=(
            "Subtract in more bits than the operand has: 0 - 255 does not fit int8 or uint8.",
            "It is computed in float32, also where `to` is float64.",
            "An operand that is not quantized is refused; CAST takes it.",
        ),
    ),
    "STORAGE_CAST": OperationDoc(
        summary="The same integers, said to stand for reals from now on.",
        formula="output = input",
        inputs={"input": "Integers."},
        outputs={
            "output": "Data type and dimensions of `input`, quantized as the model says of the result: scale, zero"
            " point and axis are no attributes."
        },
        example=Example((tensor([1, 2, 3], "uint8"),), results=(_BYTES,)),
        traps=("Nothing is computed: a device may let the result share the memory of the input.",),
    ),
}
"""By operation."""
