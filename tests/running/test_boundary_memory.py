"""Memory for values between steps: sharing, no copies, and outputs that belong to the caller."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnadapter as nna
from nnadapter.engine import ExecutionPool, share_regions
from tests.models import run_whole
from tests.watching import watched

SIZES = "[256, 256]"
HEAD = '<ir_version: 10, opset_import: ["" : 17]>'
CHAIN = f"""{HEAD} chain (float{SIZES} x) => (float{SIZES} y, float{SIZES} c) {{
    [a_cpu] a = Relu(x)  [b_npu] b = Neg(a)  [c_cpu] c = Abs(b)  [d_npu] d = Add(c, a)
    [e_cpu] e = Sin(d)   [f_npu] f = Mul(e, d)  [y_cpu] y = Cos(f)
}}"""
VIEWS = f"""{HEAD} views (float{SIZES} x) => (float{SIZES} y) {{
    [a_cpu] a = Relu(x)  [b_npu] b = Identity(a)  [c_cpu] c = Sin(b)  [d_npu] d = Identity(c)  [e_cpu] e = Cos(d)
    [f_npu] f = Identity(b)  [y_cpu] y = Sub(e, f)
}}"""


def on(text, device, more="", **options):
    rules = f'{more}\n[[pin]]\ndevice = "{device}"\nname = "*_npu"\n[[pin]]\ndevice = "cpu"\nname = "*_cpu"'
    return nna.InferenceSession(
        onnx.parser.parse_model(text), devices=device, options=nna.Options(rules=rules, **options)
    )


def numbers(seed):
    return np.random.default_rng(seed).standard_normal((256, 256)).astype(np.float32)


def check(text, results, x):
    for result, expected in zip(results, run_whole(onnx.parser.parse_model(text), {"x": x}), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@st.composite
def graphs(draw):
    """Draw steps with the values that they read and make, and sizes of some values."""
    steps, made = [], []
    for position in range(draw(st.integers(1, 9))):
        inputs = draw(st.lists(st.sampled_from(made), max_size=3, unique=True)) if made else []
        outputs = [f"{position}.{number}" for number in range(draw(st.integers(1, 2)))]
        steps.append((inputs, outputs))
        made.extend(outputs)
    return steps, {name: draw(st.integers(1, 1000)) for name in made if draw(st.booleans())}


def orders(steps):
    """Return every execution order, as the sets of finished steps after each step."""
    made_by = {name: at for at, (_, outputs) in enumerate(steps) for name in outputs}
    needs = [{made_by[name] for name in inputs} for inputs, _ in steps]
    reached, waiting = set(), [frozenset()]
    while waiting:
        done = waiting.pop()
        if done in reached:
            continue
        reached.add(done)
        waiting.extend(done | {at} for at in range(len(steps)) if at not in done and needs[at] <= done)
    return needs, reached


@pytest.mark.slow
@given(graphs())
def test_shared_memory_is_never_overwritten_before_last_read(graph):
    steps, sizes = graph
    region_of, regions = share_regions(steps, sizes)
    assert region_of.keys() == sizes.keys()
    assert all(sizes[name] <= regions[region] for name, region in region_of.items())
    needs, reached = orders(steps)
    users = {name: {at for at, (inputs, outputs) in enumerate(steps) if name in (*inputs, *outputs)} for name in sizes}
    made_by = {name: at for at, (_, outputs) in enumerate(steps) for name in outputs}
    for done in reached:
        for at in set(range(len(steps))) - done:
            if not needs[at] <= done:
                continue
            for mine in (name for name in sizes if made_by[name] == at):
                for other in (name for name in sizes if name != mine and region_of[name] == region_of[mine]):
                    begun, over = made_by[other] in done, users[other] <= done
                    assert over or not begun, "it would be written over"
                    assert made_by[other] != at


@pytest.mark.parametrize("device", ["fake_npu", "openvino", "reference"])
@pytest.mark.parametrize("text", [CHAIN, VIEWS])
def test_earlier_results_are_not_overwritten(device, text):
    feeds = [numbers(seed) for seed in range(4)]
    with on(text, device) as session:
        got = [session.run(None, {"x": x}) for x in feeds]
        for results, x in zip(got, feeds, strict=True):
            check(text, results, x)


def test_concurrent_runs_use_separate_memory():
    feeds = [numbers(seed) for seed in range(24)]
    with on(CHAIN, "fake_npu") as session, ThreadPoolExecutor(4) as threads:
        got = list(threads.map(lambda x: session.run(None, {"x": x}), feeds))
    for results, x in zip(got, feeds, strict=True):
        check(CHAIN, results, x)


@pytest.mark.parametrize("device", ["fake_npu", "null", "reference"])
def test_stoppable_runs_reuse_memory_but_not_returned_arrays(device):
    def noted(frame, results):
        return results[0].__array_interface__["data"][0]

    feeds = [numbers(seed) for seed in range(12)]
    with on(CHAIN, device) as session:
        alone = [session.run(None, {"x": x}) for x in feeds]
        got = [*session.stream([{"x": x} for x in feeds], depth=3)]
        with watched(ExecutionPool.compute_into, noted) as places:
            got += [session.run(None, {"x": x}, nna.ort.RunOptions()) for x in feeds]
    for results, expected in zip(got, 2 * alone, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(results, expected, strict=True))
    assert len(places) >= len(feeds) and (device == "fake_npu" or len(set(places)) < len(places))


def test_values_pass_between_segments_without_copies():
    def noted(frame, results):
        return [address(each) for each in frame["inputs"]], [address(each) for each in results]

    def address(array):
        return array.__array_interface__["data"][0]

    x = numbers(0)
    with on(CHAIN, "null") as session:
        session.run(None, {"x": x})
        with watched(ExecutionPool.compute_into, noted) as first, watched(ExecutionPool.compute, noted) as rest:
            y, c = session.run(None, {"x": x})
        calls = [*first, *rest]
    assert len(calls) == 7
    made = {place for _, outputs in calls for place in outputs}
    assert all(place in made or place == address(x) for inputs, _ in calls for place in inputs)
    assert address(c) in made and address(y) in made
    inside = {place for _, outputs in calls for place in outputs} - {address(c), address(y)}
    assert len(inside) < 5, "memory is used again"


def test_boundary_memory_counts_once_and_evicts_no_plan():
    def noted(frame, results):
        return [(each.__array_interface__["data"][0], each.nbytes) for each in results]

    of_one_size = "[limits]\nmax_segments = 1000"  # forces static shapes
    with on(CHAIN.replace(SIZES, "[N, 1024]"), "null", of_one_size, max_plan_bytes=1 << 20) as session:
        with watched(ExecutionPool.compute_into, noted) as calls:
            results = [session.run(None, {"x": np.zeros((rows, 1024), np.float32)}) for rows in (1024, 1000)]
        counts = session.report().plans
    returned = {each.__array_interface__["data"][0] for outputs in results for each in outputs}
    inside: dict[int, int] = {}
    for place, nbytes in (each for outputs in calls for each in outputs):
        if place not in returned:
            inside[place] = max(nbytes, inside.get(place, 0))
    held = max(place + nbytes for place, nbytes in inside.items()) - min(inside)
    assert held >= 8 << 20 and (counts.compiled, counts.evicted) == (2, 0)
    assert held <= counts.memory_bytes <= held + (1 << 20)


_CHAIN_OF = """
import numpy as np
from benchmarks.harness import peak_bytes, resident_bytes
from benchmarks.segments import chain_session
before = resident_bytes()
session = chain_session(["cpu", "null"], 40)
x = np.ones((1024, 1024), np.float32)
for _ in range(3):
    session.run(None, {"v0": x})
print(peak_bytes() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_number_of_segments():
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", _CHAIN_OF], capture_output=True, text=True, check=True, cwd=root)
    assert int(run.stdout) < 120e6, "40 segments of 4 MB, whose arenas alone would be 80 MB beside 60 of libraries"
