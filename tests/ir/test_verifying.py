from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from nnadapter.errors import InvalidModelError
from nnadapter.ir import (
    ABSENT,
    DataType,
    Layout,
    Lifetime,
    Model,
    ModelBuilder,
    Operand,
    OperandType,
    Quantization,
    submodel,
    verify,
)

_VECTOR = OperandType(DataType.FLOAT32, (3,))


def _model() -> Model:
    """Return y = relu(x + b); operands x, b, sum, y."""
    builder = ModelBuilder()
    x = builder.add_input("x", _VECTOR)
    b = builder.add_constant("b", np.ones(3, np.float32))
    (total,) = builder.add_operation("ADD", (x, b), outputs=["sum"], origins=["add"])
    (y,) = builder.add_operation("RELU", (total,), outputs=["y"], origins=["relu"])
    return builder.finish([y])


def _with_operand(index: int, **changes: object) -> Model:
    model = _model()
    operands = list(model.operands)
    operands[index] = replace(operands[index], **changes)
    return replace(model, operands=tuple(operands))


def _with_operation(index: int, **changes: object) -> Model:
    model = _model()
    operations = list(model.operations)
    operations[index] = replace(operations[index], **changes)
    return replace(model, operations=tuple(operations))


def test_built_and_extracted_models_are_valid():
    model = _model()
    verify(model)
    verify(submodel(model, [1], [2], [3]))


def test_inputs_and_constants_may_be_outputs():
    builder = ModelBuilder()
    x = builder.add_input("x", _VECTOR)
    verify(builder.finish([x, x, builder.add_constant("b", np.ones(3, np.float32))]))


