from __future__ import annotations

import copy
from dataclasses import fields

import numpy as np
import pytest

from nnadapter.drivers import Capability, ModelForm, Reason, TableDriver, Unsupported, lowers
from nnadapter.errors import CompilationError, DeviceNotFoundError, DriverError
from nnadapter.ir import DataType, Layout, ModelBuilder, NamedOperation, OperandType, Quantization
from tests.drivers.tables.small_table import FLOATS, Small, compute, context, single, verdict


def test_capability_equals_the_table():
    rows = {row.type: row for row in Small().open("").capability.operations}
    assert rows.keys() == {
        "RELU", "NEG", "ADD", "ASSIGN", "WHERE", "GREATER", "SPLIT", "CONCAT", "FULLY_CONNECTED"
    }  # fmt: skip
    assert rows["WHERE"].dtypes == {DataType.BOOL} and rows["RELU"].dtypes == {DataType.FLOAT32}
    assert rows["SPLIT"].ranks == (2, 2)


def test_every_field_of_the_capability_is_a_class_attribute():
    for name in {entry.name for entry in fields(Capability)} - {"form", "operations"}:
        declared = object()
        capability = type("Declaring", (TableDriver,), {name: declared})().open("").capability
        assert getattr(capability, name) is declared and capability.form is ModelForm.IR


@pytest.mark.parametrize(
    ("model", "reason", "detail"),
    [
        (single("SIN", FLOATS), Reason.UNSUPPORTED_OPERATION, "there is no kernel for SIN"),
        (single("RELU", OperandType(DataType.FLOAT16, (2,))), Reason.UNSUPPORTED_DTYPE, "accepted: float32"),
        (single("ADD", FLOATS, FLOATS, fuse_code="tanh"), Reason.UNSUPPORTED_ATTRIBUTE, "accepted: none, relu"),
        (single("GREATER", *[OperandType(DataType.INT64, (2,))] * 2), Reason.UNSUPPORTED_DTYPE, "got int64"),
        (
            single("SPLIT", OperandType(DataType.FLOAT32, (4,)), attributes={"axis": 0, "split": (2, 2)}),
            Reason.UNSUPPORTED_RANK,
            "accepted: rank 2 to 2",
        ),
        (
            single("RELU", OperandType(DataType.FLOAT32, (1, 2, 2, 3), Layout.NHWC)),
            Reason.UNSUPPORTED_DTYPE,
            "NHWC for 'x0', accepted: NCHW",
        ),
        (
            single(
                "SPLIT",
                OperandType(DataType.INT8, (2, 2), quantization=Quantization(scale=(0.5,), zero_point=(0,))),
                attributes={"axis": 0, "split": (1, 1)},
            ),
            Reason.UNSUPPORTED_DTYPE,
            "quantized",
        ),
    ],
)
def test_table_refuses(model, reason, detail):
    result = verdict(model)
    assert result.reason is reason and detail in result.detail


def test_table_accepts():
    assert verdict(single("ADD", FLOATS, FLOATS, fuse_code="relu"))
    assert verdict(single("GREATER", FLOATS, FLOATS))
    condition = OperandType(DataType.BOOL, (2, 3))
    assert verdict(single("WHERE", condition, FLOATS, FLOATS))


@pytest.mark.parametrize(
    ("dtype", "detail"),
    [(DataType.INT8, ""), (DataType.UINT8, "SIGMOID got quantized uint8[2] for 'x', accepted: int8")],
)
def test_quantized_operands_need_a_role_that_allows_floats(dtype, detail):
    @lowers("SIGMOID", types=("float32", "int8"), quantized=True)
    def sigmoid(operation):
        return np.negative

    class Quantized(TableDriver):
        lowerings = (sigmoid,)

    type_ = OperandType(dtype, (2,), quantization=Quantization(scale=(0.5,), zero_point=(0,)))
    builder = ModelBuilder()
    x = builder.add_input("x", type_)
    model = builder.finish(builder.add_operation("SIGMOID", (x,), {}, quantized=[type_.quantized]))
    (result,) = context(Quantized).supported(model)
    assert bool(result) is not bool(detail) and (not detail or result.detail == detail)


def test_lowering_may_refuse_by_context_options():
    model = single("RELU", FLOATS)
    assert verdict(model) and verdict(model, largest=6)
    assert verdict(model, largest=5) == Unsupported(Reason.MEMORY_LIMIT, "'x0' is too large")
    with pytest.raises(CompilationError, match="1 operations cannot be lowered: 'x0' is too large"):
        context(largest=5).compile(model)


@pytest.mark.parametrize(("error", "words"), [(None, "returned NoneType"), ("raise", "failed: ZeroDivisionError")])
def test_failing_lowering_refuses_only_its_operation(error, words):
    class Failing(TableDriver):
        @lowers("NEG")
        def neg(self, operation):
            return error if error is None else 1 // 0

    (result,) = context(Failing).supported(single("NEG", FLOATS))
    assert result.reason is Reason.DRIVER_ERROR and words in result.detail


