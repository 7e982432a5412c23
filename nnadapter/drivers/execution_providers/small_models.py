"""Models of one node, written by hand: what is loaded from a compiled file needs nothing that has to do with models."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.onnx.wire_format import BYTES, varint_bytes

FLOAT, HALF = 1, 10
"""Numbers of data types in `TensorProto.DataType`."""
_IR_VERSION, _OPSET = 8, 13
_INPUTS, _OUTPUT = (b"a", b"b"), b"c"


def model_of_one(op_type: bytes, inputs: int, element_type: int, shape: Sequence[int] | None = None) -> bytes:
    """Return a serialized model whose node makes `c` of `a`, and of `b` if it takes two, all of one type.

    Args:
        op_type: of the node.
        inputs: how many it takes.
        element_type: number of the data type.
        shape: of all values; None leaves it open.
    """
    tensor = [(1, element_type)]
    if shape is not None:
        tensor.append((2, _message(*((1, _message((1, size))) for size in shape))))  # type: ignore[arg-type]
    type_ = _message((1, _message(*tensor)))
    names = _INPUTS[:inputs]
    node = _message(*((1, name) for name in names), (2, _OUTPUT), (3, b"nnadapter:0:0"), (4, op_type), (7, b""))
    values = [_message((1, name), (2, type_)) for name in (*names, _OUTPUT)]
    graph = _message((1, node), (2, b"probe"), *((11, value) for value in values[:-1]), (12, values[-1]))
    return _message((1, _IR_VERSION), (7, graph), (8, _message((1, b""), (2, _OPSET))))


def _message(*fields: tuple[int, int | bytes]) -> bytes:
    """Return a message with these fields: their numbers, and what they hold."""
    return b"".join(
        varint_bytes(number << 3) + varint_bytes(value)
        if isinstance(value, int)
        else varint_bytes(number << 3 | BYTES) + varint_bytes(len(value)) + value
        for number, value in fields
    )
