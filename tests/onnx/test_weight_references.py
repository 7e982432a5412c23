from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import nnadapter as nna
from nnadapter.candidates import prepare
from nnadapter.errors import ModelFileError
from nnadapter.onnx import (
    BegunModel,
    array_of,
    bytes_of,
    inlined,
    is_reference,
    load_model,
    read_ahead,
    references,
    with_references,
)

DEVICES = ["cpu", "fake_npu", "openvino", "null"]
WEIGHTS = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
MIB = 1 << 20
X = np.random.default_rng(1).standard_normal((2, 256)).astype(np.float32)


def model_with(*tensors: TensorProto) -> onnx.ModelProto:
    """Return a model that multiplies by `w` and contains these tensors."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 256])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 512])
    graph = helper.make_graph(nodes, "g", [given], [result], [numpy_helper.from_array(WEIGHTS, "w"), *tensors])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    model.metadata_props.add(key="imgsz", value="[640]")
    return model


def saved(folder: Path, *, beside: bool) -> Path:
    path = folder / "model.onnx"
    onnx.save_model(model_with(), path, save_as_external_data=beside, location="weights.bin")
    return path


@pytest.mark.parametrize("beside", [False, True])
def test_loaded_model_references_its_weights(tmp_path, beside):
    path = saved(tmp_path, beside=beside)
    loaded = load_model(path)
    (weights,) = loaded.graph.initializer
    assert is_reference(weights) and len(loaded.SerializeToString()) < 2000 and bytes_of(weights) == WEIGHTS.nbytes
    array = array_of(weights)
    assert not array.flags.writeable and array.dtype == np.float32 and np.array_equal(array, WEIGHTS)
    assert array_of(weights) is array
    assert inlined(loaded).SerializeToString(deterministic=True) == model_with().SerializeToString(deterministic=True)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("devices", DEVICES)
def test_results_do_not_depend_on_the_location_of_weights(tmp_path, beside, devices):
    path = saved(tmp_path, beside=beside)
    results = []
    for source in (path, model_with(), model_with().SerializeToString()):
        with nna.InferenceSession(source, devices=devices, options=nna.Options(fallback="allow")) as session:
            results += [session.run(None, {"x": rows})[0] for rows in (X, X[:1])]
    assert all(np.array_equal(result, results[number % 2]) for number, result in enumerate(results))


def test_preparation_separates_weights_of_in_memory_models():
    model = model_with()
    light, arrays = with_references(model)
    assert not is_reference(model.graph.initializer[0]) and is_reference(light.graph.initializer[0])
    assert array_of(light.graph.initializer[0]) is arrays[0] and with_references(light) == (light, [])
    assert inlined(light).SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)
    prepared = prepare(model)
    assert is_reference(prepared.model.graph.initializer[0])
    assert prepared.constants["w"] is array_of(prepared.model.graph.initializer[0])


@pytest.mark.parametrize("dtype", helper.get_all_tensor_dtypes())
def test_sizes_and_contents_of_every_data_type(tmp_path, dtype):
    if dtype == TensorProto.STRING:
        tensor = helper.make_tensor("t", dtype, [2], [b"ab", b"cde"])
        assert bytes_of(tensor) == 5
        return
    count = 1 << 18
    dims = [count // 2, 2]
    tensor = numpy_helper.from_array(np.ones(dims, helper.tensor_dtype_to_np_dtype(dtype)), "t")
    assert bytes_of(tensor) == len(tensor.raw_data)
    path = tmp_path / "model.onnx"
    for beside in (False, True):
        onnx.save_model(model_with(tensor), path, save_as_external_data=beside, location="weights.bin")
        found = load_model(path).graph.initializer[1]
        assert is_reference(found) == (dtype in references._WHOLE_BYTES)
        assert array_of(found).dtype == numpy_helper.to_array(tensor).dtype
        assert np.array_equal(array_of(found), numpy_helper.to_array(tensor))
        Path(tmp_path / "weights.bin").unlink(missing_ok=True)


def test_strings_and_typed_fields_are_not_references(tmp_path):
    text = helper.make_tensor("t", TensorProto.STRING, [1], [b"x" * (1 << 17)])
    typed = helper.make_tensor("f", TensorProto.FLOAT, [1 << 16], np.arange(1 << 16, dtype=np.float32))
    onnx.save_model(model_with(text, typed), tmp_path / "model.onnx")
    loaded = load_model(tmp_path / "model.onnx")
    assert [is_reference(each) for each in loaded.graph.initializer] == [True, False, False]
    assert inlined(loaded) == model_with(text, typed)
    prepared = prepare(loaded)
    assert np.array_equal(prepared.constants["f"], np.arange(1 << 16, dtype=np.float32))


def test_session_survives_overwriting_the_model_file(tmp_path):
    path = saved(tmp_path, beside=False)
    with nna.InferenceSession(path, devices="fake_npu") as session:
        before = session.run(None, {"x": X})[0]
        path.write_bytes(b"something else")
        assert np.array_equal(session.run(None, {"x": X})[0], before)
        assert np.allclose(session.run(None, {"x": X[:1]})[0], before[:1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["model.onnx", "weights.bin"])
def test_file_changed_after_loading_is_an_error(tmp_path, name):
    path = saved(tmp_path, beside=name == "weights.bin")
    loaded = load_model(path)
    gc.collect()
    contents = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(contents[:-1] + b"\0")
    with pytest.raises(ModelFileError, match=f"{name}.*has changed.*load the model again"):
        array_of(loaded.graph.initializer[0])
    (tmp_path / name).unlink()
    with pytest.raises(ModelFileError, match=f"{name}.*cannot be read any more"):
        prepare(loaded)


def test_truncated_external_data_is_an_error(tmp_path):
    path = saved(tmp_path, beside=True)
    os.truncate(tmp_path / "weights.bin", WEIGHTS.nbytes - 4)
    with pytest.raises(ModelFileError, match=f"'weights.bin'.*'w'.*{WEIGHTS.nbytes - 4} bytes"):
        load_model(path)


def referring_to(location: str, **more: object) -> onnx.ModelProto:
    model = model_with()
    weights = model.graph.initializer[0]
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        weights.external_data.add(key=key, value=str(value))
    return model


@pytest.mark.parametrize(
    ("location", "more", "words"),
    [
        ("../outside.bin", {}, "outside of the model"),
        ("link.bin", {}, "outside of the model"),
        ("folder/link/outside.bin", {}, "outside of the model"),
        ("", {}, "outside of the model"),
        ("folder", {}, "not a regular file"),
        ("pipe", {}, "not a regular file"),
        ("inside.bin", {"offset": -4}, "expected a number"),
        ("inside.bin", {"length": "1_6"}, "expected a number"),
        ("inside.bin", {"offset": 4}, "needed"),
        ("inside.bin", {"length": 8}, "need"),
        ("inside.bin", {"length": 1 << 62}, "needed"),
        ("inside.bin", {"offset": "four"}, "four"),
    ],
)
def test_invalid_locations_are_refused(tmp_path, location, more, words):
    folder = tmp_path / "model"
    (folder / "folder").mkdir(parents=True)
    WEIGHTS.tofile(tmp_path / "outside.bin")
    WEIGHTS.tofile(folder / "inside.bin")
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    (folder / "folder" / "link").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    for stated in (location, str(tmp_path / "outside.bin")):
        onnx.save_model(referring_to(stated, **more), folder / "model.onnx")
        with pytest.raises(ModelFileError, match=words if stated == location else "outside of the model"):
            load_model(folder / "model.onnx")


def test_a_folder_of_links_to_files_of_one_folder(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    saved(tmp_path / "blobs", beside=True)
    for name in ("model.onnx", "weights.bin"):
        (tmp_path / "snapshot" / name).symlink_to(f"../blobs/{name}")
    (weights,) = load_model(tmp_path / "snapshot" / "model.onnx").graph.initializer
    assert np.array_equal(array_of(weights), WEIGHTS)


def test_forged_references_are_refused(tmp_path):
    WEIGHTS.tofile(tmp_path / "secret.bin")
    kept, arrays = with_references(model_with())
    stamp = references.stamp_of((tmp_path / "secret.bin").stat())
    place = {"offset": 0, "length": WEIGHTS.nbytes, "stamp": stamp}
    folder = tmp_path / "model"
    folder.mkdir()
    forged = [referring_to(str(tmp_path / "secret.bin"), kind=kind, **place) for kind in ("read", "mapped")]
    own = str(folder / "model.onnx")
    forged += [referring_to(own, kind="read", **more) for more in ({}, {"offset": "x", "length": 4}, place)]
    for model in (*forged, kept):
        onnx.save_model(model, folder / "model.onnx")
        with pytest.raises(ModelFileError, match="'w'"):
            load_model(folder / "model.onnx")
    assert len(arrays) == 1


def test_missing_length_follows_from_the_type(tmp_path):
    (tmp_path / "weights.bin").write_bytes(bytes(64) + WEIGHTS.tobytes() + bytes(64))
    onnx.save_model(referring_to("weights.bin", offset=64), tmp_path / "model.onnx")
    assert np.array_equal(array_of(load_model(tmp_path / "model.onnx").graph.initializer[0]), WEIGHTS)


def test_unaligned_offsets_are_read_instead_of_mapped(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"x" + WEIGHTS.tobytes())
    onnx.save_model(referring_to("weights.bin", offset=1), tmp_path / "model.onnx")
    array = array_of(load_model(tmp_path / "model.onnx").graph.initializer[0])
    assert array.flags.aligned and np.array_equal(array, WEIGHTS)


def test_contents_are_freed_with_the_last_reference(tmp_path):
    loaded = load_model(saved(tmp_path, beside=True))
    array = array_of(loaded.graph.initializer[0])
    assert any(each() is array for each in references._living.values())
    before = len(references._living)
    del array
    assert len(references._living) == before - 2


def sparse_model(folder: Path, side: int) -> Path:
    """Return a model of two products with weights of `side` by `side` zeros, in a sparse file."""
    tensors = [TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[side, side]) for name in "vw"]
    for number, tensor in enumerate(tensors):
        tensor.data_location = TensorProto.EXTERNAL
        place = {"location": "weights.bin", "offset": 4 * side * side * number, "length": 4 * side * side}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(8 * side * side)
    nodes = [helper.make_node("MatMul", ["x", "v"], ["p"]), helper.make_node("MatMul", ["p", "w"], ["y"])]
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, side]) for name in "xy")
    model = helper.make_model(helper.make_graph(nodes, "g", [given], [made], tensors), ir_version=10)
    onnx.save_model(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the system's own count of memory")
@pytest.mark.parametrize("device", ["fake_npu", "openvino", pytest.param("null", marks=pytest.mark.sweep), "cpu"])
def test_report_reads_no_weights(tmp_path, device):
    path = sparse_model(tmp_path, 1 << 13)
    code = (
        "import sys, nnadapter\n"
        "nnadapter.partition_report(sys.argv[1], sys.argv[2])\n"
        "print(max(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, str(path), device], capture_output=True, text=True, check=True
    )
    assert int(process.stdout) < 300 << 10


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the system's own count of memory")
def test_packed_weights_replace_the_originals(tmp_path):
    path = sparse_model(tmp_path, 1 << 13)
    code = (
        "import sys, numpy, nnadapter\n"
        "x = numpy.zeros((1, 1 << 13), numpy.float32)\n"
        "nnadapter.InferenceSession(sys.argv[1], devices='fake_npu').run(None, {'x': x})\n"
        "print(max(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])\n"
    )
    process = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert int(process.stdout) < 950 << 10  # KiB; 512 MiB of weights are packed one at a time


def test_many_weights_are_read_by_several_threads(tmp_path):
    rng = np.random.default_rng(2)
    arrays = {f"w{number}": rng.standard_normal((700, 1000)).astype(np.float32) for number in range(8)}
    path = tmp_path / "model.onnx"
    onnx.save_model(model_with(*(numpy_helper.from_array(array, name) for name, array in arrays.items())), path)
    loaded = load_model(path)
    held = read_ahead(loaded.graph.initializer)
    assert len(held) == 9
    for tensor in loaded.graph.initializer:
        array = array_of(tensor)
        assert any(array is each for each in held)
        assert np.array_equal(array, arrays.get(tensor.name, WEIGHTS))


STOPPED = """
import contextlib, resource, signal, sys, threading
from nnadapter.onnx.files import load_model
from nnadapter.onnx.references import read_ahead

