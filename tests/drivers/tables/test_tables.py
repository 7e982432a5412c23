"""Drivers as tables: what is derived from the functions, and what is refused for them."""

from __future__ import annotations

import copy
import threading
import weakref

import numpy as np
import pytest

from nnadapter.drivers import Control, Option, Reason, TableDriver, Threading, Unsupported, lowers
from nnadapter.errors import CancelledError, CompilationError, DeviceNotFoundError, DriverError, ExecutionError
from nnadapter.ir import DataType, Layout, ModelBuilder, NamedOperation, OperandType, Quantization

FLOATS = OperandType(DataType.FLOAT32, (2, 3))


class Small(TableDriver):
    options = (Option(name="largest", default=100, help="Elements of a tensor."),)

    @lowers("RELU", "NEG")
    def elementwise(self, operation):
        if operation.input.type.size > self.option_values["largest"]:
            return Unsupported(Reason.MEMORY_LIMIT, f"{operation.input.name!r} is too large")
        return {"RELU": lambda x: np.maximum(x, 0), "NEG": np.negative}[operation.type]

    @lowers("ADD", fuse_codes=("none", "relu"))
    def add(self, operation):
        return np.add if operation.fuse_code == "none" else lambda x, y: np.maximum(x + y, 0)

    @lowers("ASSIGN")
    def assign(self, operation):
        return lambda x: x

    @lowers("WHERE", types=["float32", "int64"])
    def where(self, operation):
        return np.where

    @lowers("GREATER", results=["bool"])
    def greater(self, operation):
        return np.greater

    @lowers("SPLIT", "CONCAT", ranks=(2, 2))
    def parts(self, operation):
        if operation.type == "SPLIT":
            ends = np.cumsum(operation.split)[:-1]
            return lambda x: np.split(x, ends, operation.axis)
        return lambda *parts: np.concatenate(parts, operation.axis)

    @lowers("FULLY_CONNECTED")
    def fully_connected(self, operation):
        weight = operation.weight.value
        return lambda x, _, bias: x @ weight.T + (0 if bias is None else bias)


def context(driver=Small, **options):
    device = driver().open("")
    values = {option.name: option.default for option in device.capability.options}
    return device.create_context({**values, **options})


def single(type_, *types, attributes=None, constants=(), fuse_code=None):
    """A model of one operation on operands of these types."""
    builder = ModelBuilder()
    made = [builder.add_input(f"x{number}", each) for number, each in enumerate(types)]
    made += [builder.add_constant(f"c{number}", each) for number, each in enumerate(constants)]
    more = {} if fuse_code is None else {"fuse_code": fuse_code}
    return builder.finish(builder.add_operation(type_, made, {**(attributes or {}), **more}))


def verdict(model, **options):
    (found,) = context(**options).supported(model)
    return found


def compute(model, *inputs, driver=Small):
    execution = context(driver).compile(model).create_execution()
    return execution.compute(inputs)


def test_the_capability_is_the_table():
    rows = {row.type: row for row in Small().open("").capability.operations}
    assert rows.keys() == {
        "RELU", "NEG", "ADD", "ASSIGN", "WHERE", "GREATER", "SPLIT", "CONCAT", "FULLY_CONNECTED"
    }  # fmt: skip
    assert rows["WHERE"].dtypes == {DataType.BOOL} and rows["RELU"].dtypes == {DataType.FLOAT32}
    assert rows["SPLIT"].ranks == (2, 2)


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
def test_what_the_table_refuses(model, reason, detail):
    found = verdict(model)
    assert found.reason is reason and detail in found.detail


def test_what_the_table_takes():
    assert verdict(single("ADD", FLOATS, FLOATS, fuse_code="relu"))
    assert verdict(single("GREATER", FLOATS, FLOATS))
    condition = OperandType(DataType.BOOL, (2, 3))
    assert verdict(single("WHERE", condition, FLOATS, FLOATS))


def test_a_lowering_refuses_by_options_of_its_context():
    model = single("RELU", FLOATS)
    assert verdict(model) and verdict(model, largest=6)
    assert verdict(model, largest=5) == Unsupported(Reason.MEMORY_LIMIT, "'x0' is too large")
    with pytest.raises(CompilationError, match="1 operations are not lowered: 'x0' is too large"):
        context(largest=5).compile(model)


