"""Errors for invalid models blame the model, not the driver."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nnadapter.drivers import Context
from nnadapter.drivers.fake_npu.compiling import blame_invalid_models
from nnadapter.drivers.null import NullContext
from nnadapter.errors import DriverError, InvalidModelError
from nnadapter.ir import DataType, Model, ModelBuilder, OperandType
from tests.drivers.fake_npu.harness import context


def _model() -> Model:
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (3,)))
    return builder.finish(builder.add_operation("RELU", (x,)))


def _beyond() -> Model:
    model = _model()
    return replace(model, operations=(replace(model.operations[0], inputs=(7,)),))


@pytest.mark.parametrize("opened", [context(), NullContext()], ids=["fake_npu", "null"])
def test_compile_blames_the_model(opened: Context) -> None:
    with pytest.raises(InvalidModelError, match="RELU: reads operand 7"):
        opened.compile(_beyond())


def test_verdicts_and_admission_blame_the_model() -> None:
    for ask in (context().supported, context().admit):
        with pytest.raises(InvalidModelError, match="RELU: reads operand 7"):
            ask(_beyond())


def test_a_model_that_contradicts_itself_gets_no_verdict() -> None:
    model = _model()
    wrong = replace(model.operands[1], type=OperandType(DataType.FLOAT32, (4,)))
    with pytest.raises(InvalidModelError, match=r"expected float32\[3\]"):
        context().supported(replace(model, operands=(model.operands[0], wrong)))


def test_a_cycle_is_found_before_passes_walk_it() -> None:
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (3,)))
    (sigmoid,) = builder.add_operation("SIGMOID", (x,))
    (product,) = builder.add_operation("MUL", (x, sigmoid))
    model = builder.finish([product])
    wrong = replace(model.operations[1], inputs=(product, sigmoid))
    with pytest.raises(InvalidModelError, match=f"MUL: reads operand {product}"):
        context().compile(replace(model, operations=(model.operations[0], wrong)))


@pytest.mark.parametrize("error", [ValueError("a fault of the driver"), DriverError("known")])
def test_a_valid_model_is_not_blamed(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, blame_invalid_models(_model()):
        raise error
    assert caught.value is error
