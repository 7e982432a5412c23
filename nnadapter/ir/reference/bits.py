"""The meanings of operations on the bits of numbers."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import LIKE_INPUT, Example, OperationDoc, tensor

_SPREAD = "The data type of `x`. The dimensions of both inputs, broadcast as numpy does."
_PAIR = (tensor([12, 10, -1], "int8"), tensor([10], "int8"))


def _pair(summary: str, formula: str) -> OperationDoc:
    return OperationDoc(
        summary=summary,
        formula=formula,
        inputs={"x": "The first integers.", "y": "The second integers; broadcast against `x`."},
        outputs={"output": _SPREAD},
        example=Example(_PAIR),
        traps=("Signed integers are in two's complement.",),
    )


MEANINGS: Mapping[str, OperationDoc] = {
    "BITWISE_AND": _pair("The bits that both have.", "x & y"),
    "BITWISE_OR": _pair("The bits that one of them has at least.", "x | y"),
    "BITWISE_XOR": _pair("The bits that exactly one of them has.", "x ^ y"),
    "BITWISE_NOT": OperationDoc(
        summary="All bits the other way round.",
        formula="~x; -x - 1 for signed integers",
        inputs={"input": "The integers."},
        outputs=LIKE_INPUT,
        example=Example((tensor([0, 1, -3], "int8"),)),
        traps=("A truth value has no such: NOT takes bool.",),
    ),
    "BIT_SHIFT": OperationDoc(
        summary="Bits moved to the left or to the right.",
        formula="left: x * 2^y, the low bits of it\nright: floor(x / 2^y)",
        inputs={"x": "The integers.", "y": "By how many bits; broadcast against `x`."},
        attributes={"direction": "`left`: towards higher bits. `right`: towards lower ones."},
        outputs={"output": _SPREAD},
        example=Example((tensor([1, -8, 100, -1], "int8"), tensor([3, 1, 9, 9], "int8")), {"direction": "right"}),
        traps=(
            "To the right, the sign fills up: -8 by 1 gives -4.",
            "A count that is negative, or as large as the number of bits or larger, gives 0; to the right it gives -1"
            " for negative x. In C that is undefined.",
        ),
    ),
    "BIT_CAST": OperationDoc(
        summary="The same bytes, read as another data type.",
        formula="the bits of x as `to`",
        inputs={"input": "Any operand."},
        attributes={"to": "The data type of the result, of as many bits as the input's."},
        outputs={"output": "The data type `to`; dimensions and layout of `input`."},
        example=Example((tensor([1.0, -2.0, 0.0]),), {"to": "int32"}),
        traps=(
            "No value is converted: CAST does that.",
            "To bool, every byte but 0 is true.",
            "Byte order does not matter: both types have elements of one size.",
        ),
    ),
}
"""By operation."""
