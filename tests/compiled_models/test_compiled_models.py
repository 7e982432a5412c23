"""Compiled models, which give the results of the original model without it."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import onnx
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.drivers import Compatibility, registry
from nnadapter.drivers.selection import check_options
from nnadapter.engine import VERSION
from nnadapter.errors import (
    CompilationError,
    CompiledModelError,
    DeviceUnavailableError,
    ExecutionError,
    FallbackWarning,
    InvalidInputError,
    InvalidOptionError,
)
from tests.compiled_models.files import BAN, X, changed, network
from tests.models import CHAIN, HEAD, SANDWICH, numbers, parse, run_whole


def compiled(path, model, **arguments):
    nna.compile(model, path, **arguments)
    return nna.InferenceSession(path)


@pytest.mark.parametrize("device", ["cpu", "fake_npu", "openvino", "acme_c"])
def test_compiled_file_equals_the_session(tmp_path, device, request):
    if device == "acme_c":
        request.getfixturevalue("acme")
    rules = BAN.format(device) if device != "cpu" else ""
    options = nna.Options(rules=rules) if rules else None
    with nna.InferenceSession(network(), devices=[device], options=options) as session:
        expected, steps = session.run(None, X), session.provenance.steps
    with compiled(tmp_path / "f", network(), devices=[device], options=options) as loaded:
        for _ in range(3):
            got = loaded.run(None, X)
        assert [step.device for step in loaded.provenance.steps] == [step.device for step in steps]
        for left, right in zip(expected, got, strict=True):
            np.testing.assert_array_equal(left, right)
        assert loaded.report().notes == ()
        assert [segment.device for segment in loaded.report().segments] == [step.device for step in steps]
        assert all(segment.seconds for segment in loaded.report().segments)


def test_signature_and_metadata_equal_the_model(tmp_path):
    model = parse(SANDWICH)
    model.producer_name, model.doc_string = "somebody", "something"
    model.metadata_props.add(key="a", value="b")
    whole = onnxruntime.InferenceSession(model.SerializeToString())
    with compiled(tmp_path / "f", model, devices=["null"], input_shapes={"x": (2, 4)}) as session:
        got, wanted = session.get_modelmeta(), whole.get_modelmeta()
        names = ("producer_name", "graph_name", "domain", "description", "custom_metadata_map", "version")
        assert [getattr(got, name) for name in names] == [getattr(wanted, name) for name in names]
        for ours, theirs in ((session.get_inputs(), whole.get_inputs()), (session.get_outputs(), whole.get_outputs())):
            assert [(a.name, a.shape, a.type) for a in ours] == [(a.name, a.shape, a.type) for a in theirs]


def test_several_compiled_shapes_and_a_missing_one(tmp_path):
    model, shapes = parse(SANDWICH), [{"x": (2, 4)}, {"x": (5, 4)}]
    with compiled(tmp_path / "f", model, devices=["fake_npu"], input_shapes=shapes) as session:
        for rows in (2, 5, 2):
            x = {"x": numbers(rows, 4)}
            np.testing.assert_allclose(session.run(None, x)[0], run_whole(model, x)[0], rtol=1e-5, atol=1e-6)
        with pytest.raises(InvalidInputError, match=r"x=\[2, 4\] or x=\[5, 4\], got x=\[3, 4\]; compile it"):
            session.run(None, {"x": numbers(3, 4)})


def test_other_shapes_use_the_stored_model(tmp_path):
    model = parse(SANDWICH)
    arguments = {"devices": ["fake_npu"], "input_shapes": {"x": (2, 4)}, "keep_model": True}
    with compiled(tmp_path / "f", model, **arguments) as session:
        for rows, device in ((2, "fake_npu"), (3, "cpu"), (7, "cpu")):
            x = {"x": numbers(rows, 4)}
            np.testing.assert_allclose(session.run(None, x)[0], run_whole(model, x)[0], rtol=1e-5, atol=1e-6)
            assert session.provenance.steps[0].device == device
        assert "the CPU ran the original model" in session.report().notes[-1]


def test_initializer_inputs_constant_outputs_and_passed_inputs(tmp_path):
    text = f"""{HEAD} g (float[2] x, float[2] b) => (float[2] y, float[2] x, float[2] c, int64[1] s)
    <float[2] b = {{1, 2}}, float[2] k = {{3, 4}}> {{
        y = Add(x, b)
        c = Identity(k)
        s = Shape(x)
    }}"""
    model, x = onnx.parser.parse_model(text), {"x": numbers(2)}
    for devices in (["fake_npu"], ["cpu"]):
        with compiled(tmp_path / "f", model, devices=devices) as session:
            for feed in (x, {**x, "b": numbers(2, seed=1)}):
                for left, right in zip(session.run(None, feed), run_whole(model, feed), strict=True):
                    np.testing.assert_array_equal(left, right)
            assert [each.name for each in session.get_overridable_initializers()] == ["b"]


@pytest.mark.parametrize(
    ("device", "blocked"),
    [("fake_npu", "onnx,scipy,onnxruntime"), ("openvino", "onnx,scipy,onnxruntime"), ("cpu", "onnx,scipy")],
)
def test_file_runs_without_onnx_scipy_and_the_model(tmp_path, device, blocked):
    path = tmp_path / "f"
    nna.compile(network(), path, devices=[device])
    np.savez(tmp_path / "x.npz", **X)
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, path, tmp_path / "x.npz", tmp_path / "y.npy", blocked],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), run_whole(network(), X)[0], rtol=1e-5, atol=1e-6)


BLOCKED = """
import sys
path, feed, out, blocked = sys.argv[1:]

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked.split(","):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import numpy as np
import nnadapter as nna

