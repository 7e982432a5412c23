"""Files with dynamic shapes: they give the results of the model at any shapes, without it."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

import nnadapter as nna
from benchmarks.models.language_models import Sizes, first_feed, language_model
from nnadapter.cli import main
from nnadapter.engine import MESSAGES, CompiledFile
from nnadapter.errors import CompiledModelError, InvalidInputError
from tests import keeping_driver
from tests.compiled_models.test_compiled_models import changed
from tests.models import numbers, parse, run_whole
from tests.planning.test_dynamic_shapes import CHAIN, SIZES, grown
from tests.planning.test_dynamic_shapes_in_ir import BROADCAST, HEAD, IMAGES, QUIET, SHIFTED, decoded
from tests.trial_driver import COUNTS

DEVICES = ["fake_npu", "openvino", "cpu", "reference", "trial", "null", "opensizes", "keeping"]
LONG = Sizes(layers=2, width=32, heads=2, words=50, positions=600)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    made = {}

    def file(text, device, **arguments):
        key = (text, device, repr(arguments))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("open") / "f"
            model = language_model(text) if isinstance(text, Sizes) else parse(text)
            nna.compile(model, made[key], devices=[device], options=QUIET, **arguments)
        return made[key]

    return file


def needs(device):
    if device == "openvino":
        pytest.importorskip("openvino")


def agree(opened, text, feed):
    for got, expected in zip(opened.run(None, feed), run_whole(parse(text), feed), strict=True):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("device", [device for device in DEVICES if device != "null"])
def test_model_with_cache_runs_at_all_lengths(device, files):
    needs(device)
    path = files(SIZES, device)
    with (
        nna.InferenceSession(path, options=QUIET) as loaded,
        nna.InferenceSession(parse(SIZES), devices=[device], options=QUIET) as session,
    ):
        rng = np.random.default_rng(3)
        for _ in range(25):
            rows, length, past = rng.integers(1, 4), rng.integers(1, 5), rng.integers(0, 40)
            feed = grown(rows, length, past)
            agree(loaded, SIZES, feed)
            for got, expected in zip(loaded.run(None, feed), session.run(None, feed), strict=True):
                np.testing.assert_array_equal(got, expected)
            assert [step.device for step in loaded.provenance.steps] == [
                step.device for step in session.provenance.steps
            ]
            assert not loaded.provenance.fell_back


READS_ENCODED = f"""{HEAD} decoder (float[b, n, 8] new, float[b, 2, past, 4] past_key, float[b, 2, e, 4] encoder_key,
    int64[b, e] encoder_mask) => (float[b, 2, n, e] y, float[b, 2, all, 4] present_key)
    <int64[4] split = {{0, -1, 2, 4}}, int64[2] axes = {{1, 2}}, float one = {{1}}, float least = {{-10000}}> {{
        heads = Reshape(new, split)  key = Transpose<perm = [0, 2, 1, 3]>(heads)
        present_key = Concat<axis = 2>(past_key, key)
        turned = Transpose<perm = [0, 1, 3, 2]>(encoder_key)  scores = MatMul(key, turned)
        real = Cast<to = 1>(encoder_mask)  wide = Unsqueeze(real, axes)  left = Sub(one, wide)  mask = Mul(left, least)
        masked = Add(scores, mask)  y = Softmax<axis = -1>(masked)
    }}"""
"""A decoder that reads an encoder's output for a sentence of another length."""


@pytest.mark.parametrize("device", ["fake_npu", "openvino", "cpu"])
def test_decoder_accepts_any_encoder_and_cache_length(device, files):
    needs(device)
    with nna.InferenceSession(files(READS_ENCODED, device), options=QUIET) as loaded:
        for rows, new, past, length in (
            (1, 1, 5, 9),
            (2, 1, 4, 7),
            (3, 1, 40, 7),
            (1, 6, 3, 7),
            (2, 5, 0, 4),
            (1, 1, 3, 1),
        ):
            feed = {
                "new": numbers(rows, new, 8),
                "past_key": numbers(rows, 2, past, 4),
                "encoder_key": numbers(rows, 2, length, 4),
                "encoder_mask": np.ones((rows, length), np.int64),
            }
            agree(loaded, READS_ENCODED, feed)
            assert not loaded.provenance.fell_back


