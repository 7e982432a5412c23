import numpy as np
import pytest
from threadpoolctl import threadpool_info

from nnadapter.drivers.fake_npu.threads import limited
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.operand import DataType, OperandType
from tests.drivers.fake_npu.harness import context, floats


def blas_threads() -> set[int]:
    np.ones((2, 2)) @ np.ones((2, 2))
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_a_limit_holds_inside() -> None:
    before = blas_threads()
    with limited(1):
        assert blas_threads() == {1}
    assert blas_threads() == before


def test_no_limit_changes_nothing() -> None:
    before = blas_threads()
    with limited(0):
        assert blas_threads() == before


def test_the_option_holds_while_a_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("nnadapter.drivers.fake_npu.execution.limited", lambda count: seen.append(count) or limited(0))
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (3, 3)))
    (product,) = builder.add_operation("MAT_MUL", (x, x))
    program = context(threads=1).compile(builder.finish([product]))
    array = floats(3, 3)
    np.testing.assert_allclose(program.create_execution().compute([array])[0], array @ array, rtol=1e-6)
    assert seen == [1]
