from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nnadapter.drivers.fake_npu import FakeNpuDriver
from nnadapter.errors import InvalidModelError
from nnadapter.ir import DataType, Lifetime, Model, ModelBuilder, Operand, OperandType, Quantization, verify


def _model(value: np.ndarray) -> Model:
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.INT32, (3,)))
    return builder.finish(builder.add_operation("ADD", (x, builder.add_constant("b", value)), outputs=["y"]))


_GOOD = _model(np.arange(3, dtype=np.int32))


def _operand(index: int, **changes: object) -> Model:
    operands = list(_GOOD.operands)
    operands[index] = replace(operands[index], **changes)
    return replace(_GOOD, operands=tuple(operands))


def _type(index: int, **changes: object) -> Model:
    return _operand(index, type=replace(_GOOD.operands[index].type, **changes))


def _operation(**changes: object) -> Model:
    return replace(_GOOD, operations=(replace(_GOOD.operations[0], **changes),))


def _quantized(scale: object, zero_point: object) -> Model:
    quantization = Quantization(scale=(scale,), zero_point=(zero_point,))
    return _type(0, quantization=quantization)


_CASES = {
    "operand": (replace(_GOOD, operands=(None, *_GOOD.operands[1:])), "operand 0 is None, expected an Operand"),
    "name": (_operand(0, name=None), "operand 0 is called None, expected a text"),
    "type": (_operand(0, type="int32"), "operand 0 'x' is of type 'int32', expected an OperandType"),
    "data type": (_type(0, dtype="int32"), "operand 0 'x' has the data type 'int32', expected a DataType"),
    "layout": (_type(0, layout="NCHW"), "operand 0 'x' has the layout 'NCHW', expected a Layout"),
    "lifetime": (_operand(0, lifetime=None), "operand 0 'x' has the lifetime None, expected a Lifetime"),
    "size": (_type(0, dimensions=(None,)), r"operand 0 'x' has dimensions \(None,\), expected a tuple of integers"),
    "sizes": (_type(0, dimensions=[3]), r"operand 0 'x' has dimensions \[3\], expected a tuple of integers"),
    "scale": (_quantized("1", 0), "operand 0 'x' has a scale that is not a number: '1', expected numbers"),
    "zero point": (_quantized(1.0, 0.5), "operand 0 'x' has a zero point that is not an integer: 0.5, expected"),
    "list": (_operand(1, value=[1, 2, 3]), "operand 1 'b' holds list, expected a numpy array"),
    "byte order": (_operand(1, value=np.arange(3, dtype=">i4")), "operand 1 'b' has another byte order"),
    "operation": (replace(_GOOD, operations=("ADD",)), "operation 0 is 'ADD', expected an Operation"),
    "operation's type": (_operation(type=None), "operation 0 is of type None, expected an operation's name"),
    "input": (_operation(inputs=(0, None)), "operation 0, ADD: reads operand None, expected an integer"),
    "output": (_operation(outputs=("y",)), "operation 0, ADD: produces operand 'y', expected an integer"),
    "attributes": (_operation(attributes=None), "operation 0, ADD: attributes are None, expected a mapping by name"),
    "model input": (replace(_GOOD, inputs=(0.0,)), "model input 0.0 is not an operand, expected an integer"),
    "model output": (replace(_GOOD, outputs=None), "model outputs are None, expected a tuple of integers"),
}


@pytest.mark.parametrize("case", _CASES)
def test_values_of_the_wrong_kind_are_detected(case: str) -> None:
    model, message = _CASES[case]
    with pytest.raises(InvalidModelError, match=message):
        verify(model)


def test_builder_accepts_any_byte_order() -> None:
    model = _model(np.arange(3, dtype=">i4"))
    verify(model)
    device = FakeNpuDriver().open("")
    context = device.create_context({option.name: option.default for option in device.capability.options})
    blob = context.compile(model).serialize()
    assert blob is not None
    (result,) = context.deserialize(blob).create_execution().compute([np.ones(3, np.int32)])
    assert result.tolist() == [1, 2, 3]


def test_a_good_model_passes() -> None:
    verify(_GOOD)
    verify(Model((Operand("x", OperandType(DataType.INT32, (np.int64(3),)), Lifetime.MODEL_INPUT),), (), (0,), (0,)))
