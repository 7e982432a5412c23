from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

from nnadapter.drivers import Control, TableDriver, Threading, lowers
from nnadapter.errors import CancelledError, ExecutionError
from nnadapter.ir import DataType, ModelBuilder, OperandType
from tests.drivers.tables.small_table import FLOATS, compute, context, single


def test_absent_inputs_are_none_and_constants_have_values():
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


def test_results_share_no_memory():
    builder = ModelBuilder()
    x, constant = builder.add_input("x", FLOATS), builder.add_constant("c", np.ones((2, 3), np.float32))
    (same,) = builder.add_operation("ASSIGN", (x,))
    (assigned,) = builder.add_operation("ASSIGN", (constant,))
    (negated,) = builder.add_operation("NEG", (x,))
    (reassigned,) = builder.add_operation("ASSIGN", (negated,))
    model = builder.finish([same, assigned, negated, reassigned, negated])
    array = np.full((2, 3), 2, np.float32)
    execution = context().compile(model).create_execution()
    results = execution.compute([array])
    arrays = [array, *results, next(operand.value for operand in model.operands if operand.value is not None)]
    shared = [
        (first, second)
        for first in range(len(arrays))
        for second in range(first)
        if np.may_share_memory(arrays[first], arrays[second])
    ]
    assert shared == []
    for result in results:
        result[:] = 7
    assert [result[0, 0] for result in execution.compute([array])] == [2, 1, -2, -2, -2]


def test_values_are_dropped_after_their_last_use():
    references = []

    class Watching(TableDriver):
        @lowers("NEG", "ADD")
        def watched(self, operation):
            def compute(*arrays):
                alive.append(sum(reference() is not None for reference in references))
                result = np.negative(arrays[0])
                references.append(weakref.ref(result))
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


def test_error_names_the_failing_closure():
    class Failing(TableDriver):
        @lowers("NEG")
        def neg(self, operation):
            return lambda x: 1 // 0

    with pytest.raises(ExecutionError, match=r"NEG of nodes \[.*\] failed: ZeroDivisionError"):
        compute(single("NEG", FLOATS), np.ones((2, 3), np.float32), driver=Failing)


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
    assert [execution.compute(x)[0][0, 0] for execution in (first, first, second)] == [1, 2, 1]


@pytest.mark.parametrize("place", ["lent", "copied"])
def test_view_of_a_constant_is_copied(place):
    class Looking(TableDriver):
        def to_device(self, array):
            return array if place == "lent" else array.copy()

        @lowers("GATHER")
        def gather(self, operation):
            return lambda table, index: table[int(index) :][0]  # a view that depends on an input

    builder = ModelBuilder()
    table = builder.add_constant("table", np.arange(6, dtype=np.float32).reshape(2, 3))
    index = builder.add_input("index", OperandType(DataType.INT64, ()))
    model = builder.finish(builder.add_operation("GATHER", (table, index), {"axis": 0}))
    execution = context(Looking).compile(model).create_execution()
    for _ in range(2):
        (result,) = execution.compute([np.array(1)])
        assert result.tolist() == [3, 4, 5]
        result[:] = 7


def test_results_are_writable():
    class Spreading(TableDriver):
        @lowers("NEG")
        def neg(self, operation):
            return lambda x: np.broadcast_to(-x, x.shape)  # numpy returns a read-only view

    (result,) = compute(single("NEG", FLOATS), np.ones((2, 3), np.float32), driver=Spreading)
    result[:] = 7


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x, "returned ndarray, expected a list or tuple of 2 values"),  # not the rows of x
        (lambda x: [x], "returned 1 values, expected 2"),
        (lambda x: None, "returned NoneType, expected a list or tuple of 2 values"),
    ],
)
def test_several_outputs_are_a_sequence(function, words):
    class Wrong(TableDriver):
        @lowers("SPLIT")
        def split(self, operation):
            return function

    model = single("SPLIT", FLOATS, attributes={"axis": 0, "split": (1, 1)})
    with pytest.raises(ExecutionError, match=words):
        compute(model, np.ones((2, 3), np.float32), driver=Wrong)


def test_error_blames_a_function_without_result():
    class Forgetful(TableDriver):
        @lowers("NEG", "RELU")
        def lowered(self, operation):
            return np.negative if operation.type == "RELU" else lambda x: None

    builder = ModelBuilder()
    (negated,) = builder.add_operation("NEG", (builder.add_input("x", FLOATS),))
    model = builder.finish(builder.add_operation("RELU", (negated,)))
    with pytest.raises(
        ExecutionError, match=r"NEG of nodes \[\] failed: TypeError: the lowered function returned None"
    ):
        compute(model, np.ones((2, 3), np.float32), driver=Forgetful)


def test_program_counts_memory_of_its_constants():
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType("float32", (2, 3)))
    weight = builder.add_constant("w", np.ones((2, 3), np.float32))

    class Adds(TableDriver):
        @lowers("ADD")
        def add(self, operation):
            return lambda a, b: a + b

    program = Adds().open("").create_context({}).compile(builder.finish(builder.add_operation("ADD", [x, weight])))
    assert (program.memory_bytes, program.execution_bytes) == (24, 0)
