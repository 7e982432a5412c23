from __future__ import annotations

import numpy as np
import pytest

from nnadapter.errors import InvalidModelError
from nnadapter.ir import DataType, ModelBuilder, OperandType, Quantization, QuantizedType, verify

_VECTOR = OperandType(DataType.FLOAT32, (3,))


def test_types_are_accepted_as_strings_and_lists():
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType("float32", [np.int64(2), 3]))
    assert builder.type_of(x) == OperandType(DataType.FLOAT32, (2, 3))
    assert all(type(size) is int for size in builder.type_of(x).dimensions)


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        ("float32", "operand 'x' is 'float32', expected an OperandType"),
        (OperandType("float33", (3,)), "operand 'x' is 'float33', expected one of bool, int4"),
        (OperandType("float32", 3), "has dimensions 3, expected integers"),
        (OperandType("float32", (None, 3)), r"has dimensions \(None, 3\), expected integers"),
        (OperandType("float32", (2.0,)), "expected integers"),
        (OperandType("float32", (3,), "HWCN"), "operand 'x' has layout 'HWCN', expected one of NCHW, NHWC"),
        (OperandType("int8", (3,), quantization=(1.0, 0)), r"has quantization \(1.0, 0\), expected a Quantization"),
        (OperandType("float32", (True, 3)), r"has dimensions \(True, 3\), expected integers"),
        (OperandType("float32", (-1, 3)), r"has dimensions \[-1, 3\], expected none below 0"),
    ],
)
def test_invalid_types_are_refused(type_, message):
    with pytest.raises(InvalidModelError, match=message):
        ModelBuilder().add_input("x", type_)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0], "constant 'c' is list, expected a numpy array"),
        (np.array(["a"]), "constant 'c' holds <U1, expected one of bool"),
        (np.array([1j]), "constant 'c' holds complex128"),
    ],
)
def test_invalid_constants_are_refused(value, message):
    with pytest.raises(InvalidModelError, match=message):
        ModelBuilder().add_constant("c", value)


@pytest.mark.parametrize("index", [1, 7, -2])
def test_unknown_operands_are_refused(index):
    builder = ModelBuilder()
    builder.add_input("x", _VECTOR)
    for use in (
        lambda: builder.add_operation("RELU", (index,)),
        lambda: builder.type_of(index),
        lambda: builder.value_of(index),
        lambda: builder.finish([index]),
    ):
        with pytest.raises(InvalidModelError, match=rf"{index} is not one of the"):
            use()


_QUANTIZATION = Quantization(scale=(0.5,), zero_point=(0,))
_QUANTIZED = QuantizedType(DataType.INT8, _QUANTIZATION)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"type_": None}, "an operation's type is None, expected a str such as"),
        ({"type_": ["SOFTMAX"]}, r"an operation's type is \['SOFTMAX'\]"),
        ({"inputs": 0}, "^SOFTMAX: inputs are 0, expected a list of operands$"),
        ({"inputs": "x"}, "^SOFTMAX: inputs are 'x', expected a list of operands$"),
        ({"inputs": ["x"]}, "^SOFTMAX: operand 'x' is not one of the 1 added so far"),
        ({"inputs": [0.0]}, "^SOFTMAX: operand 0.0 is not one of the 1"),
        ({"inputs": [False]}, "^SOFTMAX: operand False is not one of the 1"),
        ({"inputs": [None]}, "^SOFTMAX: operand None is not one of the 1"),
        ({"attributes": [("axis", 1)]}, r"^SOFTMAX: attributes are \[\('axis', 1\)\], expected a dict"),
        ({"attributes": 0}, "^SOFTMAX: attributes are 0, expected a dict"),
        ({"attributes": {1: 1}}, "^SOFTMAX: unknown attribute 1; known: axis$"),
        ({"outputs": ["a", "b"]}, "^SOFTMAX: outputs has 2 entries, expected at most 1; leave out .'b'.$"),
        ({"outputs": "hello"}, "^SOFTMAX: outputs is 'hello', expected a list of names$"),
        ({"outputs": [7]}, r"^SOFTMAX: outputs is \[7\], expected a list of names$"),
        ({"outputs": 7}, "^SOFTMAX: outputs is 7, expected a list of names$"),
        ({"origins": "node"}, "^SOFTMAX: origins is 'node', expected a list of names$"),
        ({"origins": [None]}, r"^SOFTMAX: origins is \[None\], expected a list of names$"),
        ({"quantized": (_QUANTIZATION,)}, "^SOFTMAX: quantized is .*, expected a list of QuantizedType, or None,"),
        ({"quantized": (3,)}, r"^SOFTMAX: quantized is \(3,\), expected a list of QuantizedType"),
        (
            {"quantized": (QuantizedType(3, _QUANTIZATION),)},
            "^SOFTMAX: output 0 is quantized as 3, expected an integer data type",
        ),
        ({"quantized": (QuantizedType(DataType.INT8, 3),)}, "^SOFTMAX: output 0 has quantization 3, expected a Quan"),
        ({"outputs": np.ones(2)}, "^SOFTMAX: outputs is array.*, expected a list of names$"),
        ({"inputs": [np.zeros(2)]}, "^SOFTMAX: operand array.* is not one of the 1"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    builder = ModelBuilder()
    x = builder.add_input("x", _VECTOR)
    mark = builder.mark()
    with pytest.raises(InvalidModelError, match=message):
        builder.add_operation(**{"type_": "SOFTMAX", "inputs": [x], "attributes": {"axis": 0}} | arguments)
    assert builder.mark() == mark


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scale": 1.0, "zero_point": 0}, "has the scale 1.0, expected a tuple"),
        ({"scale": (1.0,), "zero_point": 0}, "has the zero_point 0, expected a tuple"),
        ({"scale": ("a",), "zero_point": (0,)}, "has a scale that is not a number: 'a'"),
        ({"scale": (1.0,), "zero_point": (0.5,)}, "has a zero point that is not an integer: 0.5"),
        ({"scale": (1.0,), "zero_point": (0,), "axis": "C"}, "is quantized along axis 'C', expected an integer"),
    ],
)
def test_invalid_quantizations_are_refused(fields, message):
    builder, quantization = ModelBuilder(), Quantization(**fields)
    x = builder.add_input("x", _VECTOR)
    uses = {
        "operand 'y' ": lambda: builder.add_input("y", OperandType(DataType.INT8, (3,), quantization=quantization)),
        "operand 'z' ": lambda: builder.add_constant("z", np.ones(3, np.int8), quantization),
        "QUANTIZE: output 0 ": lambda: builder.add_operation(
            "QUANTIZE", (x,), quantized=(QuantizedType(DataType.INT8, quantization),)
        ),
    }
    for which, use in uses.items():
        with pytest.raises(InvalidModelError, match=f"^{which}{message}"):
            use()