def test_absent_inputs_are_none_and_constants_are_known():
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = np.ones((4, 3), np.float32)
    model = single("FULLY_CONNECTED", OperandType(DataType.FLOAT32, (4, 3)), constants=[weight])
    np.testing.assert_array_equal(compute(model, x)[0], x @ weight.T)


def test_several_outputs():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    left, right = compute(single("SPLIT", FLOATS, attributes={"axis": 1, "split": (1, 2)}), x)
    np.testing.assert_array_equal(np.concatenate((left, right), 1), x)
    assert left.flags.c_contiguous and not np.may_share_memory(left, x)
    (only,) = compute(single("SPLIT", FLOATS, attributes={"axis": 1, "split": (3,)}), x)
    np.testing.assert_array_equal(only, x)


def test_results_share_memory_with_nothing():
    builder = ModelBuilder()
    x, constant = builder.add_input("x", FLOATS), builder.add_constant("c", np.ones((2, 3), np.float32))
    (same,) = builder.add_operation("ASSIGN", (x,))
    (kept,) = builder.add_operation("ASSIGN", (constant,))
    (made,) = builder.add_operation("NEG", (x,))
    (again,) = builder.add_operation("ASSIGN", (made,))
    model = builder.finish([same, kept, made, again, made])
    given = np.full((2, 3), 2, np.float32)
    execution = context().compile(model).create_execution()
    results = execution.compute([given])
    arrays = [given, *results, next(each.value for each in model.operands if each.value is not None)]
    shared = [
        (first, second)
        for first in range(len(arrays))
        for second in range(first)
        if np.may_share_memory(arrays[first], arrays[second])
    ]
    assert shared == []
    for result in results:
        result[:] = 7
    assert [result[0, 0] for result in execution.compute([given])] == [2, 1, -2, -2, -2]


def test_values_are_dropped_after_their_last_use():
    made = []

    class Watching(TableDriver):
        @lowers("NEG", "ADD")
        def watched(self, operation):
            def compute(*arrays):
                alive.append(sum(reference() is not None for reference in made))
                result = np.negative(arrays[0])
                made.append(weakref.ref(result))
                return result

            return compute

    alive = []
    builder = ModelBuilder()
    value = x = builder.add_input("x", FLOATS)
    for _ in range(4):
        (value,) = builder.add_operation("NEG", (value,))
    (value,) = builder.add_operation("ADD", (value, x))
    compute(builder.finish([value]), np.ones((2, 3), np.float32), driver=Watching)
    assert alive == [0, 1, 1, 1, 1]


def test_a_closure_that_fails_is_named():
    class Failing(TableDriver):
        @lowers("NEG")
        def neg(self, operation):
            return lambda x: 1 // 0

    with pytest.raises(ExecutionError, match=r"NEG of nodes \[.*\] failed: ZeroDivisionError"):
        compute(single("NEG", FLOATS), np.ones((2, 3), np.float32), driver=Failing)


@pytest.mark.parametrize(("given", "words"), [(None, "gave NoneType"), ("raise", "failed: ZeroDivisionError")])
def test_a_lowering_that_fails_refuses_its_operation_alone(given, words):
    class Failing(TableDriver):
        @lowers("NEG")
        def neg(self, operation):
            return given if given is None else 1 // 0

    (found,) = context(Failing).supported(single("NEG", FLOATS))
    assert found.reason is Reason.DRIVER_ERROR and words in found.detail


def test_a_run_stops_between_operations():
    execution = context().compile(single("NEG", FLOATS)).create_execution()
    x = [np.ones((2, 3), np.float32)]
    assert execution.compute_within(x, Control(cancelled=lambda: False))[0][0, 0] == -1
    with pytest.raises(CancelledError, match="before operation 0 of 1"):
        execution.compute_within(x, Control(cancelled=lambda: True))


