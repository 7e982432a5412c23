import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from nnadapter.ir import DataType, Model, ModelBuilder, OperandType
from tests.drivers.fake_npu.harness import context


def squares(size: int) -> Model:
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (size,)))
    (square,) = builder.add_operation("MUL", (x, x))
    (more,) = builder.add_operation("ADD", (square, x))
    (result,) = builder.add_operation("MUL", (more, square))
    return builder.finish([result])


def test_programs_of_one_context_share_their_working_memory() -> None:
    opened = context()
    executions = [opened.compile(squares(size)).create_execution() for size in (50_000, 100, 80_000, 7)]
    for _ in range(2):
        for execution, size in zip(executions, (50_000, 100, 80_000, 7), strict=True):
            x = np.linspace(0, 1, size, dtype=np.float32)
            np.testing.assert_allclose(execution.compute([x])[0], (x * x + x) * x * x, rtol=1e-6)
    with opened.arenas.acquire(0) as arena:
        assert len(arena.bound) == 4
        del executions, execution
        gc.collect()
        assert len(arena.bound) == 0, "what was bound goes with the execution"


def test_threads_use_separate_arenas() -> None:
    opened = context()
    programs = {size: opened.compile(squares(size)) for size in (1000, 20_000, 30_000)}
    executions = [(size, programs[size].create_execution()) for size in (1000, 20_000, 30_000, 20_000)]

    def check(case: int) -> None:
        size, execution = executions[case]
        for seed in range(30):
            x = np.random.default_rng(seed).random(size, np.float32)
            np.testing.assert_allclose(execution.compute([x])[0], (x * x + x) * x * x, rtol=1e-6)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, range(4)))
