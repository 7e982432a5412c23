"""Compiled files of models with branch decisions: plans for each decision; forged files are refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import nnadapter as nna
from benchmarks.models.language_models import CHOOSES, Sizes, first_feed, merged_decoder
from nnadapter.drivers import Reason, Unsupported
from nnadapter.errors import CompiledModelError, InvalidInputError, NNAdapterError
from nnadapter.onnx.preparation import MOST_FORKS
from tests import keeping_driver
from tests.compiled_models.files import changed
from tests.compiled_models.test_dynamic_shapes import ALONE
from tests.models import HEAD, numbers, parse, run_whole
from tests.running.test_branch_decisions import BEHIND, FEEDS, FLAG, RATE, SHARED, SIZES, check, rows

DECODER = Sizes(layers=1, width=16, words=50)
ALLOW = nna.Options(fallback="allow")


@pytest.mark.parametrize("text", [FLAG, RATE, SHARED, BEHIND], ids=["flag", "rate", "shared", "behind"])
def test_file_has_plans_for_each_branch(tmp_path, text):
    model = parse(text)
    nna.compile(model, tmp_path / "f", devices=["fake_npu"])
    with nna.InferenceSession(tmp_path / "f") as loaded:
        for feed in (*FEEDS[text], *({**feed, "x": rows(5)} for feed in FEEDS[text]), *FEEDS[text]):
            assert check(loaded, model, feed) == {"fake_npu"}


def test_sizes_select_branches(tmp_path):
    model, shapes = parse(SIZES), [{"x": (count, 3)} for count in (2, 3, 7)]
    nna.compile(model, tmp_path / "f", devices=["fake_npu"], input_shapes=shapes)
    with nna.InferenceSession(tmp_path / "f") as loaded:
        for count in (2, 3, 7, 2):
            assert check(loaded, model, {"x": rows(count)}) == {"fake_npu"}


@pytest.mark.slow
@pytest.mark.parametrize("device", ["fake_npu", "openvino"])
def test_merged_decoder_on_its_device(tmp_path, device):
    model = merged_decoder(DECODER)
    nna.compile(model, tmp_path / "f", devices=[device], options=ALLOW)
    with nna.InferenceSession(tmp_path / "f") as loaded:
        for prompt in ((1, 2, 3), (4,)):
            feed = {**first_feed(DECODER, prompt), CHOOSES: np.array([False])}
            for _ in range(3):
                expected = run_whole(model, feed)
                for one, other in zip(loaded.run(None, feed), expected, strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
                assert [step.device for step in loaded.provenance.steps] == [device]
                cache = {"past.0.key": expected[1], "past.0.value": expected[2]}
                feed = {"ids": np.array([[5]]), **cache, CHOOSES: np.array([True])}


def test_refusal_of_one_branch_spares_the_other(tmp_path, monkeypatch):
    model, take = parse(FLAG), keeping_driver.KeepingContext.supported
    nna.compile(model, tmp_path / "f", devices=["keeping"], options=ALLOW)
    five = Unsupported(Reason.UNSUPPORTED_TYPE, "it adds no five rows")

    def supported(context, asked):
        rows = {asked.operands[asked.outputs[0]].type.dimensions[0]}
        return [
            five if operation.type == "ADD" and rows == {5} else verdict
            for operation, verdict in zip(asked.operations, take(context, asked), strict=True)
        ]

    monkeypatch.setattr(keeping_driver.KeepingContext, "supported", supported)
    then, otherwise = ({**feed, "x": rows(5)} for feed in FEEDS[FLAG])
    with nna.InferenceSession(tmp_path / "f") as loaded:
        for _ in range(2):
            with pytest.raises(InvalidInputError, match="refuses its segment at these sizes"):
                loaded.run(None, then)
            assert check(loaded, model, otherwise) == {"keeping"}


@pytest.mark.sweep
def test_file_with_branches_loads_without_onnx(tmp_path):
    model, feed = merged_decoder(DECODER), {**first_feed(DECODER, (1, 2)), CHOOSES: np.array([False])}
    nna.compile(model, tmp_path / "f", devices=["fake_npu"])
    np.savez(tmp_path / "x.npz", **feed)
    paths = [tmp_path / "f", tmp_path / "x.npz", tmp_path / "y.npy"]
    done = subprocess.run([sys.executable, "-c", ALONE, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), run_whole(model, feed)[0], rtol=1e-4, atol=1e-5)


def test_stored_model_serves_other_shapes_of_each_branch(tmp_path):
    model = parse(FLAG)
    shapes = {"x": (2, 3), "c": (1,)}
    nna.compile(model, tmp_path / "f", devices=["fake_npu"], input_shapes=shapes, keep_model=True)
    with nna.InferenceSession(tmp_path / "f") as loaded:
        for feed in (*FEEDS[FLAG], *FEEDS[FLAG]):
            assert check(loaded, model, feed) == {"fake_npu"}
            assert check(loaded, model, {**feed, "x": rows(4)}) == {"cpu"}


def test_error_lists_supported_shapes_by_branch(tmp_path):
    nna.compile(parse(FLAG), tmp_path / "f", devices=["fake_npu"], input_shapes={"x": (2, 3), "c": (1,)})
    with (
        nna.InferenceSession(tmp_path / "f") as loaded,
        pytest.raises(InvalidInputError, match=r"x=\[2, 3\], c=\[1\] if c is true or .* if c is false, got x=\[3"),
    ):
        loaded.run(None, {**FEEDS[FLAG][0], "x": rows(3)})


def test_too_many_branches_compile_the_original_model(tmp_path):
    count = 3  # twice as many decisions as are planned ahead
    nodes = " ".join(
        f"x{at + 1} = If(c{at}) <then_branch = t{at} () => (float[2] p{at}) {{ p{at} = Exp(x{at}) }}, "
        f"else_branch = e{at} () => (float[2] q{at}) {{ q{at} = Neg(x{at}) }}>"
        for at in range(count)
    )
    flags = ", ".join(f"bool c{at}" for at in range(count))
    model = parse(f"{HEAD} g (float[2] x0, {flags}) => (float[2] x{count}) {{ {nodes} }}")
    report = nna.compile(model, tmp_path / "f", devices=["fake_npu"], options=ALLOW)
    assert any("more than" in note for note in report.notes)
    with nna.InferenceSession(tmp_path / "f") as loaded:
        for bits in range(2**count):
            flags = {f"c{at}": np.array(bool(bits >> at & 1)) for at in range(count)}
            check(loaded, model, {"x0": numbers(2), **flags})


def test_nested_branches_on_one_condition_need_two_plans(tmp_path):
    body = "r = Exp(x)"
    for at in range(4):
        body = f"""r = If({"n" if at % 2 else "c"}) <
            then_branch = t{at} () => (float[N, 3] r) {{ {body} }},
            else_branch = e{at} () => (float[N, 3] r) {{ {body.replace("Exp", "Neg")} }}
        >"""
    body = body.replace("r = If", "y = If", 1)
    model = parse(f"{HEAD} g (float[N, 3] x, bool c) => (float[N, 3] y) {{ n = Not(c) {body} }}")
    report = nna.compile(model, tmp_path / "f", devices=["fake_npu"])
    assert report.coverage.nodes == 1
    with nna.InferenceSession(tmp_path / "f") as loaded:
        assert sorted(list(plan.truths) for plan in loaded._engine.source._file.message.plans) == [[False], [True]]
        for value in (True, False):
            assert check(loaded, model, {"x": rows(2), "c": np.array(value)}) == {"fake_npu"}


def _other_truths(message):
    del message.plans[0].truths[:]
    message.plans[0].truths.extend((True, False, True))


def _no_fork(message):
    del message.forks[:]


def _no_condition(message):
    del message.forks[0].conditions[:]


def _no_model(message):
    message.forks[0].ClearField("model")


def _many_numbers(message):
    del message.forks[0].inputs[:]
    message.forks[0].inputs.append("x")


def _no_input(message):
    message.forks[0].inputs.append("nothing")


def _other_condition(message):
    message.forks[0].conditions[0].name = "nothing"


def _twice(message):
    message.forks.add().CopyFrom(message.forks[0])


def _other_model(message):
    message.forks[0].model.part = next(step.segment.part for plan in message.plans for step in plan.steps)


FORGED = (_other_truths, _no_fork, _no_condition, _no_model, _many_numbers, _no_input, _twice, _other_model)


@pytest.mark.parametrize("change", FORGED)
def test_contradictory_file_is_refused(tmp_path, change):
    nna.compile(parse(RATE), tmp_path / "f", devices=["fake_npu"], input_shapes={"x": (2, 3), "rate": ()})
    changed(tmp_path / "f", change)
    with pytest.raises(CompiledModelError), nna.InferenceSession(tmp_path / "f"):
        pass


@pytest.mark.parametrize("count", [MOST_FORKS, MOST_FORKS + 1])
def test_forks_are_bounded(tmp_path, count):
    def change(message):
        (plan,) = (plan for plan in message.plans if list(plan.truths) == [True])
        plan.truths.extend([True] * (count - 2))
        for depth in range(1, count - 1):
            message.forks.add().CopyFrom(message.forks[0])
            message.forks[-1].truths.extend([True] * depth)

    nna.compile(parse(RATE), tmp_path / "f", devices=["fake_npu"], input_shapes={"x": (2, 3), "rate": ()})
    changed(tmp_path / "f", change)
    if count > MOST_FORKS:
        with pytest.raises(CompiledModelError, match=f"expected at most {MOST_FORKS}"):
            nna.InferenceSession(tmp_path / "f")
    else:
        with nna.InferenceSession(tmp_path / "f") as loaded:
            for feed in FEEDS[RATE]:
                check(loaded, parse(RATE), feed)


def test_uncomputable_condition_is_an_error(tmp_path):
    nna.compile(parse(RATE), tmp_path / "f", devices=["fake_npu"], input_shapes={"x": (2, 3), "rate": ()})
    changed(tmp_path / "f", _other_condition)
    with nna.InferenceSession(tmp_path / "f") as loaded, pytest.raises(CompiledModelError, match="conditions"):
        loaded.run(None, FEEDS[RATE][0])


def test_invalid_condition_values_raise_nnadapter_errors(tmp_path):
    text = f"""{HEAD} g (float[2] x, int64 at) => (float[2] y) <bool[2] truths = {{1, 0}}> {{
        c = Gather(truths, at)
        y = If(c) <
            then_branch = t () => (float[2] p) {{ p = Exp(x) }},
            else_branch = e () => (float[2] q) {{ q = Neg(x) }}
        >
    }}"""
    nna.compile(parse(text), tmp_path / "f", devices=["fake_npu"])
    with nna.InferenceSession(tmp_path / "f") as loaded:
        for at in (0, 1):
            check(loaded, parse(text), {"x": numbers(2), "at": np.array(at)})
            with pytest.raises(NNAdapterError, match="out of data bounds"):
                loaded.run(None, {"x": numbers(2), "at": np.array(9)})
