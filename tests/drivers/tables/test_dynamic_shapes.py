"""Table drivers with dynamic shapes: one program, lowered again at each size."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers import TableDriver, lowers
from nnadapter.errors import DriverError
from nnadapter.ir import DataType, ModelBuilder, OperandType
from nnadapter.ir.symbolic_numbers import SymbolicTrace
from tests.models import HEAD, numbers, parse
from tests.table_driver import LOWERED

MODEL = f"""{HEAD} g (float[n, 4] x) => (float[m, 2] y)
    <float[4] one = {{1.0, 1.0, 1.0, 1.0}}, int64[2] pairs = {{-1, 2}}>
    {{ a = Neg (x)  b = Add (a, one)  y = Reshape (b, pairs) }}"""


def test_sizes_with_the_same_lowering_share_a_program():
    with nna.InferenceSession(parse(MODEL), devices="opentable", options=nna.Options(fallback="forbid")) as session:
        for rows in (2, 3, 7, 3, 8, 1):
            x = numbers(rows, 4, seed=rows)
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], (1 - x).reshape(-1, 2))
        compiled = session.report().plans.compiled
        LOWERED.clear()
        session.run(None, {"x": numbers(9, 4)})
        assert LOWERED == [("NEG", 9)] and session.report().plans.compiled == compiled
        x = numbers(20, 4)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], (1 - x).reshape(-1, 2))
        assert session.report().plans.compiled == compiled + 1


def test_dynamic_program_must_be_specialized_before_a_run():
    class Negating(TableDriver):
        @lowers("NEG")
        def neg(self, operation):
            return np.negative

    trace = SymbolicTrace()
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (trace.variable(3), 4)))
    program = Negating().open("").create_context({}).compile(builder.finish(builder.add_operation("NEG", (x,))))
    execution = program.create_execution()
    with pytest.raises(DriverError, match="call `specialize` first"):
        execution.compute([np.ones((3, 4), np.float32)])
    (result,) = execution.specialize([5]).compute([np.ones((5, 4), np.float32)])
    assert result.shape == (5, 4) and result[0, 0] == -1