_ADD = _model().operations[0]
_CASES = {
    "two names": (_with_operand(3, name="x"), "operands 0 and 3 are both called 'x'"),
    "negative size": (_with_operand(0, type=OperandType(DataType.FLOAT32, (-1,))), "no dimension below 0"),
    "layout": (_with_operand(0, type=OperandType(DataType.FLOAT32, (3,), Layout.NHWC)), "expected rank 4 for layout"),
    "no contents": (_with_operand(1, value=None), "'b' is constant and has no contents"),
    "contents": (_with_operand(2, value=np.ones(3, np.float32)), "'sum' is temporary and has contents"),
    "wrong contents": (_with_operand(1, value=np.ones(4, np.float32)), r"'b' holds float32\[4\], expected its type"),
    "wrong dtype": (_with_operand(1, value=np.ones(3)), r"'b' holds float64\[3\]"),
    "input list": (
        replace(_model(), inputs=()),
        "'x' has the lifetime model_input, expected it in the list",
    ),
    "input twice": (replace(_model(), inputs=(0, 0)), r"model inputs are \[0, 0\], expected no duplicates"),
    "input lifetime": (
        replace(_model(), inputs=(0, 2)),
        "'sum' is in the list of model_inputs and has",
    ),
    "output lifetime": (
        replace(_model(), outputs=(2, 3)),
        "operand 2 'sum' is in the list of model_outputs and has the lifetime temporary",
    ),
    "output list": (
        replace(_model(), outputs=()),
        "'y' has the lifetime model_output, expected it in",
    ),
    "output range": (replace(_model(), outputs=(9,)), "model output 9 is no operand, expected 0 to 3"),
    "type": (_with_operation(0, type="ADDD"), r"operation 0, from nodes \['add'\]: unknown operation 'ADDD'"),
    "order": (replace(_model(), operations=_model().operations[::-1]), "operation 0.*RELU: reads operand 2"),
    "input index": (_with_operation(0, inputs=(0, 9)), "ADD: reads operand 9"),
    "absent": (_with_operation(0, inputs=(0, ABSENT)), "ADD: input 'y' is absent"),
    "negative index": (_with_operation(0, inputs=(0, -2)), "ADD: reads operand -2"),
    "attributes": (
        _with_operation(0, attributes={}),
        r"ADD: attributes \['fuse_code', 'fuse_parameters'\] are missing",
    ),
    "made twice": (
        _with_operation(1, outputs=(2,)),
        "RELU: produces operand 2 'sum', expected an operand",
    ),
    "made never": (
        replace(_model(), operations=(_ADD,)),
        "no operation produces operand 3 'y', whose lifetime is model_output",
    ),
    "makes input": (_with_operation(1, outputs=(0,)), "RELU: produces operand 0 'x'"),
    "output index": (_with_operation(1, outputs=(4,)), "RELU: produces operand 4, expected 0 to 3"),
    "output count": (_with_operation(1, outputs=()), "RELU: 0 outputs, expected 1"),
    "result type": (
        _with_operand(3, type=OperandType(DataType.FLOAT32, (4,))),
        r"operation 1, from nodes \['relu'\]: RELU: output 'y' is float32\[4\], expected float32\[3\]",
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_contradictions_are_detected(case: str):
    model, message = _CASES[case]
    with pytest.raises(InvalidModelError, match=message):
        verify(model)


def test_duplicate_outputs_of_an_operation_are_refused():
    builder = ModelBuilder()
    parts = builder.add_operation("SPLIT", (builder.add_input("x", _VECTOR),), {"axis": 0, "split": (1, 2)})
    model = builder.finish(parts)
    doubled = replace(model.operations[0], outputs=(parts[0], parts[0]))
    with pytest.raises(InvalidModelError, match=r"SPLIT: outputs are .* expected no duplicates"):
        verify(replace(model, operations=(doubled,)))


def _quantized(dtype: DataType, dimensions: tuple[int, ...], **quantization: object) -> Model:
    type_ = OperandType(dtype, dimensions, quantization=Quantization(**quantization))
    return Model((Operand("x", type_, Lifetime.MODEL_INPUT),), (), (0,), (0,))


@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [
        (DataType.UINT8, {"scale": (0.1,), "zero_point": (128,)}),
        (DataType.INT4, {"scale": (0.1, 0.2, 0.3), "zero_point": (-8, 0, 7), "axis": 1}),
    ],
)
def test_valid_quantization_is_accepted(dtype, quantization):
    verify(_quantized(dtype, (2, 3), **quantization))


@pytest.mark.parametrize(
    ("dtype", "quantization", "message"),
    [
        (DataType.FLOAT32, {"scale": (0.1,), "zero_point": (0,)}, "expected an integer data type"),
        (DataType.INT8, {"scale": (0.1,), "zero_point": (0,), "axis": 2}, "along axis 2, expected one of 0 to 1"),
        (DataType.INT8, {"scale": (0.1,), "zero_point": (0,), "axis": 1}, "1 scales and 1 zero points, expected 3"),
        (DataType.INT8, {"scale": (0.1,), "zero_point": ()}, "1 scales and 0 zero points, expected 1 of each"),
        (DataType.INT8, {"scale": (0.0,), "zero_point": (0,)}, "not positive and finite"),
        (DataType.INT8, {"scale": (float("nan"),), "zero_point": (0,)}, "not positive and finite"),
        (DataType.INT8, {"scale": (0.1,), "zero_point": (128,)}, "expected -128 to 127"),
        (DataType.UINT4, {"scale": (0.1,), "zero_point": (-1,)}, "expected 0 to 15"),
    ],
)
def test_invalid_quantization_is_detected(dtype, quantization, message):
    with pytest.raises(InvalidModelError, match=message):
        verify(_quantized(dtype, (2, 3), **quantization))


def test_quantization_does_not_have_to_follow_from_the_operation():
    model = _model()
    quantized = OperandType(DataType.INT8, (3,), quantization=Quantization(scale=(0.5,), zero_point=(0,)))
    plain = OperandType(DataType.INT8, (3,))
    types = [plain, plain, plain, quantized]
    operands = [replace(each, type=type_) for each, type_ in zip(model.operands, types, strict=True)]
    operands[1] = replace(operands[1], value=np.ones(3, np.int8))
    verify(replace(model, operands=tuple(operands)))


def test_int4_constants_are_valid():
    builder = ModelBuilder()
    verify(builder.finish([builder.add_constant("w", np.ones(3, ml_dtypes.int4))]))
