"""The stand-in for onnxruntime: names, errors, and clients that do not know."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as native

import nnadapter as nna
from nnadapter import ort
from tests.models import CHAIN, HEAD, numbers, parse

WHOLE = parse(CHAIN).SerializeToString()


@pytest.fixture
def trial():
    ort.use("trial")
    yield
    ort.use([])


def test_every_public_name_of_onnxruntime_is_there():
    for name in dir(onnxruntime):
        if not name.startswith("_"):
            assert hasattr(ort, name) and name in dir(ort)
    assert issubclass(ort.SessionOptions, onnxruntime.SessionOptions) and ort.__version__ == onnxruntime.__version__


def test_chosen_devices_come_before_the_client_s_providers(trial):
    session = ort.InferenceSession(WHOLE, providers=["CPUExecutionProvider"])
    assert session.devices == ("trial", "cpu")
    assert session.get_providers() == ["trial", "CPUExecutionProvider"]
    assert "CPUExecutionProvider" in ort.get_available_providers()
    assert session.run(None, {"x": numbers(2, 3)})[0].shape == (2, 3)
    assert [step.device for step in session.provenance.steps] == ["trial"]


def test_without_chosen_devices_it_is_onnxruntime():
    x = numbers(2, 3)
    session = ort.InferenceSession(WHOLE, ort.SessionOptions(), providers=["CPUExecutionProvider"])
    expected = onnxruntime.InferenceSession(WHOLE).run(None, {"x": x})[0]
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert np.array_equal(session.run(None, {"x": x})[0], expected)


@pytest.mark.parametrize("chosen", [[], "trial"])
@pytest.mark.parametrize(
    ("feed", "theirs", "ours"),
    [
        ({}, ValueError, nna.errors.MissingInputError),
        ({"x": numbers(2, 3), "z": numbers(1)}, native.InvalidArgument, nna.errors.InvalidInputError),
        ({"x": numbers(2, 3).astype("float64")}, native.InvalidArgument, nna.errors.InputTypeError),
        ({"x": numbers(3, 3)}, native.InvalidArgument, nna.errors.InvalidInputError),
    ],
)
def test_errors_are_onnxruntime_s_as_well(chosen, feed, theirs, ours):
    ort.use(chosen)
    try:
        session = ort.InferenceSession(WHOLE, providers=["CPUExecutionProvider"])
        for expected in (theirs, ours):
            with pytest.raises(expected):
                session.run(None, feed)
        with pytest.raises(theirs):
            onnxruntime.InferenceSession(WHOLE).run(None, feed)
    finally:
        ort.use([])


@pytest.mark.parametrize("chosen", [[], "trial"])
@pytest.mark.parametrize(
    ("source", "theirs"),
    [("/no/such/model.onnx", native.NoSuchFile), (b"garbage", native.InvalidProtobuf), (3, TypeError)],
)
def test_errors_of_loading_are_onnxruntime_s_as_well(chosen, source, theirs):
    ort.use(chosen)
    try:
        with pytest.raises(theirs):
            ort.InferenceSession(source)
        with pytest.raises(theirs):
            onnxruntime.InferenceSession(source)
    finally:
        ort.use([])


def test_a_client_that_does_not_know_runs_on_the_device():
    code = """
