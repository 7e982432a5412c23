"""Repeated runs: they skip finished checks and decisions, with the same results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.drivers.onnxruntime import SessionExecution
from nnadapter.engine import PlanCache, Repeat
from nnadapter.errors import ClosedError, InputTypeError, InvalidInputError, MissingInputError
from tests.models import numbers, parse
from tests.watching import watched

MODEL = parse("""<ir_version: 10, opset_import: ["" : 17]>
g (float[N, 3] x, float[3] w) => (float[N, 3] z, float[N, 3] y) {
    y = Sin (x)
    z = Mul (y, w)
}""")
OFF = ("fake_npu", {"switched_off": "Sin,Mul"})
W = numbers(3, seed=3)


@pytest.fixture
def direct():
    """Record whether each run was direct."""
    with watched(Repeat.run, lambda _, result: result is not None) as done:
        yield done


@pytest.fixture
def session():
    with nna.InferenceSession(MODEL, devices=OFF, options=nna.Options(fallback="allow")) as made:
        yield made


def expected(x):
    return onnxruntime.InferenceSession(MODEL.SerializeToString()).run(None, {"x": x, "w": W})


def test_repeated_runs_are_direct_and_equal(session, direct):
    for size in (2, 2, 2, 5, 5, 2):
        x = numbers(size, 3, seed=size)
        for names, wanted in ((None, [0, 1]), (["z", "y"], [0, 1]), (["y"], [1]), (["y", "z"], [1, 0])):
            got = session.run(names, {"x": x, "w": W})
            for index, array in zip(wanted, got, strict=True):
                np.testing.assert_array_equal(array, expected(x)[index])
                assert array.flags.writeable
        assert [step.device for step in session.provenance.steps] == ["cpu"]
    assert sum(direct) == 6 * 2 - 3  # first runs of a shape, or with other outputs, are not direct
    assert session.report().nodes[0].device == "cpu"
    counts = session._engine.source.counts
    assert counts.reused + counts.compiled == 24


@pytest.mark.parametrize(
    ("feed", "error"),
    [
        ({"x": numbers(2, 3).astype(np.float64), "w": W}, InputTypeError),
        ({"x": numbers(2, 4), "w": W}, InvalidInputError),
        ({"x": numbers(2, 3), "w": W, "v": W}, InvalidInputError),
        ({"x": numbers(2, 3)}, MissingInputError),
        ([numbers(2, 3), W], InvalidInputError),
    ],
)
def test_invalid_feeds_raise_the_usual_errors(session, direct, feed, error):
    for _ in range(2):
        session.run(None, {"x": numbers(2, 3), "w": W})
    with pytest.raises(error):
        session.run(None, feed)
    assert direct == [True, False]


def test_masked_arrays_are_not_run_directly(session, direct):
    session.run(None, {"x": numbers(1, 3), "w": W})
    got = session.run(None, {"x": np.ma.masked_array(numbers(1, 3)), "w": W})
    np.testing.assert_array_equal(got[0], expected(numbers(1, 3))[0])
    assert direct == [False]


def test_repeated_run_respects_run_options(session, direct):
    session.run(None, {"x": numbers(2, 3), "w": W})
    options = onnxruntime.RunOptions()
    options.terminate = True
    with pytest.raises(nna.errors.CancelledError):
        session.run(None, {"x": numbers(2, 3), "w": W}, options)
    assert not direct


def test_a_closed_session_stays_closed():
    session = nna.InferenceSession(MODEL, devices=OFF, options=nna.Options(fallback="allow"))
    feed = {"x": numbers(2, 3), "w": W}
    session.run(None, feed)
    session.close()
    with pytest.raises(ClosedError):
        session.run(None, feed)


@pytest.mark.parametrize("off", ["Sin", ""])
def test_plans_of_any_devices_are_repeated(direct, off):
    feed = {"x": numbers(2, 3), "w": W}
    with nna.InferenceSession(MODEL, devices=("fake_npu", {"switched_off": off})) as session:
        for _ in range(3):
            for got, wanted in zip(session.run(None, feed), expected(feed["x"]), strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-6)
        assert "fake_npu" in {step.device for step in session.provenance.steps}
        assert direct == [True, True]
        with pytest.raises(InvalidInputError):
            session.run(None, {**feed, "v": W})


def test_device_failure_in_a_repeated_run_falls_back(direct):
    feed = {"x": numbers(2, 3), "w": W}
    with nna.InferenceSession(MODEL, devices=("trial", {"last_run": 1})) as session:
        session.run(None, feed)
        with pytest.warns(nna.errors.FallbackWarning, match="the device hung up"):
            got = session.run(None, feed)
        np.testing.assert_allclose(got[0], expected(feed["x"])[0], rtol=1e-6)
        assert session.provenance.fell_back
        for name, wanted in (("y", 1), ("z", 0)):
            np.testing.assert_allclose(session.run([name], feed)[0], expected(feed["x"])[wanted], rtol=1e-6)
        (segment,) = session.report().segments
        assert segment.failures == ("RuntimeError: the device hung up",)
    assert direct == [True]


@pytest.mark.parametrize("outputs", ["x", "c"])
def test_outputs_not_computed_by_the_step_are_copied(direct, outputs):
    model = parse(f"""<ir_version: 10, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y, float[2] {outputs}) <float[2] c = {{1.0, 2.0}}> {{ y = Sin (x) }}""")
    with nna.InferenceSession(model, devices=OFF, options=nna.Options(fallback="allow")) as session:
        for _ in range(3):
            x = numbers(2)
            _, second = session.run(None, {"x": x})
            second[:] = 7
            np.testing.assert_array_equal(x, numbers(2))
    assert direct == [True, True]


def test_cpu_plan_passes_the_feed_unchanged(session, direct):
    feed = {"w": W, "x": numbers(2, 3)}
    with watched(SessionExecution.compute, lambda *_: "named once more") as computed:
        session.run(None, feed)
        assert computed.pop() == "named once more"
        for _ in range(2):
            for got, wanted in zip(session.run(None, feed), expected(feed["x"]), strict=True):
                np.testing.assert_array_equal(got, wanted)
    assert not computed
    assert direct == [True, True]


def test_unread_inputs_are_not_passed(direct):
    model = parse("""<ir_version: 10, opset_import: ["" : 17]>
    g (float[2] x, float[3] unread) => (float[2] y) { y = Sin (x) }""")
    feed = {"x": numbers(2), "unread": numbers(3)}
    with nna.InferenceSession(model, devices=OFF, options=nna.Options(fallback="allow")) as session:
        for _ in range(3):
            np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_sin(feed["x"]))
    assert direct == [True, True]


def onnxruntime_sin(x):
    model = parse("""<ir_version: 10, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Sin (x) }""")
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


def test_repeated_cpu_failure_is_an_invalid_input_error(direct):
    model = parse("""<ir_version: 10, opset_import: ["" : 17]>
    g (float[3] x, int64[1] i) => (float[1] y) { y = Gather (x, i) }""")
    off = ("fake_npu", {"switched_off": "Gather"})
    with nna.InferenceSession(model, devices=off, options=nna.Options(fallback="allow")) as session:
        for _ in range(2):
            session.run(None, {"x": numbers(3), "i": np.array([2])})
        for _ in range(2):
            with pytest.raises(InvalidInputError, match="ONNX Runtime failed on the CPU"):
                session.run(None, {"x": numbers(3), "i": np.array([7])})
        np.testing.assert_array_equal(session.run(None, {"x": numbers(3), "i": np.array([1])})[0], numbers(3)[1:2])
    assert direct == [True, False, False, True]  # a failed one is not used again


def test_concurrent_threads_with_several_shapes(session):
    wanted = {(seed, size): expected(numbers(size, 3, seed=seed))[1] for seed in range(4) for size in (1, 2, 3)}

    def work(seed):
        for turn in range(60):
            x = numbers(1 + (turn + seed) % 3, 3, seed=seed)
            np.testing.assert_array_equal(session.run(None, {"x": x, "w": W})[1], wanted[seed, len(x)])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


GROWING = parse("""<ir_version: 10, opset_import: ["" : 17]>
g (float[N, 3] x, float[M, 3] past) => (float[K, 3] y) {
    both = Concat <axis = 0> (past, x)
    y = Sin (both)
}""")


def needs(device):
    if device == "openvino":
        pytest.importorskip("openvino")


@pytest.mark.parametrize(("device", "takes", "repeats"), [("fake_npu", 2, 4), ("openvino", 3, 3)])
def test_other_sizes_of_a_plan_skip_the_lookup(device, takes, repeats):
    needs(device)
    alone, results = onnxruntime.InferenceSession(GROWING.SerializeToString()), []
    with nna.InferenceSession(GROWING, devices=device) as session:
        with watched(PlanCache.take, lambda *_: None) as taken, watched(Repeat.run_like, lambda *_: None) as direct:
            for rows in (4, 5, 6, 9, 9, 3):
                feed = {"past": numbers(rows, 3, seed=1), "x": numbers(2, 3, seed=rows)}
                (y,) = session.run(None, feed)
                np.testing.assert_allclose(y, alone.run(None, feed)[0], rtol=1e-6, atol=1e-6)
                results.append((feed, y))
        # One plan for the first shapes, and one for all. With an ONNX engine, a new smallest size must be checked.
        assert (len(taken), len(direct)) == (takes, repeats)
        assert session.report().plans.compiled == 2
        for wrong, error in (
            ({"x": numbers(2, 4), "past": numbers(5, 3)}, InvalidInputError),
            ({"x": numbers(8, 3), "past": numbers(5, 12)}, InvalidInputError),
            ({"x": numbers(2, 3)[0], "past": numbers(5, 3)}, InvalidInputError),
            ({"x": numbers(2, 3).astype(np.float64), "past": numbers(5, 3)}, InputTypeError),
        ):
            with pytest.raises(error):
                session.run(None, wrong)
        assert session.report().nodes[0].device == device
    for feed, y in results:
        with nna.InferenceSession(GROWING, devices=device) as other:
            other.run(None, {"x": numbers(2, 3), "past": numbers(8, 3)})
            np.testing.assert_array_equal(y, other.run(None, feed)[0])


@pytest.mark.parametrize("device", ["fake_npu", "openvino", "cpu", "null"])
@pytest.mark.parametrize("own", [{}, {"input_shapes": {"x": (2, 3), "past": (6, 3)}}])
def test_other_sizes_of_compiled_plans_skip_the_lookup(tmp_path, device, own):
    needs(device)
    alone = onnxruntime.InferenceSession(GROWING.SerializeToString())
    nna.compile(GROWING, tmp_path / "f", devices=[device], **own)
    with nna.InferenceSession(tmp_path / "f") as opened:
        with watched(Repeat.run_like, lambda *_: None) as direct:
            for rows in (4, 5, 6, 7) if not own else (6, 6):
                feed = {"x": numbers(2, 3, seed=rows), "past": numbers(rows, 3, seed=1)}
                (got,), (expected,) = opened.run(None, feed), alone.run(None, feed)
                assert got.shape == expected.shape
                if device != "null":  # it computes nothing
                    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
        assert len(direct) == (3 if not own else 1)
        for wrong in ({"x": numbers(2, 4), "past": numbers(5, 3)}, {"x": numbers(2, 3)[0], "past": numbers(5, 3)}):
            with pytest.raises(InvalidInputError, match=r"input 'x' has shape .*, expected \['N', 3\]"):
                opened.run(None, wrong)


@pytest.mark.parametrize("device", ["fake_npu", "openvino"])
def test_sizes_with_empty_inner_values_are_handled(device):
    needs(device)
    model = parse("""<ir_version: 10, opset_import: ["" : 17]>
    g (float[N, 3] x) => (float[M, 3] y, float[3] most) {
        one = Constant <value = int64[1] {1}> ()
        end = Constant <value = int64[1] {1000}> ()
        zero = Constant <value = int64[1] {0}> ()
        rest = Slice (x, one, end, zero)
        y = Sin (rest)
        most = ReduceSum <keepdims = 0> (y, zero)
    }""")
    alone = onnxruntime.InferenceSession(model.SerializeToString())
    with nna.InferenceSession(model, devices=device, options=nna.Options(fallback="allow")) as session:
        for rows in (4, 5, 6, 1, 7, 2, 1, 30, 200, 1):
            feed = {"x": numbers(rows, 3, seed=rows)}
            for got, expected in zip(session.run(None, feed), alone.run(None, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