def test_lowerings_are_inherited_and_imported():
    @lowers("SIN")
    def sine(operation):
        return np.sin

    class Larger(Small):
        lowerings = (sine,)

        def assign(self, operation):  # no longer in the table
            return None

    rows = {row.type for row in Larger().open("").capability.operations}
    assert "SIN" in rows and "NEG" in rows and "ASSIGN" not in rows


@pytest.mark.parametrize(
    ("types", "words"),
    [
        (("CONV2D",), "is for 'CONV2D': unknown operation 'CONV2D'; did you mean 'CONV_2D'"),
        (("NEG", "NEG"), "both lower NEG"),
    ],
)
def test_invalid_tables(types, words):
    class Wrong(TableDriver):
        @lowers(*types)
        def wrong(self, operation):
            return None

    with pytest.raises(DriverError, match=words):
        Wrong().table  # noqa: B018  the access raises


def test_unknown_names_in_a_table():
    with pytest.raises(DriverError, match="the lowering of NEG has an unknown name: 'float' is not a valid"):
        lowers("NEG", types=["float"])
    with pytest.raises(DriverError, match=r'expected names of operations, as in @lowers\("ADD", "SUB"\)'):
        lowers(np.negative)

    class Wrong(TableDriver):
        types = "float"

        @lowers("ADD", fuse_codes=["rellu"])
        def add(self, operation):
            return np.add

    with pytest.raises(DriverError, match="'types' of Wrong is 'float': 'float' is not a valid DataType"):
        Wrong().table  # noqa: B018  the access raises
    Wrong.types = "float64"
    with pytest.raises(DriverError, match="add has the unknown activation 'rellu'; did you mean 'relu'"):
        Wrong().table  # noqa: B018  the access raises


def test_data_types_unknown_to_the_operation_are_refused():
    class Wrong(TableDriver):
        @lowers("NEG", types="bool")
        def neg(self, operation):
            return np.negative

    with pytest.raises(DriverError, match="neg lowers NEG for bool, expected some of bfloat16, float16"):
        Wrong().table  # noqa: B018  the access raises


def test_single_name_counts_as_a_sequence():
    class SingleName(TableDriver):
        types = ("float32", "float64")

        @lowers("ADD", fuse_codes="relu", types="float64")
        def add(self, operation):
            return np.add

        @lowers("NEG")
        def neg(self, operation):
            return np.negative

    assert {row.type: row.dtypes for row in SingleName().open("").capability.operations} == {
        "ADD": {DataType.FLOAT64},
        "NEG": {DataType.FLOAT32, DataType.FLOAT64},
    }


def test_unknown_sub_device_is_an_error():
    with pytest.raises(DeviceNotFoundError, match="has only device 0, got '1'"):
        Small().open("1")


def test_operands_and_attributes_are_accessible_by_name():
    weight = np.ones((2, 3), np.float32)
    model = single("FULLY_CONNECTED", FLOATS, constants=[weight])
    operation = NamedOperation(model, model.operations[0])
    assert operation.input.name == "x0" and operation.weight.value is not None and operation.bias is None
    assert operation.fuse_code == "none" and operation.output.type.dimensions == (2, 2)
    assert operation.inputs[2] is None and len(operation.outputs) == 1
    with pytest.raises(AttributeError, match="FULLY_CONNECTED has no 'filter'; it has input, weight, bias, fuse_code"):
        operation.filter  # noqa: B018  the access raises


def test_named_operation_can_be_copied():
    model = single("NEG", FLOATS)
    assert copy.copy(NamedOperation(model, model.operations[0])).type == "NEG"


def plain(operation):
    return np.negative


@pytest.mark.parametrize("ranks", [4, (3, 1), (1,), (1, 2, 3), ("a", "b")])
def test_invalid_ranks(ranks):
    with pytest.raises(DriverError, match=r"the lowering of NEG has ranks .*, expected two, such as \(2, 4\)"):
        lowers("NEG", ranks=ranks)


@pytest.mark.parametrize("wrong", [staticmethod(plain), classmethod(plain), len])
def test_lowering_must_be_a_function(wrong):
    with pytest.raises(
        DriverError, match=f"the lowering of NEG is of type {type(wrong).__name__}, expected a function"
    ):
        lowers("NEG")(wrong)


def test_wrapped_lowering_is_a_row():
    class Wrapped(TableDriver):
        still = staticmethod(lowers("NEG")(lambda operation: np.negative))

    (result,) = compute(single("NEG", FLOATS), np.ones((2, 3), np.float32), driver=Wrapped)
    assert (result == -1).all()


def test_function_without_lowers_is_an_error():
    class Forgotten(TableDriver):
        lowerings = (plain,)

    with pytest.raises(DriverError, match="Forgotten lists plain in lowerings, which lacks the decorator @lowers"):
        Forgotten().table  # noqa: B018  the access raises