import sys
import nnadapter as nna
nna.ort.install()
nna.ort.use("null")
import onnx
import onnxruntime
from onnxruntime import InferenceSession
from onnxruntime.capi import onnxruntime_pybind11_state
import onnxruntime.capi.onnxruntime_validation
assert onnxruntime is nna.ort and issubclass(InferenceSession, nna.InferenceSession)
from onnx import parser
text = '<ir_version: 10, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
session = InferenceSession(parser.parse_model(text).SerializeToString(), providers=["CPUExecutionProvider"])
assert session.get_providers() == ["null", "CPUExecutionProvider"]
nna.ort.uninstall()
import onnx
import onnxruntime
assert onnxruntime is not nna.ort
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_runs_below_the_stand_in_is_onnxruntime():
    """Modules and functions that import late would get the stand-in, and with it the chosen device once more."""
    code = """
import nnadapter as nna
nna.ort.install()
nna.ort.use("null")
import numpy as np
from onnx import parser
text = '<ir_version: 10, opset_import: ["" : 17]> g (float[3] x) => (int64[2] s, float[3] y) '
text += "{ n = NonZero(x) s = Shape(n) y = Relu(x) }"
with nna.InferenceSession(parser.parse_model(text).SerializeToString(), devices=["null", "cpu"]) as session:
    size, _ = session.run(None, {"x": np.float32([1, 0, 2])})
    assert size.tolist() == [1, 2], size
    assert [step.device for step in session.provenance.steps].count("cpu") == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_devices_that_do_not_exist_are_refused_when_chosen():
    with pytest.raises(nna.errors.DeviceNotFoundError):
        ort.use("trail")
    with pytest.raises(nna.errors.InvalidOptionError):
        ort.use(("trial", {"falt": 1}))
    with pytest.raises(nna.errors.InvalidOptionError, match="fallback"):
        ort.use("trial", options={"fallbak": "allow"})


@pytest.mark.parametrize("devices", ["fake_npu", []])
def test_options_are_those_of_sessions_that_are_given_none(devices, tmp_path):
    def kept(folder, **given):
        with ort.InferenceSession(WHOLE, providers=["CPUExecutionProvider"], **given) as session:
            session.run(None, {"x": numbers(2, 3)})
        return folder.is_dir() and any(folder.rglob("*"))

    ort.use(devices, options={"cache_dir": tmp_path / "a"})
    try:
        named = {} if devices else {"devices": "fake_npu"}
        assert kept(tmp_path / "a", **named)
        assert kept(tmp_path / "b", devices="fake_npu", options={"cache_dir": tmp_path / "b"})
        shutil.rmtree(tmp_path / "a")
        assert not kept(tmp_path / "a", devices="fake_npu", options={"cache_dir": False})
    finally:
        ort.use([])
    assert not kept(tmp_path / "a", devices="fake_npu")


def test_the_last_word_on_devices_is_the_client_s(trial):
    assert ort.InferenceSession(WHOLE, devices="cpu").devices == ("cpu",)


def test_the_path_of_a_model_is_where_clients_look_for_it(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(WHOLE)
    for given, expected in ((path, str(path)), (str(path), str(path)), (WHOLE, None)):
        theirs, ours = onnxruntime.InferenceSession(given), ort.InferenceSession(given)
        assert ours._model_path == theirs._model_path == expected


@pytest.mark.parametrize("chosen", [[], "trial"])
def test_errors_of_bindings_are_onnxruntime_s_as_well(chosen):
    ort.use(chosen)
    try:
        for session in (ort.InferenceSession(WHOLE), onnxruntime.InferenceSession(WHOLE)):
            binding = session.io_binding()
            binding.bind_output(session.get_outputs()[0].name)
            with pytest.raises(RuntimeError):
                session.run_with_iobinding(binding)
            value = onnxruntime.OrtValue.ortvalue_from_numpy(numbers(2, 3))
            with pytest.raises(ValueError, match="Required inputs"):
                session.run_with_ort_values(None, {})
            with pytest.raises(native.InvalidArgument):
                session.run_with_ort_values(["nothing"], {"x": value})
    finally:
        ort.use([])


def test_clients_may_set_providers_that_the_session_has(trial):
    session = ort.InferenceSession(WHOLE)
    session.set_providers(["CPUExecutionProvider"])
    session.set_providers()
    assert session.get_providers() == ["trial", "CPUExecutionProvider"]
    plain = nna.InferenceSession(WHOLE, devices="trial")
    plain.set_providers(["trial", "CPUExecutionProvider"])
    with pytest.raises(nna.errors.InvalidOptionError, match="open another one with"):
        plain.set_providers(["CPUExecutionProvider"])


@pytest.mark.parametrize("devices", ["cpu", "trial"])
def test_external_data_of_a_model_in_memory_lie_where_session_options_say(devices, tmp_path):
    model = parse(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, 2}> '
        "{ a = Mul (x, w) y = Relu (a) }"
    )
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    contents = (tmp_path / "m.onnx").read_bytes()
    with nna.InferenceSession(contents, options, devices=devices) as session:
        assert session.run(None, {"x": np.ones((1, 2), np.float32)})[0].tolist() == [[1, 2]]
        assert session.report().nodes


SCALED = (
    f"""{HEAD} g (float[n, 4] x) => (float[n, 4] y) <float[4] w = {{1, 2, 3, 4}}> {{ a = Relu(x) y = Mul(a, w) }}"""
)


@pytest.mark.parametrize("devices", ["fake_npu", ["openvino", "fake_npu"], "cpu"])
def test_initializers_that_are_replaced_are_so_on_devices(devices):
    replaced = onnxruntime.OrtValue.ortvalue_from_numpy(numbers(4))
    theirs, ours = onnxruntime.SessionOptions(), ort.SessionOptions()
    for options in (theirs, ours):
        options.add_initializer("w", replaced)
        options.add_initializer("no such initializer", replaced)
    model, x = parse(SCALED).SerializeToString(), numbers(3, 4, seed=1)
    session = ort.InferenceSession(model, ours, devices=devices)
    expected = onnxruntime.InferenceSession(model, theirs).run(None, {"x": x})[0]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-6)


@pytest.mark.parametrize("devices", ["fake_npu", "cpu"])
def test_initializers_of_branches_are_replaced_as_well(devices):
    model = parse(f"""{HEAD} g (float[n, 4] x, bool c) => (float[n, 4] y) {{
        y = If(c) <then_branch = t () => (float[n, 4] p) <float[4] w = {{1, 2, 3, 4}}> {{ p = Mul(x, w) }},
                   else_branch = e () => (float[n, 4] q) {{ q = Neg(x) }}>
    }}""").SerializeToString()
    replaced = onnxruntime.OrtValue.ortvalue_from_numpy(numbers(4))
    theirs, ours = onnxruntime.SessionOptions(), ort.SessionOptions()
    for options in (theirs, ours):
        options.add_initializer("w", replaced)
    feed = {"x": numbers(3, 4, seed=1), "c": np.array(True)}
    expected = onnxruntime.InferenceSession(model, theirs).run(None, feed)[0]
    session = ort.InferenceSession(model, ours, devices=devices)
    np.testing.assert_allclose(session.run(None, feed)[0], expected, rtol=1e-6)


def test_initializers_are_replaced_in_compiled_files(tmp_path):
    options, w, x = ort.SessionOptions(), numbers(4), numbers(3, 4, seed=1)
    replaced = onnxruntime.OrtValue.ortvalue_from_numpy(w)
    options.add_initializer("w", replaced)
    nna.compile(parse(SCALED), tmp_path / "m.nna", devices="fake_npu", sess_options=options)
    with nna.InferenceSession(tmp_path / "m.nna") as session:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], np.maximum(x, 0) * w, rtol=1e-6)


@pytest.mark.parametrize("devices", ["fake_npu", "cpu"])
def test_initializers_beside_the_model_may_come_from_memory(devices, tmp_path):
    """Their file need not be there."""
    model, w, x = parse(SCALED), numbers(4), numbers(3, 4, seed=1)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(numbers(4, seed=2), "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    options = ort.SessionOptions()
    options.add_external_initializers(["w"], [onnxruntime.OrtValue.ortvalue_from_numpy(w)])
    session = ort.InferenceSession(str(tmp_path / "m.onnx"), options, devices=devices)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], np.maximum(x, 0) * w, rtol=1e-6)


@pytest.mark.parametrize("array", [numbers(2), numbers(4).astype("float64")])
def test_an_initializer_of_another_type_or_shape_is_refused(array):
    options = ort.SessionOptions()
    options.add_initializer("w", onnxruntime.OrtValue.ortvalue_from_numpy(array))
    with pytest.raises(ValueError, match=r"'w' is float32\[4\], and .* is to take its place"):
        ort.InferenceSession(parse(SCALED).SerializeToString(), options, devices="fake_npu")


@pytest.mark.parametrize("devices", ["fake_npu", "cpu"])
@pytest.mark.parametrize("how", ["name", "denotation"])
def test_dimensions_that_are_fixed_are_so_on_devices(devices, how):
    model, options = parse(SCALED), ort.SessionOptions()
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    if how == "name":
        options.add_free_dimension_override_by_name("n", 2)
    else:
        options.add_free_dimension_override_by_denotation("DATA_BATCH", 2)
    session = ort.InferenceSession(model.SerializeToString(), options, devices=devices)
    assert session.get_inputs()[0].shape == [2, 4]
    assert session.run(None, {"x": numbers(2, 4)})[0].shape == (2, 4)
    with pytest.raises(native.InvalidArgument):
        session.run(None, {"x": numbers(3, 4)})


def test_a_compiled_file_is_as_it_was_compiled(tmp_path):
    nna.compile(parse(SCALED), tmp_path / "m.nna", devices="fake_npu")
    options = ort.SessionOptions()
    ort.InferenceSession(str(tmp_path / "m.nna"), options)
    options.add_free_dimension_override_by_name("n", 2)
    with pytest.raises(ValueError, match=r"as they were when it was compiled"):
        ort.InferenceSession(str(tmp_path / "m.nna"), options)
