"""Cached plans: the second session of a model runs the first one's plan, and no other session does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import nnadapter as nna
from benchmarks.models.language_models import Sizes, cache_names, first_feed, language_model
from nnadapter.engine import CachedPlanSource
from nnadapter.errors import CacheWarning, CompiledModelError, FallbackWarning, InvalidInputError, ModelFileError
from nnadapter.process import memoize
from nnadapter.store import UnusableError, read_entry
from tests.caching.nets import X, network
from tests.keeping_driver import FAULTS
from tests.models import CHAIN, HEAD, numbers, parse, run_whole
from tests.optional import needs

OPEN = f"{HEAD} g (float[N, 4] x) => (float[N, 4] y) {{ a = Relu(x) b = Exp(a) y = Add(b, x) }}"
NO_TWO_SHAPES = f"{HEAD} g (float[N, 4] x) => (int64[R, M] y) {{ a = Relu(x) y = NonZero(a) }}"
MODELS = pytest.mark.parametrize("device", ["fake_npu", "openvino", "acme_c", "qnn"], indirect=True)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "kept"


@pytest.fixture
def path(tmp_path):
    onnx.save_model(network(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.fixture(autouse=True)
def sound():
    yield
    FAULTS.clear()


def session(model, device, folder, **options):
    return nna.InferenceSession(model, devices=device, options=nna.Options(cache_dir=folder, **options))


def is_kept(opened):
    assert has_cache(opened)
    return isinstance((*opened._engine._retired, opened._engine.source)[0], CachedPlanSource)


def has_cache(opened):
    return isinstance(opened._engine.source, CachedPlanSource) or opened._engine.source._cache_writer is not None


def check(opened, model, feed, tolerance=1e-4):
    for one, other in zip(opened.run(None, feed), run_whole(model, feed), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def found(model, device, folder, feed=None, **options):
    """Return whether a session found its plan; check its results against ONNX Runtime."""
    read = onnx.load(model) if isinstance(model, os.PathLike) else onnx.load_from_string(model)
    with session(model, device, folder, **options) as opened:
        check(opened, read, {"x": X} if feed is None else feed, 5e-2 if device == "qnn" else 1e-4)
        return is_kept(opened)


@MODELS
def test_next_session_has_the_plan(path, folder, device):
    assert [found(path, device, folder) for _ in range(3)] == [False, True, True]


@pytest.mark.parametrize("device", ["fake_npu", "openvino"], indirect=True)
def test_cached_plan_imports_neither_onnx_nor_the_planner(path, folder, device):
    found(path, device, folder)
    code = (
        "import importlib.util, sys, numpy, nnadapter\n"
        "options = nnadapter.Options(cache_dir=sys.argv[3])\n"
        "with nnadapter.InferenceSession(sys.argv[1], devices=sys.argv[2], options=options) as session:\n"
        "    session.run(None, {'x': numpy.zeros((1, 3, 12, 12), numpy.float32)})\n"
        "rooms = ('converters', 'planning.planner', 'planning.setting', 'candidates', 'onnx.model', 'costs')\n"
        "wanted = [f'nnadapter.{room}' for room in rooms] + ['onnx', 'scipy', 'partition.by_cost']\n"
        "if sys.argv[2] == 'openvino': wanted.append('onnxruntime')\n"
        "print([name for name in wanted if name in sys.modules])\n"
        "assert all(map(importlib.util.find_spec, wanted)), 'a name that is no module'"
    )
    command = [sys.executable, "-c", code, str(path), device, str(folder)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("other", [{"filters": 4}, {"seed": 7}, {"scale": 1.0000001}, {"swapped": True}])
def test_other_weights_of_the_same_path_size_and_time(path, folder, other):
    def write(**changed):
        onnx.save_model(network(**changed), path)
        os.utime(path, (1, 1))

    for changed, is_hit in (({}, False), (other, False), ({}, True), (other, True)):
        write(**changed)
        assert found(path, "fake_npu", folder) is is_hit


def test_renamed_inputs_need_another_plan(folder):
    for names, is_hit in (
        (("x", "w", "v", "y"), False),
        (("input", "w", "v", "y"), False),
        (("x", "w", "v", "y"), True),
    ):
        model = network(names=names)
        assert found(model.SerializeToString(), "fake_npu", folder, {names[0]: X}) is is_hit


@needs("openvino")
@pytest.mark.parametrize("place", ["weights", "further/weights"])
def test_contents_of_external_data_are_in_the_key(tmp_path, folder, place):
    path = tmp_path / "model.onnx"
    (tmp_path / "further").mkdir()

    def write(seed):
        model = onnx.parser.parse_model(
            f"{HEAD} g (float[2, 200] x) => (float[2, 200] y) {{ a = MatMul(x, w) y = Relu(a) }}"
        )
        model.graph.initializer.append(numpy_helper.from_array(numbers(200, 200, seed=seed), "w"))
        (tmp_path / place).unlink(missing_ok=True)
        onnx.save_model(model, path, save_as_external_data=True, location=place)
        for each in (path, tmp_path / place):
            os.utime(each, (1, 1))

    for seed, is_hit in ((1, False), (1, True), (2, False), (2, True), (1, True)):
        write(seed)
        assert found(path, "openvino", folder, {"x": numbers(2, 200)}) is is_hit


def test_external_data_with_swapped_fields_is_not_cached(tmp_path, folder):
    """Protobuf writes an entry's key first; a file with the value first is never cached."""
    path = tmp_path / "model.onnx"
    model = onnx.parser.parse_model(f"{HEAD} g (float[2, 200] x) => (float[2, 200] y) {{ y = MatMul(x, w) }}")
    model.graph.initializer.append(numpy_helper.from_array(numbers(200, 200), "w"))
    onnx.save_model(model, path, save_as_external_data=True, location="weights")
    usual, unusual = b"\x0a\x08location\x12\x07weights", b"\x12\x07weights\x0a\x08location"
    contents = path.read_bytes()
    assert contents.count(usual) == 1
    path.write_bytes(contents.replace(usual, unusual))
    for _ in range(2):
        with session(path, "fake_npu", folder) as opened:
            check(opened, onnx.load(path), {"x": numbers(2, 200)})
            assert not has_cache(opened)