with nna.InferenceSession(path) as session:
    np.save(out, session.run(None, dict(np.load(feed)))[0])
    assert str(session.report())
heavy = [name for name in sys.modules if name.startswith(("nnadapter.converters.", "partition.by_cost."))]
assert not heavy, heavy
"""


def test_file_is_accepted_as_bytes(tmp_path):
    nna.compile(parse(CHAIN), tmp_path / "f", devices=["fake_npu"])
    with nna.InferenceSession((tmp_path / "f").read_bytes()) as session:
        x = {"x": numbers(2, 3)}
        np.testing.assert_allclose(session.run(None, x)[0], run_whole(parse(CHAIN), x)[0], rtol=1e-6)


def test_bindings_threads_and_streams(tmp_path):
    rules = BAN.format("fake_npu")
    with compiled(tmp_path / "f", network(), devices=["fake_npu"], options={"rules": rules}) as session:
        expected = session.run(None, X)
        binding = session.io_binding()
        binding.bind_cpu_input("x", X["x"])
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], expected[0])
        wrong = []

        def run():
            wrong.extend(not np.array_equal(session.run(None, X)[1], expected[1]) for _ in range(20))

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not any(wrong)
        assert all(np.array_equal(result[0], expected[0]) for result in session.stream([X] * 5))


def test_weights_are_stored_once(tmp_path):
    weight = numbers(300, 300)
    model = _two_products(weight)
    path = tmp_path / "f"
    nna.compile(model, path, devices=["cpu"])
    alone = path.stat().st_size
    assert alone < 1.2 * weight.nbytes
    nna.compile(model, path, devices=["null"], options={"rules": BAN.format("null")}, keep_model=True)
    assert path.stat().st_size < 2.3 * weight.nbytes  # at most one transposed copy


def _two_products(weight):
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("MatMul", ["x", "w"], ["a"]),
            onnx.helper.make_node("Erf", ["a"], ["b"]),
            onnx.helper.make_node("MatMul", ["b", "w"], ["y"]),
        ],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, [1, 300])],
        [onnx.helper.make_tensor_value_info("y", 1, [1, 300])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def test_changed_device_options_recompile_the_program(tmp_path):
    pytest.importorskip("openvino")
    path = tmp_path / "f"
    nna.compile(parse(CHAIN), path, devices=["openvino"])
    x = {"x": numbers(2, 3)}
    with nna.InferenceSession(path) as session:
        expected = session.run(None, x)[0]
        assert session.report().notes == ()

    changed(path, lambda message: message.devices[0].options["threads"].__setattr__("int", 1))
    with nna.InferenceSession(path) as session:
        np.testing.assert_allclose(session.run(None, x)[0], expected, rtol=1e-6)
        assert "segment 0 was compiled again for openvino" in session.report().notes[0]


def absent(message):
    message.devices[0].name = "acme_nowhere"
    for plan in message.plans:
        plan.steps[0].device = "acme_nowhere"


def test_absent_device_is_an_error_or_replaced(tmp_path):
    path, x = tmp_path / "f", {"x": numbers(2, 3)}
    nna.compile(parse(CHAIN), path, devices=["fake_npu"])
    changed(path, absent)
    with pytest.raises(
        DeviceUnavailableError, match="acme_nowhere.*run it where the device is, or replace it by the CPU"
    ):
        nna.InferenceSession(path)
    with nna.InferenceSession(path, options=nna.Options(fallback="allow")) as session:
        np.testing.assert_allclose(session.run(None, x)[0], run_whole(parse(CHAIN), x)[0], rtol=1e-6)
        assert "the CPU runs a segment that was compiled for acme_nowhere" in session.report().notes[0]
    nna.compile(parse(CHAIN), path, devices=["fake_npu"], options={"fallback": "forbid"})
    changed(path, absent)
    with pytest.raises(CompiledModelError, match="compile the model again with fallback allowed"):
        nna.InferenceSession(path, options=nna.Options(fallback="allow"))


def test_devices_of_the_file_may_be_selected(tmp_path):
    path, x = tmp_path / "f", {"x": numbers(2, 3)}
    nna.compile(parse(CHAIN), path, devices=["fake_npu"])
    with nna.InferenceSession(path, devices=["cpu"]) as session:
        np.testing.assert_allclose(session.run(None, x)[0], run_whole(parse(CHAIN), x)[0], rtol=1e-6)
        assert session.provenance.steps[0].device == "cpu"
    with nna.InferenceSession(path, devices=["fake_npu"]) as session:
        session.run(None, x)
        assert session.provenance.steps[0].device == "fake_npu"
    with pytest.raises(InvalidOptionError, match="compiled for 'fake_npu', but device 'null' was requested"):
        nna.InferenceSession(path, devices=["null"])


def test_report_lists_isolated_devices(tmp_path):
    nna.compile(parse(CHAIN), tmp_path / "chain.nna", devices="fake_npu")
    for isolate, told in ((False, ()), (True, ("fake_npu",))):
        with nna.InferenceSession(tmp_path / "chain.nna", options=nna.Options(isolate=isolate)) as session:
            session.run(None, {"x": numbers(2, 3)})
            assert session.report().isolated == told


def test_failing_run_falls_back_to_the_cpu(tmp_path):
    path, x = tmp_path / "f", {"x": numbers(2, 3)}
    nna.compile(parse(CHAIN), path, devices=[("trial", {"fault": "compute"})])
    with nna.InferenceSession(path) as session:
        with pytest.warns(FallbackWarning, match="'trial' failed while it ran segment 0.*runs on the CPU instead"):
            result = session.run(None, x)[0]
        np.testing.assert_allclose(result, run_whole(parse(CHAIN), x)[0], rtol=1e-6)
        assert session.provenance.fell_back
        assert session.report().segments[0].failures
    session = nna.InferenceSession(path, options=nna.Options(fallback="forbid"))
    with session, pytest.raises(ExecutionError, match="fallback is forbidden"):
        session.run(None, x)


def test_failing_recompilation_falls_back_to_the_cpu(tmp_path):
    path, x = tmp_path / "f", {"x": numbers(2, 3)}
    nna.compile(parse(CHAIN), path, devices=["trial"])
    changed(path, lambda message: message.devices[0].options["fault"].__setattr__("string", "compile"))
    with pytest.warns(FallbackWarning, match="compile its segment again.*internal compiler error 7"):
        session = nna.InferenceSession(path)
    with session:
        np.testing.assert_allclose(session.run(None, x)[0], run_whole(parse(CHAIN), x)[0], rtol=1e-6)
        assert "the CPU runs a segment that was compiled for trial" in session.report().notes[0]
    with pytest.raises(CompilationError, match="fallback is forbidden"):
        nna.InferenceSession(path, options=nna.Options(fallback="forbid"))


def test_session_options_reach_cpu_segments(tmp_path):
    nna.compile(network(), tmp_path / "f", devices=["cpu"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for _ in range(2):  # weights are not reused between sessions
        with nna.InferenceSession(tmp_path / "f", options) as session:
            np.testing.assert_allclose(session.run(None, X)[0], run_whole(network(), X)[0], rtol=1e-5, atol=1e-6)


def test_newer_version_asks_for_an_update(tmp_path):
    nna.compile(parse(CHAIN), tmp_path / "f", devices=["null"])
    changed(tmp_path / "f", lambda message: message.__setattr__("version", VERSION + 1))
    with pytest.raises(CompiledModelError, match="update nnadapter"):
        nna.InferenceSession(tmp_path / "f")


def test_invalid_source_and_target_are_refused(tmp_path):
    nna.compile(parse(CHAIN), tmp_path / "f", devices=["null"])
    with pytest.raises(InvalidOptionError, match="already compiled"):
        nna.compile(tmp_path / "f", tmp_path / "g", devices=["null"])
    with pytest.raises(InvalidOptionError, match="cannot be written"):
        nna.compile(parse(CHAIN), tmp_path / "nowhere" / "g", devices=["null"])
    with pytest.raises(InvalidOptionError):
        nna.compile(parse(CHAIN), tmp_path, devices=["null"])


def test_openvino_recognizes_its_programs_by_their_headers():
    pytest.importorskip("openvino")
    context = registry.open_device("openvino:CPU").create_context
    options = check_options("openvino:CPU", {})
    here, other = context(options), context({**options, "threads": 1})
    blob = here.compile(parse(CHAIN)).serialize()
    assert here.check_blob(memoryview(blob)) is Compatibility.IDENTICAL
    assert other.check_blob(memoryview(blob)) is Compatibility.RECOMPILE
    assert here.check_blob(memoryview(b"something else")) is Compatibility.INCOMPATIBLE
    assert here.check_blob(memoryview(blob.replace(b'"seal"', b'"sael"'))) is Compatibility.RECOMPILE


@pytest.mark.slow
@pytest.mark.parametrize("device", ["fake_npu", "cpu"])
def test_every_requested_set_of_shapes_has_a_plan(device, tmp_path):
    model = parse(f"{HEAD} g (float[n, 4] x) => (float[n, 4] y) {{ t = Relu(x) y = Add(t, x) }}")
    rows = (2, 3, 5, 7, 1)
    shapes, options = [{"x": (size, 4)} for size in rows], nna.Options(max_plans=2)
    with compiled(tmp_path / "m", model, devices=device, input_shapes=shapes, options=options) as session:
        for size in rows:
            feed = {"x": numbers(size, 4, seed=size)}
            np.testing.assert_array_equal(session.run(None, feed)[0], run_whole(model, feed)[0])
            assert [step.device for step in session.provenance.steps] == [device]
        with pytest.raises(InvalidInputError, match=r"got x=\[4, 4\]"):
            session.run(None, {"x": numbers(4, 4)})


WITH_SESSION_OPTIONS = """
import sys
path, feed, out = sys.argv[1:]

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("onnx", "scipy"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import numpy as np
import onnxruntime
import nnadapter as nna

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
with nna.InferenceSession(path, options) as session:
    np.save(out, session.run(None, dict(np.load(feed)))[0])
    assert "cpu" in [step.device for step in session.provenance.steps]
"""


def test_session_options_work_without_onnx(tmp_path):
    weights = ", ".join(map(str, range(512)))
    text = f"""<ir_version: 10, opset_import: ["" : 17]> g (float[2, 16] x) => (float[2, 32] y)
        <float[16, 32] w = {{{weights}}}> {{ a = Relu(x)  b = MatMul(a, w)  y = Neg(b) }}"""
    feed = {"x": numbers(2, 16)}
    path, given, out = tmp_path / "f", tmp_path / "x.npz", tmp_path / "y.npy"
    nna.compile(parse(text), path, devices=["cpu"])
    np.savez(given, **feed)
    command = [sys.executable, "-c", WITH_SESSION_OPTIONS, str(path), str(given), str(out)]
    subprocess.run(command, check=True, timeout=120)
    np.testing.assert_allclose(np.load(out), run_whole(parse(text), feed)[0], rtol=1e-5)