def test_one_execution_serves_many_threads():
    execution, wrong = context().compile(single("ADD", FLOATS, FLOATS)).create_execution(), []

    def check(number):
        x = np.full((2, 3), number, np.float32)
        wrong.extend(1 for _ in range(200) if execution.compute([x, x])[0][0, 0] != 2 * number)

    threads = [threading.Thread(target=check, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_functions_of_other_files_and_of_base_classes_count():
    @lowers("SIN")
    def sine(operation):
        return np.sin

    class Larger(Small):
        lowerings = (sine,)

        def assign(self, operation):  # not in the table any more
            return None

    rows = {row.type for row in Larger().open("").capability.operations}
    assert "SIN" in rows and "NEG" in rows and "ASSIGN" not in rows


@pytest.mark.parametrize(
    ("types", "words"),
    [
        (("CONV2D",), "lowers 'CONV2D': unknown operation 'CONV2D'; did you mean 'CONV_2D'"),
        (("NEG", "NEG"), "both lower NEG"),
    ],
)
def test_a_table_that_is_wrong(types, words):
    class Wrong(TableDriver):
        @lowers(*types)
        def wrong(self, operation):
            return None

    with pytest.raises(DriverError, match=words):
        Wrong().table  # noqa: B018  the point is the look-up


def test_names_that_are_none():
    with pytest.raises(DriverError, match="the lowering of NEG names what is not known: 'float' is not a valid"):
        lowers("NEG", types=["float"])
    with pytest.raises(DriverError, match=r'expected names of operations, as in @lowers\("ADD", "SUB"\)'):
        lowers(np.negative)

    class Wrong(TableDriver):
        types = "float"

        @lowers("ADD", fuse_codes=["rellu"])
        def add(self, operation):
            return np.add

    with pytest.raises(DriverError, match="Wrong has types 'float': 'float' is not a valid DataType"):
        Wrong().table  # noqa: B018  the point is the look-up
    Wrong.types = "float64"
    with pytest.raises(DriverError, match="add names the activation 'rellu'; did you mean 'relu'"):
        Wrong().table  # noqa: B018  the point is the look-up


def test_data_types_that_an_operation_has_not():
    class Wrong(TableDriver):
        @lowers("NEG", types="bool")
        def neg(self, operation):
            return np.negative

    with pytest.raises(DriverError, match="neg lowers NEG for bool, expected some of bfloat16, float16"):
        Wrong().table  # noqa: B018  the point is the look-up


def test_one_name_is_taken_for_several():
    class One(TableDriver):
        types = ("float32", "float64")

        @lowers("ADD", fuse_codes="relu", types="float64")
        def add(self, operation):
            return np.add

        @lowers("NEG")
        def neg(self, operation):
            return np.negative

    assert {row.type: row.dtypes for row in One().open("").capability.operations} == {
        "ADD": {DataType.FLOAT64},
        "NEG": {DataType.FLOAT32, DataType.FLOAT64},
    }


def test_executions_share_no_closures():
    class Counting(TableDriver):
        threading = Threading.EXCLUSIVE

        @lowers("NEG")
        def neg(self, operation):
            calls = []

            def compute(x):
                calls.append(x)
                return np.full_like(x, len(calls))

            return compute

    program, x = context(Counting).compile(single("NEG", FLOATS)), [np.ones((2, 3), np.float32)]
    first, second = program.create_execution(), program.create_execution()
    assert [each.compute(x)[0][0, 0] for each in (first, first, second)] == [1, 2, 1]


def test_there_is_one_device():
    with pytest.raises(DeviceNotFoundError, match="has one device, 0, got '1'"):
        Small().open("1")


def test_names_of_an_operation():
    weight = np.ones((2, 3), np.float32)
    model = single("FULLY_CONNECTED", FLOATS, constants=[weight])
    operation = NamedOperation(model, model.operations[0])
    assert operation.input.name == "x0" and operation.weight.value is not None and operation.bias is None
    assert operation.fuse_code == "none" and operation.output.type.dimensions == (2, 2)
    assert operation.inputs[2] is None and len(operation.outputs) == 1
    with pytest.raises(AttributeError, match="FULLY_CONNECTED has no 'filter'; it has input, weight, bias, fuse_code"):
        operation.filter  # noqa: B018  the point is the look-up


@pytest.mark.parametrize("place", ["lent", "copied"])
def test_a_result_that_looks_at_a_constant_is_copied(place):
    class Looking(TableDriver):
        def to_device(self, array):
            return array if place == "lent" else array.copy()

        @lowers("GATHER")
        def gather(self, operation):
            return lambda table, index: table[int(index) :][0]  # a view, which depends on an input

    builder = ModelBuilder()
    table = builder.add_constant("table", np.arange(6, dtype=np.float32).reshape(2, 3))
    index = builder.add_input("index", OperandType(DataType.INT64, ()))
    model = builder.finish(builder.add_operation("GATHER", (table, index), {"axis": 0}))
    execution = context(Looking).compile(model).create_execution()
    for _ in range(2):
        (result,) = execution.compute([np.array(1)])
        assert result.tolist() == [3, 4, 5]
        result[:] = 7


def test_results_may_be_written_to():
    class Spreading(TableDriver):
        @lowers("NEG")
        def neg(self, operation):
            return lambda x: np.broadcast_to(-x, x.shape)  # numpy makes it read-only

    (result,) = compute(single("NEG", FLOATS), np.ones((2, 3), np.float32), driver=Spreading)
    result[:] = 7


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda x: x, "gave ndarray, expected a list or tuple of 2 values"),  # not its rows
        (lambda x: [x], "gave 1 values, expected 2"),
        (lambda x: None, "gave NoneType, expected a list or tuple of 2 values"),
    ],
)
def test_several_outputs_are_a_sequence(given, words):
    class Wrong(TableDriver):
        @lowers("SPLIT")
        def split(self, operation):
            return given

    model = single("SPLIT", FLOATS, attributes={"axis": 0, "split": (1, 1)})
    with pytest.raises(ExecutionError, match=words):
        compute(model, np.ones((2, 3), np.float32), driver=Wrong)