def test_options_and_rule_contents_are_in_the_key(path, folder, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text("[[ban]]\nop_type = 'Relu'\ndevice = 'fake_npu'")
    assert [found(path, "fake_npu", folder) for _ in range(2)] == [False, True]
    assert [found(path, "fake_npu", folder, rules=rules) for _ in range(2)] == [False, True]
    rules.write_text("[[ban]]\nop_type = 'Conv'\ndevice = 'fake_npu'")
    assert [found(path, "fake_npu", folder, rules=rules) for _ in range(2)] == [False, True]
    assert [found(path, ("fake_npu", {"threads": 1}), folder) for _ in range(2)] == [False, True]
    assert found(path, "fake_npu", folder)
    with session(path, "fake_npu", folder, rules=rules) as opened:
        opened.run(None, {"x": X})
        assert {step.device for step in opened.provenance.steps} == {"cpu", "fake_npu"}


@pytest.mark.parametrize("device", ["fake_npu", "openvino"], indirect=True)
def test_plans_for_further_shapes_are_cached_too(folder, device):
    model = parse(OPEN).SerializeToString()
    assert not found(model, device, folder, {"x": numbers(2, 4)})
    for rows in (3, 5):
        with session(model, device, folder) as opened:
            for count in (2, rows, 2):
                check(opened, parse(OPEN), {"x": numbers(count, 4)})
            assert opened.report().segments
    with session(model, device, folder) as opened:
        for count in (2, 3, 5, 7):
            check(opened, parse(OPEN), {"x": numbers(count, 4)})
        assert is_kept(opened) and isinstance(opened._engine.source, CachedPlanSource), "one plan serves them all"


def test_run_survives_replacement_of_its_cached_plan(folder, monkeypatch):
    model, together = parse(OPEN).SerializeToString(), Barrier(2)
    with session(model, "fake_npu", folder) as opened:
        for rows in (2, 3, 5):  # the second plan also serves other sizes
            check(opened, parse(OPEN), {"x": numbers(rows, 4)})
    take = CachedPlanSource.take

    def take_late(self, *arguments):
        taken = take(self, *arguments)
        together.wait(30)  # the plan is taken
        together.wait(30)  # the source is replaced
        return taken

    with session(model, "fake_npu", folder) as opened, ThreadPoolExecutor(1) as pool:
        serving = opened._engine._serving
        with monkeypatch.context() as patch:
            patch.setattr(CachedPlanSource, "take", take_late)
            run = pool.submit(check, opened, parse(OPEN), {"x": numbers(4, 4)})
            together.wait(30)
            opened._engine._replace(serving, CompiledModelError("an entry is damaged"))
            together.wait(30)
            run.result(30)
        for rows in (6, 7, 6):
            check(opened, parse(OPEN), {"x": numbers(rows, 4)})
        assert opened._engine.source.counts.compiled, "the cached plan serves runs no more"


@pytest.mark.parametrize("device", ["fake_npu", "openvino"], indirect=True)
def test_static_plans_per_shape_are_cached(folder, device):
    model = parse(NO_TWO_SHAPES).SerializeToString()
    for count in range(2, 6):
        found(model, device, folder, {"x": numbers(count, 4)})
    with session(model, device, folder) as opened:
        for count in range(2, 6):
            check(opened, parse(NO_TWO_SHAPES), {"x": numbers(count, 4)})
        assert isinstance(opened._engine.source, CachedPlanSource)


def test_concurrently_made_plans_are_all_cached(folder):
    model, counts = parse(NO_TWO_SHAPES), range(1, 7)
    for number in range(5):
        together = Barrier(len(counts))

        def run(opened, count, together=together):
            together.wait()
            opened.run(None, {"x": numbers(count, 4)})

        with session(model, "fake_npu", folder / str(number)) as opened, ThreadPoolExecutor(len(counts)) as pool:
            list(pool.map(partial(run, opened), counts))
        with session(model, "fake_npu", folder / str(number)) as opened:
            for count in counts:
                opened.run(None, {"x": numbers(count, 4)})
                assert is_kept(opened) and isinstance(opened._engine.source, CachedPlanSource), (number, count)


@pytest.mark.parametrize("device", ["fake_npu", "openvino", "acme_c"], indirect=True)
def test_language_model_with_a_growing_cache(folder, device):
    sizes = Sizes(layers=2, width=32, heads=4, words=40)
    model = language_model(sizes).SerializeToString()
    kept = []
    for _ in range(2):
        with session(model, device, folder) as opened, nna.InferenceSession(model, devices="cpu") as plain:
            feed = dict(first_feed(sizes, (1, 2, 3)))
            for _ in range(5):
                got, wanted = opened.run(None, feed), plain.run(None, feed)
                for one, other in zip(got, wanted, strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
                names = [f"past.{name}" for name in cache_names(sizes)]
                feed = {"ids": np.array([[7]], np.int64), **dict(zip(names, wanted[1:], strict=True))}
            kept.append(is_kept(opened) and isinstance(opened._engine.source, CachedPlanSource))
    assert kept == [False, True]


@pytest.mark.slow
def test_device_failure_falls_back_as_without_a_cache(folder):
    model = parse(CHAIN).SerializeToString()
    feed = {"x": numbers(2, 3)}
    assert [found(model, "keeping", folder, feed) for _ in range(2)] == [False, True]
    with session(model, "keeping", folder) as opened:
        check(opened, parse(CHAIN), feed)
        FAULTS.add("compute raises")
        with pytest.warns(FallbackWarning, match="it runs on the CPU instead"):
            check(opened, parse(CHAIN), feed)
        check(opened, parse(CHAIN), feed)
        assert opened.report().segments[0].failures


def test_failing_plan_falls_back_as_without_a_cache(folder):
    model = f"{HEAD} g (float[2, 3] x, int64[1] n) => (float[M] y) {{ a = Abs(n) y = Reshape(x, a) }}"
    feed = {"x": numbers(2, 3), "n": np.array([6])}
    for is_hit in (False, True, True):
        with session(parse(model), "null", folder) as opened:
            assert is_kept(opened) is is_hit
            with pytest.warns(FallbackWarning, match="cannot continue as planned"):
                np.testing.assert_array_equal(opened.run(None, feed)[0], feed["x"].reshape(-1))
            with pytest.raises(InvalidInputError):
                opened.run(None, {**feed, "n": np.array([5])})
            np.testing.assert_array_equal(opened.run(None, feed)[0], feed["x"].reshape(-1))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["deserialize raises", "check_blob raises", "deserialize gives nothing"])
def test_rejected_program_is_compiled_again(folder, fault):
    model, feed = parse(CHAIN).SerializeToString(), {"x": numbers(2, 3)}
    found(model, "keeping", folder, feed)
    FAULTS.add(fault)
    with pytest.warns(CacheWarning):
        assert not found(model, "keeping", folder, feed)
    FAULTS.clear()
    assert found(model, "keeping", folder, feed)


def test_deleted_program_is_compiled_again(path, folder):
    found(path, "fake_npu", folder)
    (program,) = folder.glob("*.program")
    program.unlink()
    assert [found(path, "fake_npu", folder) for _ in range(2)] == [False, True]


@pytest.mark.parametrize("step", [199, pytest.param(1, marks=pytest.mark.fuzz)])
@pytest.mark.filterwarnings("ignore::nnadapter.errors.CacheWarning")
def test_damaged_entry_is_never_run(path, folder, step):
    found(path, "fake_npu", folder)
    (plan,) = folder.glob("*.plan")
    whole = plan.read_bytes()
    damaged = [whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in range(0, len(whole), step)]
    for contents in [*damaged, *(whole[:at] for at in range(0, len(whole), step))]:
        plan.write_bytes(contents)
        with session(path, "fake_npu", folder) as opened:
            check(opened, network(), {"x": X})
            if is_kept(opened):
                with pytest.raises(UnusableError):  # padding between parts is not read
                    read_entry(plan).verify()
    plan.write_bytes(whole)
    assert found(path, "fake_npu", folder)


def test_entry_with_another_key_is_not_used(path, folder, tmp_path):
    found(path, "fake_npu", folder)
    other = tmp_path / "other.onnx"
    onnx.save_model(network(seed=9), other)
    found(other, "fake_npu", folder)
    first, second = sorted(folder.glob("*.plan"))
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    with pytest.warns(CacheWarning, match="but with another key"):
        assert not found(path, "fake_npu", folder)
    assert not found(other, "fake_npu", folder)


def test_model_file_replaced_during_a_session(folder, tmp_path):
    """Existing plans still run; new planning fails with a message about the replaced file."""
    path = tmp_path / "model.onnx"

    def write(text):
        onnx.save_model(parse(text), tmp_path / "beside")
        (tmp_path / "beside").replace(path)

    write(NO_TWO_SHAPES)
    feed = {"x": numbers(2, 4)}
    found(path, "fake_npu", folder, feed)
    with session(path, "fake_npu", folder) as opened:
        write(OPEN)
        check(opened, parse(NO_TWO_SHAPES), feed)
        with pytest.raises(ModelFileError, match="has changed since the session was created"):
            opened.run(None, {"x": numbers(3, 4)})
        check(opened, parse(NO_TWO_SHAPES), feed)
    assert not found(path, "fake_npu", folder, feed)


def test_editing_the_model_does_not_affect_the_session(folder):
    feeds = [{"x": numbers(count, 4)} for count in (2, 3)]
    for is_hit in (False, True):
        model = parse(NO_TWO_SHAPES)
        with session(model, "fake_npu", folder) as opened:
            model.graph.node[0].op_type = "Neg"
            for feed in feeds[: 1 + is_hit]:
                check(opened, parse(NO_TWO_SHAPES), feed)
            assert is_kept(opened) is is_hit


def test_report_and_signature_of_a_cached_plan(path, folder):
    with session(path, ["fake_npu"], folder) as opened:
        opened.run(None, {"x": X})
        first = opened.report()
        assert "no usable plan was cached: nothing is cached" in first.notes
        told = [(value.name, value.shape, value.type) for value in (*opened.get_inputs(), *opened.get_outputs())]
        devices = opened.devices
    with session(path, ["fake_npu"], folder) as opened:
        assert opened.report().segments[0].cache.hit
        opened.run(None, {"x": X})
        second = opened.report()
        assert "the plan was cached by an earlier session" in second.notes
        assert second.segments[0].cache.hit and second.segments[0].seconds
        assert [node.device for node in second.nodes] == [node.device for node in first.nodes]
        assert [
            (value.name, value.shape, value.type) for value in (*opened.get_inputs(), *opened.get_outputs())
        ] == told
        assert opened.devices == devices == tuple(opened.get_providers())
        assert [step.device for step in opened.provenance.steps] == ["fake_npu"]
    with session(path, ("fake_npu", {"threads": 1}), folder) as opened:
        assert any("differs in options (fake_npu.threads" in note for note in opened.report().notes)


def test_compile_times_are_not_reported_for_cached_plans(path, folder):
    @memoize(4)
    def squared(number):
        return number * number

    with session(path, ["fake_npu"], folder) as opened:
        opened.run(None, {"x": X})
        assert all(segment.compile_seconds for segment in opened.report().segments if segment.device == "fake_npu")
    squares = [squared(number) for number in (1, 2, 1, 1)]
    with session(path, ["fake_npu"], folder) as opened:
        opened.run(None, {"x": X})
        assert is_kept(opened)
        report = opened.report()
    counted = {each.name: (each.hits, each.misses) for each in report.caches}
    (own,) = (counts for name, counts in counted.items() if name.endswith("squared"))
    assert own == (2, 2) and squares == [1, 4, 1, 1]
    assert all(segment.cache.hit for segment in report.segments if segment.device == "fake_npu")
    assert not any(segment.compile_seconds for segment in report.segments)


def test_binding_runs_a_cached_plan(path, folder):
    found(path, "fake_npu", folder)
    with session(path, "fake_npu", folder) as opened:
        assert is_kept(opened)
        binding = opened.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_output("y")
        opened.run_with_iobinding(binding)
        np.testing.assert_allclose(
            binding.copy_outputs_to_cpu()[0], run_whole(network(), {"x": X})[0], rtol=1e-4, atol=1e-4
        )


def test_closed_session_stays_closed(folder):
    model = parse(NO_TWO_SHAPES).SerializeToString()
    found(model, "fake_npu", folder, {"x": numbers(2, 4)})
    opened = session(model, "fake_npu", folder)
    opened.close()
    opened.close()
    for count in (2, 3):
        with pytest.raises(nna.errors.ClosedError):
            opened.run(None, {"x": numbers(count, 4)})


def test_unwritable_cache_folder_warns(path, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(CacheWarning) as seen, session(path, "fake_npu", tmp_path / "file") as opened:
        check(opened, network(), {"x": X})
        (note,) = opened.report().notes
    place = repr(str(tmp_path / "file"))
    unwritten = f"{place} cannot be written: File exists"
    assert note.endswith(f"cannot be read: Not a directory; its plan is not cached: {unwritten}")
    plan, program, written = (str(each.message).replace(place, "FOLDER") for each in seen)
    for kind, read in (("plan", plan), ("program", program)):
        entry = rf"{re.escape(place[:-1])}/[0-9a-f.-]+\.{kind}'"
        assert re.fullmatch(rf"cache FOLDER: {entry} cannot be read: Not a directory; it is created again", read)
    advice = "free some space, or pass another folder as cache_dir or NNADAPTER_CACHE_DIR"
    assert written == f"the cache is not written: {unwritten}; {advice}".replace(place, "FOLDER")