def bytes_read():
    return int(next(line for line in open("/proc/self/io") if line.startswith("rchar")).split()[1])

def interrupt(number, frame):
    raise KeyboardInterrupt

tensors = load_model(sys.argv[1]).graph.initializer
signal.signal(signal.SIGALRM, interrupt)
before = bytes_read()
try:
    {how}
    print(len(read_ahead(tensors)) < len(tensors))
except KeyboardInterrupt:
    print(True)
for thread in threading.enumerate()[1:]:
    with contextlib.suppress(RuntimeError):  # the interrupt came before it had begun
        thread.join()
print(bytes_read() - before)
"""


@pytest.fixture(scope="module")
def many_weights(tmp_path_factory):
    """Yield a file of 400 MiB with as many tensors."""
    tensor = onnx.TensorProto(data_type=1, dims=[MIB // 4], raw_data=bytes(MIB))
    model, path = model_with(), tmp_path_factory.mktemp("many") / "model.onnx"
    for number in range(400):
        tensor.name = f"w{number}"
        model.graph.initializer.append(tensor)
    path.write_bytes(model.SerializeToString())
    yield path
    path.unlink()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of a process")
@pytest.mark.parametrize(
    "how",
    [
        "signal.setitimer(signal.ITIMER_REAL, 0.005)",
        "held = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize(); "
        "resource.setrlimit(resource.RLIMIT_AS, (held + (96 << 20),) * 2)",
    ],
    ids=["an interrupt", "no memory"],
)
def test_readahead_threads_end(many_weights, how):
    command = [sys.executable, "-c", STOPPED.format(how=how), str(many_weights)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    stopped, read = process.stdout.split()
    assert stopped == "True" and int(read) < 300 * MIB
    assert process.stderr == ""


def test_model_loaded_in_background_is_equal(tmp_path):
    rng = np.random.default_rng(2)
    arrays = {f"w{number}": rng.standard_normal((700, 1000)).astype(np.float32) for number in range(8)}
    path = tmp_path / "model.onnx"
    onnx.save_model(model_with(*(numpy_helper.from_array(array, name) for name, array in arrays.items())), path)
    model, held = BegunModel(path).finish()
    assert model == load_model(path)
    assert not read_ahead(model.graph.initializer), "all of it is held"
    assert all(any(array_of(tensor) is each for each in held) for tensor in model.graph.initializer)
    stopped = BegunModel(path)
    stopped.stop()
    assert len(stopped.finish()[1]) < 9
    with pytest.raises(ModelFileError, match="does not exist"):
        BegunModel(tmp_path / "none.onnx")


def test_small_and_mapped_weights_are_not_read_ahead(tmp_path):
    for beside in (False, True):
        assert not read_ahead(load_model(saved(tmp_path, beside=beside)).graph.initializer)


def test_changed_weights_are_an_error_when_read(tmp_path):
    rng = np.random.default_rng(2)
    arrays = [numpy_helper.from_array(rng.standard_normal((700, 1000)).astype(np.float32), f"w{i}") for i in range(8)]
    path = tmp_path / "model.onnx"
    onnx.save_model(model_with(*arrays), path)
    loaded = load_model(path)
    path.write_bytes(b"another")
    assert not read_ahead(loaded.graph.initializer)
    with pytest.raises(ModelFileError, match="has changed since the model was loaded"):
        prepare(loaded)