def test_too_many_quantized_types_are_refused():
    builder = ModelBuilder()
    type_ = OperandType(DataType.INT8, (3,), quantization=_QUANTIZATION)
    x, y = (builder.add_input(name, type_) for name in "xy")
    with pytest.raises(InvalidModelError, match="^ADD: quantized has 3 entries, expected at most 1; leave out "):
        builder.add_operation("ADD", (x, y), quantized=(_QUANTIZED,) * 3)
    (result,) = builder.add_operation("ADD", (x, y), quantized=[_QUANTIZED, None])
    assert builder.type_of(result).quantization is _QUANTIZATION


@pytest.mark.parametrize("name", [3, None, b"x"])
def test_invalid_names_are_refused(name):
    builder = ModelBuilder()
    for use in (lambda: builder.add_input(name, _VECTOR), lambda: builder.add_constant(name, np.ones(3))):
        with pytest.raises(InvalidModelError, match=f"an operand is named {name!r}, expected a str"):
            use()


@pytest.mark.parametrize("outputs", [3, None, "x", ["x"], [0.0], [False], [None]])
def test_invalid_outputs_are_refused(outputs):
    builder = ModelBuilder()
    builder.add_input("x", _VECTOR)
    with pytest.raises(InvalidModelError, match="^model output"):
        builder.finish(outputs)


def test_generated_name_yields_to_an_explicit_one():
    builder = ModelBuilder()
    x = builder.add_input("x", _VECTOR)
    (nameless,) = builder.add_operation("RELU", (x,))
    (also,) = builder.add_operation("EXP", (nameless,))
    (taken,) = builder.add_operation("ABS", (also,), outputs=["%1"])
    (again,) = builder.add_operation("NEG", (taken,), outputs=["%2"])
    mark = builder.mark()
    builder.add_operation("TANH", builder.add_operation("SIN", (again,)), outputs=["%5"])
    builder.undo(mark)
    model = builder.finish(builder.add_operation("COS", (again,)))
    names = [operand.name for operand in model.operands]
    assert (names[taken], names[again]) == ("%1", "%2") and len(set(names)) == len(names) == 6
    verify(model)
    with pytest.raises(InvalidModelError, match="two operands named 'x'"):
        ModelBuilder.add_operation(builder, "RELU", (x,), outputs=["x"])


def test_numpy_integers_are_accepted_as_operands():
    builder = ModelBuilder()
    x = builder.add_input("x", _VECTOR)
    (y,) = builder.add_operation("CLIP", np.array([x]), {"min": 0.0, "max": 1.0}, outputs=["y", ""])
    assert builder.finish(np.array([y])).outputs == (y,)