@pytest.mark.slow
@pytest.mark.parametrize("device", ["fake_npu", "openvino", "trial"])
@given(sizes=st.lists(st.tuples(st.sampled_from([1, 2, 5]), st.booleans(), st.booleans()), min_size=2, max_size=6))
def test_equal_sizes_have_guarded_plans_in_the_file(files, device, sizes):
    needs(device)
    with nna.InferenceSession(files(BROADCAST, device), options=QUIET) as loaded:
        for rows, one, other in sizes:
            feed = {"x": numbers(1 if one else rows, 4), "w": numbers(1 if other else rows, 4)}
            agree(loaded, BROADCAST, feed)


@pytest.mark.parametrize("device", ["fake_npu", "openvino", "cpu", "trial"])
def test_images_of_many_sizes(device, files):
    needs(device)
    with nna.InferenceSession(files(IMAGES, device)) as loaded:
        for height, width in ((224, 224), (100, 36), (64, 64), (9, 12), (33, 250), (512, 300)):
            agree(loaded, IMAGES, {"x": numbers(1, 3, height, width)})
            assert [step.device for step in loaded.provenance.steps] == [device]


@pytest.mark.slow
@pytest.mark.parametrize("device", ["fake_npu", "openvino", "cpu", "trial"])
def test_language_model_decodes_as_in_onnxruntime(device, tmp_path):
    needs(device)
    model = language_model(LONG)
    nna.compile(model, tmp_path / "f", devices=[device], options=QUIET)
    alone = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with nna.InferenceSession(tmp_path / "f", options=QUIET) as loaded:
        for prompt in ((1,), (1, 2, 3), (4, 5), range(40), (*range(50), *range(50))):
            steps = decoded(lambda feed: loaded.run(None, feed), LONG, prompt, 12)
            expected_steps = decoded(lambda feed: alone.run(None, feed), LONG, prompt, 12)
            for got, expected in zip(steps, expected_steps, strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
            assert [step.device for step in loaded.provenance.steps] == [device]


@pytest.mark.sweep
@pytest.mark.parametrize("device", ["fake_npu", "openvino"])
@pytest.mark.parametrize(("rows", "cached", "new"), [(1, 0, 250), (1, 550, 1), (6, 300, 1), (1, 590, 9)])
def test_language_model_accepts_long_texts_of_few_rows(device, files, rows, cached, new):
    """The largest shapes that compilation tries have many rows; few rows must work too."""
    needs(device)
    model, path = language_model(LONG), files(LONG, device)
    feed = {
        name: numbers(rows, *each.shape[1:2], cached, each.shape[3], seed=index)
        for index, (name, each) in enumerate(first_feed(LONG, (1,)).items())
        if name != "ids"
    }
    feed["ids"] = np.arange(rows * new).reshape(rows, new) % LONG.words
    with nna.InferenceSession(path) as loaded:
        for got, expected in zip(loaded.run(None, feed), run_whole(model, feed), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
        assert [step.device for step in loaded.provenance.steps] == [device]


ALONE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("onnx", "scipy", "onnxruntime"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import numpy as np
import nnadapter as nna

path, feed, out = sys.argv[1:]
with nna.InferenceSession(path) as session:
    np.save(out, session.run(None, dict(np.load(feed)))[0])
    assert str(session.report())
heavy = [name for name in sys.modules if name.startswith(("nnadapter.converters.", "partition.by_cost."))]
assert not heavy, heavy
"""


@pytest.mark.slow
@pytest.mark.parametrize("device", ["fake_npu", "openvino", "null"])
def test_new_sizes_need_no_onnx(tmp_path, device):
    needs(device)
    model = language_model(LONG)
    nna.compile(model, tmp_path / "f", devices=[device])
    feed = first_feed(LONG, (1, 2, 3, 4))
    np.savez(tmp_path / "x.npz", **feed)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, tmp_path / "f", tmp_path / "x.npz", tmp_path / "y.npy"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if device != "null":
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), run_whole(model, feed)[0], rtol=1e-4, atol=1e-5)


def test_input_shapes_determine_the_guarded_plans(tmp_path):
    shapes = [{"x": (2, 4), "w": (2, 4)}, {"x": (1, 4), "w": (3, 4)}]
    nna.compile(parse(BROADCAST), tmp_path / "f", devices=["fake_npu"], input_shapes=shapes, dynamic_shapes=True)
    with nna.InferenceSession(tmp_path / "f") as loaded:
        for rows in (2, 5, 9):
            agree(loaded, BROADCAST, {"x": numbers(rows, 4), "w": numbers(rows, 4)})
            agree(loaded, BROADCAST, {"x": numbers(1, 4), "w": numbers(rows, 4)})
        with pytest.raises(InvalidInputError, match=r"got x=\[4, 4\], w=\[1, 4\].*nnadapter compile"):
            loaded.run(None, {"x": numbers(4, 4), "w": numbers(1, 4)})


def test_shapes_outside_all_guards_use_the_stored_model(tmp_path):
    shapes = {"x": (2, 4), "w": (2, 4)}
    arguments = {"input_shapes": shapes, "dynamic_shapes": True, "keep_model": True}
    nna.compile(parse(BROADCAST), tmp_path / "f", devices=["fake_npu"], **arguments)
    with nna.InferenceSession(tmp_path / "f") as loaded:
        for rows, device in ((7, "fake_npu"), (1, "cpu"), (3, "fake_npu")):
            agree(loaded, BROADCAST, {"x": numbers(3 if rows == 1 else rows, 4), "w": numbers(rows, 4)})
            assert loaded.provenance.steps[0].device == device


def test_error_states_size_bounds_of_the_plan(tmp_path):
    pytest.importorskip("openvino")
    nna.compile(parse(CHAIN), tmp_path / "f", devices=["openvino"], input_shapes={"x": (8, 4)}, dynamic_shapes=True)
    with nna.InferenceSession(tmp_path / "f") as loaded:
        for rows in (8, 32):
            agree(loaded, CHAIN, {"x": numbers(rows, 4)})
        for rows in (7, 33):
            with pytest.raises(InvalidInputError, match=r"x=\[8 to 32, 4\], got x="):
                loaded.run(None, {"x": numbers(rows, 4)})


POSITIONS = """
<ir_version: 10, opset_import: ["" : 17]> g (float[rows, length, 1] x) => (float[rows, length, 1] y)
<int64 zero = {0}, int64 one = {1}, float[3, 1] table = {1, 2, 3}> {
  shape = Shape (x)
  size = Gather <axis = 0> (shape, one)
  steps = Range (zero, size, one)
  positions = Gather (table, steps)
  added = Add (x, positions)
  y = Relu (added)
}
"""


def test_node_folded_at_some_sizes_runs_at_others(files):
    """The usual length exceeds the table, so nothing is folded at that length."""
    needs("openvino")
    with nna.InferenceSession(files(POSITIONS, "openvino")) as loaded:
        for rows, length in ((1, 1), (3, 2), (2, 3)):
            agree(loaded, POSITIONS, {"x": numbers(rows, length, 1)})


def test_only_bounds_of_used_devices_apply(tmp_path):
    needs("openvino")
    shapes = {"x": (8, 4)}
    for devices, rows in ((["fake_npu", "openvino"], 100), (["openvino", "fake_npu"], 32)):
        nna.compile(
            parse(CHAIN), tmp_path / "f", devices=devices, input_shapes=shapes, dynamic_shapes=True, options=QUIET
        )
        with nna.InferenceSession(tmp_path / "f") as loaded:
            agree(loaded, CHAIN, {"x": numbers(rows, 4)})
    with (
        nna.InferenceSession(tmp_path / "f") as loaded,
        pytest.raises(InvalidInputError, match=r"x=\[\w+: 8 to 32, 4\], got x="),
    ):
        loaded.run(None, {"x": numbers(33, 4)})


def test_values_empty_at_some_sizes(files):
    with nna.InferenceSession(files(SHIFTED, "fake_npu")) as loaded:
        for rows, columns in ((128, 128), (2, 5), (1, 128), (64, 1)):
            agree(loaded, SHIFTED, {"x": numbers(rows, columns)})


def test_programs_for_compiled_sizes_are_stored(tmp_path, monkeypatch):
    text = f"{HEAD} g (float[n, 4] x) => (float[n, 4] y) {{ t = Relu(x) y = Add(t, x) }}"
    shapes = [{"x": (rows, 4)} for rows in (2, 3)]
    nna.compile(parse(text), tmp_path / "f", devices=["keeping"], input_shapes=shapes, dynamic_shapes=True)
    (plan,) = CompiledFile(tmp_path / "f").message.plans
    assert [len(step.filled) for step in plan.steps] == [2]
    keeping_driver.ASKED.clear()
    with nna.InferenceSession(tmp_path / "f") as loaded:
        for rows in (3, 2, 3):
            agree(loaded, text, {"x": numbers(rows, 4)})
        assert "compile" not in keeping_driver.ASKED
        agree(loaded, text, {"x": numbers(5, 4)})
        assert loaded.provenance.steps[0].device == "keeping"


@pytest.mark.slow
def test_similar_segments_of_a_static_device_share_programs(tmp_path):
    model = language_model(LONG)
    nna.compile(model, tmp_path / "f", devices=["trial"], options=QUIET)
    with nna.InferenceSession(tmp_path / "f", options=QUIET) as loaded:
        COUNTS.clear()
        steps = list(decoded(lambda feed: loaded.run(None, feed), LONG, (1, 2, 3), 6))
        assert len(steps) == 6 and COUNTS["compile"] <= 6 * (2 * LONG.layers + 2)
        loaded.run(None, first_feed(LONG, (1, 2, 3)))
        made = COUNTS["compile"]
        loaded.run(None, first_feed(LONG, (1, 2, 3)))
        assert COUNTS["compile"] == made


def test_concurrent_threads_with_different_shapes(files):
    path = files(SIZES, "fake_npu")
    feeds = [grown(rows, length, past) for rows in (1, 2) for length in (1, 3) for past in (0, 1, 9, 20)]
    expected = [run_whole(parse(SIZES), feed) for feed in feeds]
    with nna.InferenceSession(path, options=nna.Options(max_plans=2)) as loaded:

        def run(number):
            for at in range(number, number + 2 * len(feeds)):
                position = at * 5 % len(feeds)
                for got, wanted in zip(loaded.run(None, feeds[position]), expected[position], strict=True):
                    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(run, range(4)))


@pytest.mark.parametrize("device", ["fake_npu", "openvino", "trial"])
def test_absent_device_is_replaced_at_all_sizes(tmp_path, device):
    needs(device)
    nna.compile(parse(SIZES), tmp_path / "f", devices=[device], options=QUIET)
    with nna.InferenceSession(tmp_path / "f", devices=["cpu"]) as loaded:
        for rows, length, past in ((1, 1, 5), (2, 3, 0), (2, 1, 11)):
            agree(loaded, SIZES, grown(rows, length, past))
            assert {step.device for step in loaded.provenance.steps} == {"cpu"}


def damage(message, change):
    plan = next(plan for plan in message.plans if plan.HasField("open"))
    change(plan, plan.open.size_class)


@pytest.mark.parametrize(
    "change",
    [
        lambda plan, of: of.open.append(99),
        lambda plan, of: of.open.append(0),
        lambda plan, of: of.trace.steps.append(1),
        lambda plan, of: of.trace.steps.__setitem__(slice(0, 3), [1, 0, 99999]),
        lambda plan, of: of.trace.steps.__setitem__(slice(0, 3), [99, 0, 0]),
        lambda plan, of: of.trace.steps.__setitem__(slice(0, 3), [0, 99, 0]),
        lambda plan, of: of.trace.functions.__setitem__(0, "os.system"),
        lambda plan, of: of.trace.answered.append(9999),
        lambda plan, of: of.trace.answers[0].__setattr__("whole", 77),
        lambda plan, of: plan.steps[0].segment.numbers.__setitem__(0, 99999),
        lambda plan, of: plan.steps[0].segment.places.__setitem__(0, 99999),
        lambda plan, of: plan.steps[0].segment.numbers.pop(),
        lambda plan, of: plan.ClearField("open"),
        lambda plan, of: plan.open.ClearField("size_class"),
        lambda plan, of: plan.open.least.add(),
        lambda plan, of: plan.shapes[0].dimensions[0].__setattr__("size", 55),
        lambda plan, of: of.given.names.append("nothing"),
    ],
)
def test_contradictory_guards_are_reported_as_damage(tmp_path, files, change):
    (tmp_path / "f").write_bytes(files(SIZES, "fake_npu").read_bytes())
    changed(tmp_path / "f", lambda message: damage(message, change))
    with pytest.raises(CompiledModelError, match="damaged"):
        nna.InferenceSession(tmp_path / "f").run(None, grown(1, 1, 127))


def test_unbounded_size_formulas_are_refused(tmp_path, files):
    def squares(plan, of):
        count = len(of.open) + len(of.trace.steps) // 3
        of.trace.functions.append("mul")
        for number in range(count - 1, count + 40):
            of.trace.steps.extend((len(of.trace.functions), number, number + 1))

    (tmp_path / "f").write_bytes(files(SIZES, "fake_npu").read_bytes())
    changed(tmp_path / "f", lambda message: damage(message, squares))
    with pytest.raises(CompiledModelError, match="may grow beyond any limit"):
        nna.InferenceSession(tmp_path / "f").run(None, grown(1, 1, 127))


def test_static_model_has_one_plan(tmp_path):
    text = f"{HEAD} g (float[2, 4] x) => (float[2, 4] y) {{ y = Relu (x) }}"
    nna.compile(parse(text), tmp_path / "f", devices=["fake_npu"])
    (plan,) = CompiledFile(tmp_path / "f").message.plans
    assert not plan.HasField("open") and plan.steps[0].HasField("program")


def test_files_of_previous_versions_are_accepted(tmp_path):
    nna.compile(parse(CHAIN), tmp_path / "f", devices=["fake_npu"], input_shapes={"x": (3, 4)})
    changed(tmp_path / "f", lambda message: message.__setattr__("version", 2))
    with nna.InferenceSession(tmp_path / "f") as loaded:
        agree(loaded, CHAIN, {"x": numbers(3, 4)})
    assert MESSAGES.new("Plan").open.ByteSize() == 0


SCALED = """
<ir_version: 10, opset_import: ["" : 17, "acme.ops" : 1]> g (float[n, m] x) => (float[n, m] y) {
    a = Relu(x)
    b = acme.ops.Scale<factor=2.0>(a)
    y = Neg(b)
}"""


def test_custom_kernels_get_static_plans_with_a_note(tmp_path):
    kernel = nna.register_kernel(
        "fake_npu",
        "Scale",
        lambda x, *, factor: x * np.float32(factor),
        domain="acme.ops",
        infer=lambda types, _: types[0],
    )
    try:
        nna.compile(parse(SCALED), tmp_path / "f", devices=["fake_npu"], input_shapes=[{"x": (2, 3)}, {"x": (5, 1)}])
        nna.compile(
            parse(SCALED), tmp_path / "open", devices=["fake_npu"], dynamic_shapes=True, input_shapes={"x": (2, 3)}
        )
        with nna.InferenceSession(tmp_path / "f") as loaded:
            for shape in ((2, 3), (5, 1)):
                x = numbers(*shape)
                np.testing.assert_array_equal(loaded.run(None, {"x": x})[0], -2 * np.maximum(x, 0))
                assert [step.device for step in loaded.provenance.steps] == ["fake_npu"]
        with nna.InferenceSession(tmp_path / "open") as loaded:
            assert "a plan for every set of input shapes" in " ".join(loaded.report().notes)
            with pytest.raises(InvalidInputError, match=r"--shape x=4,4 -o FILE\), or run the original model"):
                loaded.run(None, {"x": numbers(4, 4)})
    finally:
        nna.unregister_kernel(kernel)


def test_error_for_other_shapes_suggests_dynamic_shapes(files):
    shapes = {"x": (2, 4), "w": (2, 4)}
    feed = {"x": numbers(3, 4), "w": numbers(3, 4)}
    with (
        nna.InferenceSession(files(BROADCAST, "fake_npu", input_shapes=shapes)) as loaded,
        pytest.raises(InvalidInputError, match=r"-o FILE, with --dynamic-shapes for similar ones\), or run"),
    ):
        loaded.run(None, feed)


def test_similar_inputs_are_listed_once(tmp_path):
    cache = ", ".join(f"float[B, 4, ?, 16] past{layer}" for layer in range(12))
    made = ", ".join(f"float[B, 4, ?, 16] present{layer}" for layer in range(12))
    nodes = " ".join(f"present{layer} = Relu(past{layer})" for layer in range(12))
    text = f"{HEAD} g (float[B, 1] x, {cache}, float[B, 1] y) => (float[B, 1] z, {made}) {{ z = Add(x, y) {nodes} }}"
    told = "x=[B, 1], past0=[past0[0], 4, past0[2], 16] (and 11 inputs of the same shape), y=[B, 1]\n"
    assert told in compiled_in_words(tmp_path, text)
    text = f"{HEAD} g (float[2, 3] x, float[2, 3] y) => (float[2, 3] z) {{ z = Add(x, y) }}"
    assert "for x=[2, 3], y=[2, 3]\n" in compiled_in_words(tmp_path, text)


def compiled_in_words(folder, text):
    """Return the command line's output of a compilation."""
    onnx.save(parse(text), folder / "m.onnx")
    words = ["compile", f"{folder}/m.onnx", "-d", "fake_npu", "-o", f"{folder}/f"]
    return CliRunner().invoke(main, words, catch_exceptions=False).stdout


def test_default_size_equal_to_the_position_table(tmp_path):
    """At 128 the table of positions is used entirely, at no other length."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17]>
    g (float[n, t, 4] x) => (float[n, t, 4] y) {
        zero = Constant <value = int64[1] {0}> ()  one = Constant <value = int64[1] {1}> ()
        length = Shape <start = 1, end = 2> (x)
        places = Slice (table, zero, length, one)
        y = Add (x, places)
    }""")
    model.graph.initializer.append(numpy_helper.from_array(numbers(1, 128, 4), "table"))
    nna.compile(model, tmp_path / "f", devices=["fake_npu"], options=QUIET)
    with nna.InferenceSession(tmp_path / "f") as opened:
        for rows, length in ((2, 7), (1, 7), (3, 128), (1, 128), (2, 1), (1, 1), (5, 100)):
            feed = {"x": numbers(rows, length, 4)}
            for got, expected in zip(opened.run(None, feed), run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-5)
