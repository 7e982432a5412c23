"""The replacement for onnxruntime: its names and errors, and unchanged client code."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as native

import nnadapter as nna
from nnadapter import ort
from nnadapter.drivers.onnxruntime import copied_run_options, driver
from tests.models import CHAIN, HEAD, numbers, parse

WHOLE = parse(CHAIN).SerializeToString()


@pytest.fixture
def trial():
    ort.use("trial")
    yield
    ort.use([])


def test_every_public_name_of_onnxruntime_exists():
    for name in dir(onnxruntime):
        if not name.startswith("_"):
            assert hasattr(ort, name) and name in dir(ort)
    assert issubclass(ort.SessionOptions, onnxruntime.SessionOptions) and ort.__version__ == onnxruntime.__version__


@pytest.mark.slow
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
def test_run_errors_are_also_onnxruntime_errors(chosen, feed, theirs, ours):
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
def test_load_errors_are_also_onnxruntime_errors(chosen, source, theirs):
    ort.use(chosen)
    try:
        with pytest.raises(theirs):
            ort.InferenceSession(source)
        with pytest.raises(theirs):
            onnxruntime.InferenceSession(source)
    finally:
        ort.use([])


def test_unchanged_client_runs_on_the_device():
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


def test_nnadapter_itself_uses_the_real_onnxruntime():
    """A late import inside nnadapter must not get the replacement, which would apply the chosen device again."""
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


def test_use_refuses_unknown_devices_and_options():
    with pytest.raises(nna.errors.DeviceNotFoundError):
        ort.use("trail")
    with pytest.raises(nna.errors.InvalidOptionError):
        ort.use(("trial", {"falt": 1}))
    with pytest.raises(nna.errors.InvalidOptionError, match="fallback"):
        ort.use("trial", options={"fallbak": "allow"})


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["fake_npu", []])
def test_options_of_use_are_defaults_for_sessions(devices, tmp_path):
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


def test_devices_of_a_session_override_use(trial):
    assert ort.InferenceSession(WHOLE, devices="cpu").devices == ("cpu",)


def test_model_path_attribute_equals_onnxruntime(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(WHOLE)
    for given, expected in ((path, str(path)), (str(path), str(path)), (WHOLE, None)):
        theirs, ours = onnxruntime.InferenceSession(given), ort.InferenceSession(given)
        assert ours._model_path == theirs._model_path == expected


@pytest.mark.parametrize("chosen", [[], "trial"])
def test_binding_errors_are_also_onnxruntime_errors(chosen):
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


def test_set_providers_accepts_providers_of_the_session(trial):
    session = ort.InferenceSession(WHOLE)
    session.set_providers(["CPUExecutionProvider"])
    session.set_providers()
    assert session.get_providers() == ["trial", "CPUExecutionProvider"]
    plain = nna.InferenceSession(WHOLE, devices="trial")
    plain.set_providers(["trial", "CPUExecutionProvider"])
    with pytest.raises(nna.errors.InvalidOptionError, match="open another session with"):
        plain.set_providers(["CPUExecutionProvider"])


@pytest.mark.parametrize("devices", ["cpu", "trial"])
def test_session_options_locate_external_data(devices, tmp_path):
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
def test_initializers_are_replaced_on_devices(devices):
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
def test_initializers_of_branches_are_replaced(devices):
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
def test_external_initializers_may_come_from_memory(devices, tmp_path):
    """The file with the external data does not exist."""
    model, w, x = parse(SCALED), numbers(4), numbers(3, 4, seed=1)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(numbers(4, seed=2), "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    options = ort.SessionOptions()
    options.add_external_initializers(["w"], [onnxruntime.OrtValue.ortvalue_from_numpy(w)])
    session = ort.InferenceSession(str(tmp_path / "m.onnx"), options, devices=devices)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], np.maximum(x, 0) * w, rtol=1e-6)


@pytest.mark.parametrize("array", [numbers(2), numbers(4).astype("float64")])
def test_replacement_initializer_of_another_type_is_refused(array):
    options = ort.SessionOptions()
    options.add_initializer("w", onnxruntime.OrtValue.ortvalue_from_numpy(array))
    with pytest.raises(ValueError, match=r"'w' is float32\[4\], but its replacement is "):
        ort.InferenceSession(parse(SCALED).SerializeToString(), options, devices="fake_npu")


@pytest.mark.parametrize("devices", ["fake_npu", "cpu"])
@pytest.mark.parametrize("how", ["name", "denotation"])
def test_free_dimension_overrides_apply_to_devices(devices, how):
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


def test_compiled_file_refuses_dimension_overrides(tmp_path):
    nna.compile(parse(SCALED), tmp_path / "m.nna", devices="fake_npu")
    options = ort.SessionOptions()
    ort.InferenceSession(str(tmp_path / "m.nna"), options)
    options.add_free_dimension_override_by_name("n", 2)
    with pytest.raises(ValueError, match=r"of a compiled file cannot be changed"):
        ort.InferenceSession(str(tmp_path / "m.nna"), options)


RELU = '<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1, "ai.onnx.ml" : 1]> '
ADAPTED = f"""{RELU} g (float[2,2] x, float[2,1] a, float[1,2] b) => (float[2,2] y)
    <float[2,2] w = {{1, 1, 1, 1}}, float[2,1] a = {{0, 0}}, float[1,2] b = {{0, 0}}> {{
    p = MatMul(x, w) q = MatMul(x, a) r = MatMul(q, b) y = Add(p, r) }}"""
OFF = ("fake_npu", {"switched_off": "MatMul"})


def adapter_of(folder, **parameters):
    file, path = onnxruntime.AdapterFormat(), str(folder / "adapter")
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in parameters.items()}
    file.set_parameters(values)
    file.export_adapter(path)
    adapter = onnxruntime.LoraAdapter()
    adapter.Load(path)
    return adapter


@pytest.mark.parametrize("devices", ["cpu", "fake_npu", [OFF, "cpu"]])
def test_active_adapters_replace_inputs_of_every_run_method(devices, tmp_path):
    adapter = adapter_of(tmp_path, a=np.ones((2, 1), np.float32), b=np.ones((1, 2), np.float32))
    options, x = onnxruntime.RunOptions(), np.ones((2, 2), np.float32)
    options.add_active_adapter(adapter)
    with ort.InferenceSession(parse(ADAPTED), devices=devices) as session:
        value = onnxruntime.OrtValue.ortvalue_from_numpy(x)
        results = [
            session.run(None, {"x": x}, options)[0],
            session.submit(None, {"x": x}, options).result()[0],
            session.run_with_ort_values(None, {"x": value}, options)[0].numpy(),
        ]
        assert all(result.tolist() == [[4, 4], [4, 4]] for result in results), results
        assert session.run(None, {"x": x}, onnxruntime.RunOptions())[0].tolist() == [[2, 2], [2, 2]]
        unknown = onnxruntime.RunOptions()
        adapters = [adapter_of(tmp_path, zz=np.ones((2, 1), np.float32))]
        unknown.add_active_adapter(adapters[0])
        with pytest.raises(native.InvalidArgument, match="zz"):
            session.run(None, {"x": x}, unknown)


def test_io_binding_on_devices_warns_of_adapters(tmp_path):
    adapter, options = adapter_of(tmp_path, a=np.ones((2, 1), np.float32)), onnxruntime.RunOptions()
    options.add_active_adapter(adapter)
    with ort.InferenceSession(parse(ADAPTED), devices="fake_npu") as session:
        binding = session.io_binding()
        binding.bind_cpu_input("x", np.ones((2, 2), np.float32))
        with pytest.warns(nna.errors.FallbackWarning, match="no effect on run_with_iobinding"):
            session.run_with_iobinding(binding, options)


@pytest.mark.filterwarnings("ignore::nnadapter.errors.FallbackWarning")
@pytest.mark.parametrize("devices", ["cpu", "fake_npu"])
def test_byte_arrays_are_accepted_as_strings(devices):
    session = ort.InferenceSession(
        parse(f"{RELU} g (string[N] x) => (string[N] y) {{ y = Identity(x) }}"), devices=devices
    )
    assert session.run(None, {"x": np.array([b"ab", b"c"])})[0].tolist() == ["ab", "c"]
    assert session.run(None, {"x": np.array([b"ab", b"cd"]).view("V2")})[0].tolist() == ["ab", "cd"]
    with pytest.raises(native.InvalidArgument, match="UTF-8"):
        session.run(None, {"x": np.array([b"\xff"])})


def sparse_value():
    place = onnxruntime.OrtDevice.make("cpu", 0)
    parts = np.array([3, 3], np.int64), np.float32([2, 3]), np.array([[0, 0], [2, 1]], np.int64)
    return onnxruntime.OrtValue.ort_value_from_sparse_tensor(
        onnxruntime.SparseTensor.sparse_coo_from_numpy(*parts, place)
    )


@pytest.mark.filterwarnings("ignore::nnadapter.errors.FallbackWarning")
@pytest.mark.parametrize("devices", ["cpu", "fake_npu"])
def test_results_are_ort_values_that_onnxruntime_accepts(devices):
    x = onnxruntime.OrtValue.ortvalue_from_numpy(np.float32([-1, 2]))
    relu = parse(f"{RELU} g (float[N] x) => (float[N] y) {{ y = Relu(x) }}").SerializeToString()
    plain, session = onnxruntime.InferenceSession(relu), ort.InferenceSession(relu, devices=devices)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    vector = binding.get_outputs_as_ortvaluevector()
    for value in (
        *session.run_with_ort_values(None, {"x": x}),
        *binding.get_outputs(),
        onnxruntime.OrtValue(vector[0]),
    ):
        assert isinstance(value, onnxruntime.OrtValue) and value.data_ptr()
        assert plain.run_with_ort_values(None, {"x": value})[0].numpy().tolist() == [0, 2]
    if devices == "fake_npu":
        binding.bind_output("y", "fake_npu")
        session.run_with_iobinding(binding)
        (value,) = binding.get_outputs()
        assert isinstance(value, nna.DeviceValue)
        assert plain.run_with_ort_values(None, {"x": value})[0].numpy().tolist() == [0, 2]


@pytest.mark.filterwarnings("ignore::nnadapter.errors.FallbackWarning")
@pytest.mark.parametrize("devices", ["cpu", "fake_npu"])
def test_sparse_inputs_and_outputs(devices):
    make, floats = onnx.helper, onnx.TensorProto.FLOAT
    sparse_type = make.make_sparse_tensor_type_proto(floats, [3, 3])
    node = make.make_node("SparseToDenseMatMul", ["A", "B"], ["y"], domain="com.microsoft")
    inputs = [make.make_value_info("A", sparse_type), make.make_tensor_value_info("B", floats, [3, 3])]
    opsets = [make.make_opsetid("", 15), make.make_opsetid("com.microsoft", 1)]
    graph = make.make_graph([node], "g", inputs, [make.make_tensor_value_info("y", floats, [3, 3])])
    session = ort.InferenceSession(make.make_model(graph, opset_imports=opsets, ir_version=8), devices=devices)
    dense = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones((3, 3), np.float32))
    (result,) = session.run_with_ort_values(None, {"A": sparse_value(), "B": dense})
    assert result.numpy().tolist() == [[2] * 3, [0] * 3, [3] * 3]
    values = make.make_tensor("v", floats, [2], [1.5, 2.5])
    places = make.make_tensor("i", onnx.TensorProto.INT64, [2], [1, 5])
    node = make.make_node("Constant", [], ["y"], sparse_value=make.make_sparse_tensor(values, places, [3, 3]))
    graph = make.make_graph([node], "g", [], [make.make_value_info("y", sparse_type)])
    session = ort.InferenceSession(make.make_model(graph, opset_imports=opsets, ir_version=8), devices=devices)
    assert session.run_with_ort_values(None, {})[0].as_sparse_tensor().values().tolist() == [1.5, 2.5]


@pytest.mark.parametrize("devices", ["cpu", "fake_npu"])
@pytest.mark.parametrize(
    "text",
    [
        "(float[N,2] x) => (float[N,M] y) { y = com.microsoft.CDist<p=3.0>(x, x) }",
        "(float[N,2] x) => (float[N,2] y) { y = Relu<p=3.0>(x) }",
        "(float[N,2] x) => (float[N,2] y) { y = Relu(x, x) }",
        "(string[N,2] x) => (string[N,2] y) { y = Relu(x) }",
        "(float[N,2] x) => (float[N,2] y) { y = NoSuchOperator(x) }",
        "(float[N,N] x) => (float[N,N] y) { y = com.microsoft.Solve(x, x) }",
        "(bool[N,2] x) => (float[N,2] y) { y = ai.onnx.ml.Normalizer(x) }",
        "(float[N,2] x, double[N,2] z) => (float[N,2] y) { y = Add(x, z) }",
        "(float[N,2] x, int64[N,2] z) => (float[M,2] y) { y = Concat<axis=0>(x, z) }",
        "(float[N,2] x, int64[N,2] z) => (float[M,2] y) { y = com.microsoft.FastGelu(x, z) }",
        """(bool c, string[N] x) => (string[N] y) { y = If(c) <
            then_branch = t () => (string[N] p) { p = Relu(x) }, else_branch = e () => (string[N] q) { q = Identity(x) }
        > }""",
    ],
)
def test_invalid_graph_is_refused_at_load(devices, text):
    model = onnx.parser.parse_model(f"{RELU} g {text}").SerializeToString()
    with pytest.raises((native.InvalidGraph, native.Fail)) as theirs:
        onnxruntime.InferenceSession(model)
    with pytest.raises(theirs.type) as ours:
        ort.InferenceSession(model, devices=devices)
    assert isinstance(ours.value, nna.errors.InvalidModelError)


def test_valid_model_is_not_checked_in_parts(monkeypatch):
    def load(contents):
        raise AssertionError("a part was loaded")

    monkeypatch.setattr(driver, "_load_unoptimized", load)
    text = "(float[N,2] x, bool[N,2] c) => (float[N,2] y) { a = Relu(x) b = Cast<to=1>(c) y = Add(a, b) }"
    ort.InferenceSession(onnx.parser.parse_model(f"{RELU} g {text}").SerializeToString(), devices="fake_npu")


@pytest.mark.parametrize("chosen", [[], "fake_npu"])
def test_sessions_have_every_method_of_onnxruntime(chosen):
    ort.use(chosen)
    try:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        session, plain = ort.InferenceSession(WHOLE, options), ort.InferenceSession(WHOLE)
        for ours, theirs in ((session, onnxruntime.InferenceSession), (session.io_binding(), onnxruntime.IOBinding)):
            assert [name for name in dir(theirs) if not name.startswith("_") and not hasattr(ours, name)] == []
        nodes = [node for part in session.get_provider_graph_assignment_info() for node in part.get_nodes()]
        assert sorted(node.op_type for node in nodes) == sorted(node.op_type for node in parse(CHAIN).graph.node)
        with pytest.raises(native.Fail, match="record_ep_graph_assignment_info"):
            plain.get_provider_graph_assignment_info()
        assert session.get_tuning_results() == [] and session.get_input_memory_infos()[0].name == "Cpu"
        assert session.get_input_epdevices()[0].ep_name == "CPUExecutionProvider"
        with pytest.raises(RuntimeError):
            session.set_tuning_results([{"ep": "Nope"}], error_on_invalid=True)
        with pytest.raises(RuntimeError):
            session.set_ep_dynamic_options({})
        with pytest.raises(RuntimeError, match="Unknown Provider Type: Nope"):
            session.set_providers(["Nope"])
        stopped = onnxruntime.RunOptions()
        stopped.terminate = True
        with pytest.raises(native.Fail, match="Exiting due to terminate flag"):
            session.run(None, {"x": numbers(2, 3)}, stopped)
    finally:
        ort.use([])


@pytest.mark.parametrize("devices", ["cpu", "trial"])
def test_load_cancellation_flag_prevents_sessions(devices):
    options, original = ort.SessionOptions(), onnxruntime.SessionOptions()
    for each in (options, original):
        each.set_load_cancellation_flag(True)
        for kind in (nna.errors.CancelledError, native.ModelLoadCanceled):
            with pytest.raises(kind, match="load cancellation flag"):
                ort.InferenceSession(WHOLE, each, devices=devices)
    options.set_load_cancellation_flag(False)
    ort.InferenceSession(WHOLE, options, devices=devices)


TEXTS = parse(f"{HEAD} g (float[2] x, string[1] t) => (float[2] y, string[1] u) {{ y = Relu(x) u = Identity(t) }}")


WHOLE_MODEL = {
    "session.compile_only": "1",
    "session.load_model_format": "ORT",
    "session.max_shape_override": "no shape",
    "ep.context_enable": "1",
    "session.layer_assignment_settings": "none",
    "session.resource_cuda_partitioning_settings": "none",
}
INVALID = {
    "session.moe.offload.mode": "no mode",
    "session.dynamic_block_base": "no number",
    "session.kernel_dispatch_policy": "no policy",
    "optimization.minimal_build_optimizations": "save",
}


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["cpu", "fake_npu"])
@pytest.mark.parametrize("key", [*WHOLE_MODEL, *INVALID, "session.disable_cpu_ep_fallback"])
def test_session_options_that_break_the_cpu_are_errors(devices, key):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(key, {**WHOLE_MODEL, **INVALID}.get(key, "1"))
    contents = TEXTS.SerializeToString()
    with pytest.raises(Exception) as theirs:
        onnxruntime.InferenceSession(contents, options)
    if key in WHOLE_MODEL and devices != "cpu":
        with (
            pytest.warns(nna.errors.DriverWarning, match=key),
            ort.InferenceSession(contents, options, devices=devices) as session,
        ):
            session.run(None, {"x": numbers(2), "t": np.array(["a"], object)})
            assert [step.device for step in session.provenance.steps] == ["fake_npu", "cpu"]
        return
    with pytest.raises(nna.errors.NNAdapterError) as ours:
        ort.InferenceSession(contents, options, devices=devices)
    if key != "session.disable_cpu_ep_fallback":  # without named providers, ONNX Runtime has another message
        assert isinstance(ours.value, theirs.type) and isinstance(ours.value, nna.errors.InvalidOptionError)


def test_disable_cpu_fallback_entry_allows_fully_delegated_models():
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with ort.InferenceSession(WHOLE, options, devices="fake_npu") as session:
        session.run(None, {"x": numbers(2, 3)})
        assert [step.device for step in session.provenance.steps] == ["fake_npu"]
    with pytest.raises(native.Fail, match="fallback is forbidden"):
        ort.InferenceSession(TEXTS.SerializeToString(), options, devices="fake_npu")


@pytest.mark.parametrize("entry", ["session.gqa_value_layout", "deterministic"])
def test_session_options_without_effect_on_devices_warn(entry):
    options = onnxruntime.SessionOptions()
    if entry == "deterministic":
        options.use_deterministic_compute = True
    else:
        options.add_session_config_entry(entry, "BNHS")
    with pytest.warns(nna.errors.DriverWarning, match=entry):
        ort.InferenceSession(WHOLE, options, devices="fake_npu")


@pytest.mark.parametrize("devices", ["cpu", "fake_npu", [("fake_npu", {"switched_off": "Relu"}), "cpu"]])
@pytest.mark.parametrize("how", ["values", "files"])
def test_external_initializers_from_memory_reach_every_segment(devices, how, tmp_path):
    model, w, x = parse(SCALED), numbers(4), numbers(3, 4, seed=1)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(numbers(4, seed=2), "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    options, contents = ort.SessionOptions(), w.tobytes()
    if how == "values":
        options.add_external_initializers(["w"], [onnxruntime.OrtValue.ortvalue_from_numpy(w)])
    else:
        options.add_external_initializers_from_files_in_memory(["w.bin"], [contents], [len(contents)])
    with ort.InferenceSession(str(tmp_path / "m.onnx"), options, devices=devices) as session:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], np.maximum(x, 0) * w, rtol=1e-6)
        assert "reference" not in [step.device for step in session.provenance.steps]


@pytest.mark.parametrize("make", [onnxruntime.RunOptions, ort.RunOptions])
def test_run_options_for_absent_providers_warn(make):
    options, feed = make(), {"x": numbers(2, 3)}
    options.add_run_config_entry("qnn.htp_perf_mode", "burst")
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    with (
        ort.InferenceSession(WHOLE, devices="fake_npu") as session,
        pytest.warns(nna.errors.DriverWarning, match=r"'qnn.htp_perf_mode' = 'burst', which none of .*fake_npu, cpu"),
    ):
        session.run(None, feed, options)


def test_copied_run_options_have_every_entry():
    options = ort.RunOptions()
    options.add_run_config_entry("of.another.provider", "1")
    copy = copied_run_options(options)
    assert copy.get_run_config_entry("of.another.provider") == "1"
