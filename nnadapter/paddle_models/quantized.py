"""Operations that quantize to 8 bits, of which paddle2onnx knows the form with floats of 8 bits alone.

In front of the converter they are marked as such (`mark`), and behind it turned back (`restore`): scales are divided by
the largest integer, what was of type float8e4m3fn is int8, and reals are no longer held to what such floats reach.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nnadapter.paddle_models.structures import walked

if TYPE_CHECKING:
    import onnx

_OPERATIONS = ("1.quantize_linear", "1.dequantize_linear")
_INTEGERS = {"bit_length": (8,), "qmin": (-128, -127), "qmax": (127,)}
"""What is taken as integers of 8 bits; axes, and how ties are rounded, are passed on."""
_FLOATS = {"qmin": -448, "qmax": 448}
"""By which the converter tells float8e4m3fn."""
_FLOAT8, _INT8 = 17, 3
"""Source: onnx.TensorProto.FLOAT8E4M3FN, INT8."""
_DIVISORS = {"QuantizeLinear": 448.0, "DequantizeLinear": 112.0}
"""What the converter divides scales by that are the largest real."""


def mark(program: Any) -> int:
    """Make the quantizing operations of a program, in place, those with floats, and return how many there are.

    Raises:
        ValueError: one of them is to fewer or more bits, or to floats.
    """
    operations = [item for item in walked(program) if item["#"] in _OPERATIONS]
    for operation in operations:
        attributes = {attribute["N"]: attribute["AT"] for attribute in operation["A"]}
        for name, allowed_values in _INTEGERS.items():
            value = attributes[name]["D"]
            if value not in allowed_values:
                raise ValueError(
                    f"a {operation['#'].removeprefix('1.')} has {name} {value}, expected {allowed_values[0]}"
                )
        for name, value in _FLOATS.items():
            attributes[name]["D"] = value
    return len(operations)


def restore(model: onnx.ModelProto, count: int) -> None:
    """Make integers of the operations that `mark` marked.

    Raises:
        ValueError: the converter wrote them otherwise than is known.
    """
    made_by = {name: node for node in model.graph.node for name in node.output}
    quantizing = [node for node in model.graph.node if node.op_type in _DIVISORS]
    if len(quantizing) != count:
        raise ValueError(f"{count} operations quantize, and {len(quantizing)} nodes do")
    for node in quantizing:
        division = made_by[_found(made_by, node.input[1], "Div")]
        _rescale(made_by[_found(made_by, division.input[1], "Constant")], _DIVISORS[node.op_type])
        _retype(made_by[_found(made_by, node.input[2], "Cast")])
        if node.op_type == "DequantizeLinear":
            cast = made_by[_found(made_by, node.input[0], "Cast")]
            _retype(cast)
            producer = made_by.get(cast.input[0])
            if producer is not None and producer.op_type == "Cast" and producer.input[0] in made_by:
                source = made_by[producer.input[0]]
                if source.op_type == "QuantizeLinear":  # integers, as floats, as integers
                    node.input[0] = source.output[0]
            _unbind(model, node.output[0])


def unrounded(model: onnx.ModelProto) -> None:
    """Leave out what quantizes reals and makes reals of them again: Paddle's predictor does so on the CPU."""
    made_by = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        source = made_by.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if source is not None and source.op_type == "QuantizeLinear":
            node.op_type = "Identity"
            node.input[0] = source.input[0]
            del node.input[1:], node.attribute[:]


def _found(made_by: Mapping[str, Any], name: str, op_type: str) -> str:
    """The name, if such a node makes it."""
    if name not in made_by or made_by[name].op_type != op_type:
        raise ValueError(f"value {name!r} of a quantizing node is made by no {op_type}")
    return name


def _rescale(constant: Any, divisor: float) -> None:
    """Have a scale, which is the largest real, divided by the largest integer."""
    (attribute,) = constant.attribute
    if attribute.t.raw_data != struct.pack("<f", divisor):
        raise ValueError("a scale of a quantizing node is divided by something else")
    attribute.t.raw_data = struct.pack("<f", _INTEGERS["qmax"][0])


def _retype(cast: Any) -> None:
    (to,) = cast.attribute
    if to.i != _FLOAT8:
        raise ValueError(f"a Cast of a quantizing node is to type {to.i}, expected {_FLOAT8}")
    to.i = _INT8


def _unbind(model: onnx.ModelProto, name: str) -> None:
    """Make the Max and the Min, that hold reals to what floats of 8 bits reach, pass on what they get."""
    for op_type in ("Max", "Min"):
        bounds = [node for node in model.graph.node if node.op_type == op_type and node.input[0] == name]
        if len(bounds) != 1:
            raise ValueError(f"{len(bounds)} nodes of type {op_type} stand behind a DequantizeLinear, expected 1")
        (bound,) = bounds
        bound.op_type = "Identity"
        del bound.input[1:]
        name = bound.output[0]
