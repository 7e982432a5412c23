from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers.arenas import Arenas
from nnadapter.drivers.fake_npu import DeviceMemory, FakeNpuOpenProgram, NpuGraph, Resources, SymbolicGraph, lower
from nnadapter.ir import DataType, ModelBuilder, OperandType
from nnadapter.ir.operand import freeze
from nnadapter.ir.symbolic_numbers import SymbolicTrace
from tests.models import HEAD, numbers, parse, run_whole

COLUMNS = 6


def layers(scales: list[float]) -> tuple[NpuGraph, SymbolicTrace]:
    """Build a graph with a sum and a softmax per scale, over a symbolic number of rows."""
    trace, builder = SymbolicTrace(), ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (trace.variable(8), COLUMNS)))
    (value,) = builder.add_operation("TANH", (x,))
    for index, scale in enumerate(scales):
        constant = builder.add_constant(f"scale_{index}", freeze(np.full((1, 1), scale, np.float32)))
        (moved,) = builder.add_operation("ADD", (value, constant))
        (value,) = builder.add_operation("SOFTMAX", (moved,), {"axis": 1})
    (last,) = builder.add_operation("CONCAT", (value, x), {"axis": 1})
    return lower(builder.finish([last])).graph, trace


def expected(x: np.ndarray, scales: list[float]) -> np.ndarray:
    value = np.tanh(x)
    for scale in scales:
        powers = np.exp(value + np.float32(scale))
        value = powers / powers.sum(1, keepdims=True)
    return np.concatenate([value, x], 1)


@pytest.mark.parametrize("scales", [[2.0, 2.0, 2.0, 2.0], [2.0, 3.0, 2.0, -1.0]])
def test_results_at_changing_sizes(scales: list[float]) -> None:
    graph, trace = layers(scales)
    program = FakeNpuOpenProgram(graph, 1 << 20, Resources(Arenas(), DeviceMemory(0)), {})
    execution = program.create_execution()
    for rows in (8, 2, 5, 10, 40, 8):
        x = np.random.default_rng(rows).random((rows, COLUMNS), np.float32)
        sizes = trace.replay([rows])
        assert sizes is not None
        for _ in range(2):
            (out,) = execution.specialize(sizes).compute([x])
            np.testing.assert_allclose(out, expected(x, scales), rtol=1e-5)


def test_smaller_sizes_reuse_the_memory_plan() -> None:
    graph, trace = layers([2.0, 3.0])
    symbolic = SymbolicGraph(graph)
    program = FakeNpuOpenProgram(graph, 1 << 20, Resources(Arenas(), DeviceMemory(0)), {})
    plans = [program._binding(trace.replay([rows])).memory for rows in (8, 5, 10, 40)]  # type: ignore[arg-type]
    assert plans[0] is plans[1] is plans[2] is not plans[3]
    kernels = [graph.instructions[position].kernel for position in symbolic.instructions]
    assert kernels == [instruction.kernel for instruction in graph.instructions], "all depend on the rows"


def test_static_instructions_stay_bound() -> None:
    trace, builder = SymbolicTrace(), ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (trace.variable(8), COLUMNS)))
    y = builder.add_input("y", OperandType(DataType.FLOAT32, (COLUMNS, COLUMNS)))
    (static,) = builder.add_operation("TANH", builder.add_operation("EXP", (y,)))
    (product,) = builder.add_operation("MAT_MUL", (x, static))
    graph = lower(builder.finish([product])).graph
    assert [graph.instructions[position].kernel for position in SymbolicGraph(graph).instructions] == ["matmul"]


def test_images_of_many_sizes() -> None:
    model = parse(f"""{HEAD} g (float[1, 1, h, w] x) => (float[1, 1, h, w] y) <float[1, 1, 3, 3] weight = {{
        1, 2, 3, 4, 5, 6, 7, 8, 9}}> {{ a = Conv <pads = [1, 1, 1, 1]> (x, weight) y = Relu (a) }}""")
    with nna.InferenceSession(model, devices="fake_npu") as session:
        for size in (8, 360, 361, 360, 362):
            feed = {"x": numbers(1, 1, size, size)}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-4, atol=1e-4)
            assert not session.provenance.fell_back
