"""What is bound again at other sizes: once for all layers that do the same in the same memory, and never for others."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers.fake_npu.graph import NpuGraph
from nnadapter.drivers.fake_npu.kernels.kernel import Run
from nnadapter.drivers.fake_npu.lowering import lower
from nnadapter.drivers.fake_npu.sized_binding import Layout, SizedBinding
from nnadapter.drivers.fake_npu.traced_graph import TracedGraph
from nnadapter.ir import DataType, ModelBuilder, OperandType
from nnadapter.ir.operand import freeze
from nnadapter.ir.symbolic_numbers import SymbolicTrace
from tests.models import HEAD, numbers, parse, run_whole

COLUMNS = 6


def layers(scales: list[float]) -> tuple[NpuGraph, SymbolicTrace]:
    """A sum and a softmax of it per scale, over rows of which there may be any number."""
    trace, builder = SymbolicTrace(), ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (trace.variable(8), COLUMNS)))
    (made,) = builder.add_operation("TANH", (x,))
    for index, scale in enumerate(scales):
        constant = builder.add_constant(f"scale_{index}", freeze(np.full((1, 1), scale, np.float32)))
        (moved,) = builder.add_operation("ADD", (made, constant))
        (made,) = builder.add_operation("SOFTMAX", (moved,), {"axis": 1})
    (last,) = builder.add_operation("CONCAT", (made, x), {"axis": 1})
    return lower(builder.finish([last])).graph, trace


def bound_again(graph: NpuGraph, trace: SymbolicTrace, rows: int) -> tuple[list[Run], np.ndarray, np.ndarray]:
    """The instructions bound at 8 rows and then at so many, an input, and what they make of it."""
    traced = TracedGraph(graph)
    first, then = (traced.numbers(trace.replay([size])) for size in (8, rows))  # type: ignore[arg-type]  # one class
    before = SizedBinding(Layout.at(traced, first, 1 << 20), first, {})
    arena = np.zeros(before.frame.memory.arena_bytes, np.uint8)
    after = before.resized(then)
    assert after is not None, "there is room for it"
    x = np.random.default_rng(0).random((rows, COLUMNS), np.float32)
    out = np.empty((rows, 2 * COLUMNS), np.float32)
    runs = after.runs(after.bound_after(arena, before, before.bound(arena)), [x], [out])
    for run in runs:
        run()
    return runs, x, out


def expected(x: np.ndarray, scales: list[float]) -> np.ndarray:
    made = np.tanh(x)
    for scale in scales:
        powers = np.exp(made + np.float32(scale))
        made = powers / powers.sum(1, keepdims=True)
    return np.concatenate([made, x], 1)


@pytest.mark.parametrize("rows", [2, 5, 10])
@pytest.mark.parametrize("scales", [[2.0, 2.0, 2.0, 2.0], [2.0, 3.0, 2.0, -1.0]])
def test_results_are_those_of_the_sizes_at_hand(rows: int, scales: list[float]) -> None:
    _, x, out = bound_again(*layers(scales), rows)
    np.testing.assert_allclose(out, expected(x, scales), rtol=1e-5)


@pytest.mark.parametrize(("scales", "additions"), [([2.0] * 8, 2), ([1.0, 2.0, 3.0, 4.0], 4)])
def test_layers_alike_in_the_same_memory_are_bound_once(scales: list[float], additions: int) -> None:
    graph, trace = layers(scales)
    runs, _, _ = bound_again(graph, trace, 7)
    of_kernel = {
        kernel: {id(run) for run, each in zip(runs, graph.instructions, strict=True) if each.kernel == kernel}
        for kernel in ("add", "softmax")
    }
    assert len(of_kernel["add"]) <= additions
    assert len(of_kernel["softmax"]) <= 2, "the last one may lie elsewhere"


def test_scratch_memory_is_what_the_sizes_at_hand_want() -> None:
    """As many rows want what they did; others, then, want something else."""
    trace, builder = SymbolicTrace(), ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (trace.variable(8), trace.variable(6))))
    (moved,) = builder.add_operation("TANH", (x,))
    (made,) = builder.add_operation("SOFTMAX", (moved,), {"axis": 1})
    graph = lower(builder.finish(builder.add_operation("TANH", (made,)))).graph
    traced = TracedGraph(graph)
    numbers = traced.numbers(trace.replay([8, 6]))  # type: ignore[arg-type]  # one class
    before = SizedBinding(Layout.at(traced, numbers, 1 << 20), numbers, {})
    arena = np.zeros(before.frame.memory.arena_bytes, np.uint8)
    bound, (scratch,) = before.bound(arena), (each.scratch for each in before.frame.graph.instructions if each.scratch)
    for rows, columns in ((8, 7), (8, 8), (5, 8), (5, 9), (10, 6), (10, 5)):
        after = before.resized(traced.numbers(trace.replay([rows, columns])))  # type: ignore[arg-type]
        assert after is not None, "there is room for it"
        bound = after.bound_after(arena, before, bound)
        assert list(map(after.dimensions, scratch)) == [(rows, 1)]
        x_now = np.random.default_rng(0).random((rows, columns), np.float32)
        out = np.empty((rows, columns), np.float32)
        for run in after.runs(bound, [x_now], [out]):
            run()
        powers = np.exp(np.tanh(x_now))
        np.testing.assert_allclose(out, np.tanh(powers / powers.sum(1, keepdims=True)), rtol=1e-5)
        before = after


def test_sizes_at_which_a_kernel_wants_other_pieces_of_scratch_memory_are_bound_anew() -> None:
    """A convolution copies an image of half a mebibyte with its padding, and not a larger one."""
    model = parse(f"""{HEAD} g (float[1, 1, h, w] x) => (float[1, 1, h, w] y) <float[1, 1, 3, 3] weight = {{
        1, 2, 3, 4, 5, 6, 7, 8, 9}}> {{ a = Conv <pads = [1, 1, 1, 1]> (x, weight) y = Relu (a) }}""")
    with nna.InferenceSession(model, devices="fake_npu") as session:
        for size in (8, 360, 361, 360, 362):
            feed = {"x": numbers(1, 1, size, size)}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-4, atol=1e-4)
            assert not session.provenance.fell_back