def test_a_function_that_gives_nothing_is_blamed_itself():
    class Forgetful(TableDriver):
        @lowers("NEG", "RELU")
        def lowered(self, operation):
            return np.negative if operation.type == "RELU" else lambda x: None

    builder = ModelBuilder()
    (made,) = builder.add_operation("NEG", (builder.add_input("x", FLOATS),))
    model = builder.finish(builder.add_operation("RELU", (made,)))
    with pytest.raises(ExecutionError, match=r"NEG of nodes \[\] failed: TypeError: its function gave None"):
        compute(model, np.ones((2, 3), np.float32), driver=Forgetful)


def test_an_operation_may_be_copied():
    model = single("NEG", FLOATS)
    assert copy.copy(NamedOperation(model, model.operations[0])).type == "NEG"


def plain(operation):
    return np.negative


@pytest.mark.parametrize("ranks", [4, (3, 1), (1,), (1, 2, 3), ("a", "b")])
def test_ranks_that_are_none(ranks):
    with pytest.raises(DriverError, match=r"the lowering of NEG has ranks .*, expected two, such as \(2, 4\)"):
        lowers("NEG", ranks=ranks)


@pytest.mark.parametrize("wrong", [staticmethod(plain), classmethod(plain), len])
def test_only_a_function_is_a_row(wrong):
    with pytest.raises(
        DriverError, match=f"the lowering of NEG is of type {type(wrong).__name__}, expected a function"
    ):
        lowers("NEG")(wrong)


def test_what_wraps_a_row_is_one():
    class Wrapped(TableDriver):
        still = staticmethod(lowers("NEG")(lambda operation: np.negative))

    (result,) = compute(single("NEG", FLOATS), np.ones((2, 3), np.float32), driver=Wrapped)
    assert (result == -1).all()


def test_a_function_without_a_row_is_not_passed_over():
    class Forgotten(TableDriver):
        lowerings = (plain,)

    with pytest.raises(DriverError, match="Forgotten lists plain in lowerings, which lacks @lowers"):
        Forgotten().table  # noqa: B018  the point is the look-up


def test_a_program_says_what_its_constants_hold():
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType("float32", (2, 3)))
    weight = builder.add_constant("w", np.ones((2, 3), np.float32))

    class Adds(TableDriver):
        @lowers("ADD")
        def add(self, operation):
            return lambda a, b: a + b

    program = Adds().open("").create_context({}).compile(builder.finish(builder.add_operation("ADD", [x, weight])))
    assert (program.memory_bytes, program.execution_bytes) == (24, 0)
