"""Keys of cached plans: any difference that affects a plan is in its key."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import nnadapter as nna
from nnadapter.drivers.selection import check_options, named_requests
from nnadapter.engine import CachedPlanSource, cached_session
from nnadapter.errors import InvalidOptionError
from nnadapter.files.atomic_files import cache_folder
from nnadapter.store import UnkeyedError, source_of
from tests.models import CHAIN, HEAD, numbers, parse, run_whole

MATMUL = f"{HEAD} g (float[2, 200] x) => (float[2, 200] y) {{ y = MatMul(x, w) }}"
NO_TWO_SHAPES = f"{HEAD} g (float[N, 4] x) => (int64[R, M] y) {{ a = Relu(x) b = Exp(a) y = NonZero(b) }}"
LOCATION = b"\x0a\x08location"
BAN = "[[ban]]\nop_type = '{}'\ndevice = 'fake_npu'"
DECIDES = {
    "precision": ("float16", True),
    "policy": ("throughput", True),
    "fallback": ("forbid", True),
    "isolate": (True, True),
    "rules": (BAN.format("Relu"), True),
    "plan": (None, True),
    "max_plans": (3, False),
    "max_plan_bytes": (1 << 20, False),
    "background": (True, False),
    "deadline_s": (60.0, False),
    "trace": (None, False),
    "cache_dir": (True, False),
    "max_cache_bytes": (1 << 20, False),
    "verify": ("once", True),
    "shadow": (None, False),
}
"""Option -> another value, and whether it affects a plan. With a trace or shadow checks nothing is cached. Plan files
are
tested below.
"""


def name_of(model, requests="fake_npu", **options):
    kept = cached_session(model, requests, nna.Options(**options))
    return kept.place.key.name


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "kept"


@pytest.fixture
def model():
    return parse(CHAIN).SerializeToString()


def session(model, device, folder, **options):
    return nna.InferenceSession(model, devices=device, options=nna.Options(cache_dir=folder, **options))


def hit(model, feed, device, folder, **options):
    """Return whether a session found its plan; check its results against ONNX Runtime."""
    read = onnx.load(model) if isinstance(model, os.PathLike) else onnx.load_from_string(model)
    with session(model, device, folder, **options) as opened:
        for one, other in zip(opened.run(None, feed), run_whole(read, feed), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
        return isinstance((*opened._engine._retired, opened._engine.source)[0], CachedPlanSource)


def test_options_that_affect_plans_are_in_the_key(model, tmp_path):
    assert DECIDES.keys() == {field.name for field in fields(nna.Options)}
    usual = name_of(model, cache_dir=tmp_path)
    for name, (value, decides) in DECIDES.items():
        if value is not None:
            assert (name_of(model, **{"cache_dir": tmp_path, name: value}) != usual) is decides, name


def test_contents_of_plan_files_are_in_the_key(model, tmp_path):
    names = []
    for text in ("one", "two", "one"):
        (tmp_path / "plan").write_text(text)
        names.append(name_of(model, cache_dir=tmp_path, plan=tmp_path / "plan"))
    assert names[0] == names[2] != names[1]
    assert name_of(model, cache_dir=tmp_path) not in names


def test_every_device_option_is_in_the_key(model, tmp_path):
    usual = name_of(model, cache_dir=tmp_path)
    others = {bool: lambda value: not value, int: lambda value: value + 1, float: lambda value: value + 1.0}
    for name, value in check_options("fake_npu", {}).items():
        if type(value) in others:
            other = ("fake_npu", {name: others[type(value)](value)})
            assert name_of(model, other, cache_dir=tmp_path) != usual, name
    assert name_of(model, ("fake_npu", {}), cache_dir=tmp_path) == usual


def test_order_of_all_devices_is_in_the_key(model, tmp_path):
    orders = (
        ["fake_npu", "keeping"],
        ["keeping", "fake_npu"],
        ["fake_npu", "cpu", "reference"],
        ["fake_npu", "reference", "cpu"],
        ["fake_npu"],
    )
    assert len({name_of(model, order, cache_dir=tmp_path) for order in orders}) == len(orders)


def test_duplicate_device_is_refused_despite_a_cached_plan(model, folder):
    hit(model, {"x": numbers(2, 3)}, "fake_npu", folder)
    with pytest.raises(InvalidOptionError, match="is named twice"):
        session(model, ["fake_npu", "fake_npu:0"], folder)
    with pytest.raises(InvalidOptionError, match="is named twice"):
        named_requests(["fake_npu", "fake_npu:0"])


def test_timeouts_of_isolation_are_not_in_the_key(model, tmp_path):
    names = {name_of(model, cache_dir=tmp_path, isolate={"fake_npu": {"run": each}}) for each in (1.0, 2.0)}
    assert names == {name_of(model, cache_dir=tmp_path, isolate=True)}


@pytest.mark.parametrize("device", ["fake_npu", "cpu"])
def test_device_and_host_calibrations_are_in_the_key(model, tmp_path, device):
    usual = name_of(model, cache_dir=tmp_path)
    file = cache_folder() / "calibrations" / f"{device}-of-a-test.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{}")
    try:
        assert name_of(model, cache_dir=tmp_path) != usual
    finally:
        file.unlink()


@pytest.mark.parametrize("marker", [LOCATION + b"\0\0", LOCATION + b"\x12\x01\0", b"\0\0" + LOCATION[:8]])
def test_external_weights_that_resemble_file_names(tmp_path, folder, marker):
    def write(seed):
        model = onnx.parser.parse_model(MATMUL)
        weights = np.frombuffer(bytearray(marker.ljust(16, b"\0") + numbers(200, 200, seed=seed).tobytes()[16:]), "f4")
        model.graph.initializer.append(numpy_helper.from_array(weights.reshape(200, 200), "w"))
        (tmp_path / "weights").unlink(missing_ok=True)
        onnx.save_model(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights")
        for each in ("model.onnx", "weights"):
            os.utime(tmp_path / each, (1, 1))

    for seed, is_hit in ((1, False), (2, False), (1, True), (2, True)):
        write(seed)
        assert hit(tmp_path / "model.onnx", {"x": numbers(2, 200)}, "fake_npu", folder) is is_hit


@pytest.mark.parametrize("begins", [b"\x8a\x00\x08", b"\x0a\x88\x00", b"\x8a\x80\x00\x88\x80\x00"])
def test_external_data_names_with_padded_varints_are_unkeyed(begins):
    """Protobuf accepts zero-padded numbers, which nobody writes; such a file is never cached."""
    entry = begins + b"location\x12\x07weights"
    read = onnx.StringStringEntryProto.FromString(entry)
    assert (read.key, read.value) == ("location", "weights")
    with pytest.raises(UnkeyedError, match="in an unusual way"):
        source_of(b"before" + entry)


@pytest.mark.parametrize(
    "entry",
    [
        LOCATION + b"\x12\x03one\x12\x03two",
        b"\x12\x03one" + LOCATION + b"\x12\x03two\x12\x03one",
        LOCATION + b"\x12\x03two" + LOCATION,
        LOCATION + b"\x12\x03two\x1a\x01x",
    ],
)
def test_ambiguous_external_data_entry_is_unkeyed(entry):
    """Readers use the last field."""
    contents = b"\x6a" + bytes([len(entry)]) + entry
    assert onnx.TensorProto.FromString(contents).external_data[0].key == "location"
    with pytest.raises(UnkeyedError, match="in an unusual way"):
        source_of(contents)


@pytest.mark.parametrize("length", [b"\x8f\x00", b"\x8f\x80\x00", b"\x8f\x80\x80\x00"])
def test_external_data_entry_with_padded_length_is_unkeyed(length):
    entry = LOCATION + b"\x12\x03one"
    assert onnx.TensorProto.FromString(b"\x6a" + length + entry).external_data[0].value == "one"
    with pytest.raises(UnkeyedError, match="in an unusual way"):
        source_of(b"\x6a" + length + entry)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 100, 115, 116, 117, 130, 4000])
def test_file_names_across_chunk_boundaries_are_found(tmp_path, size):
    tensor = onnx.TensorProto(name="w" * 40)
    for letter in "nm":
        tensor.external_data.add(key="location", value=letter * size)
    for shift in (0, 1, 10, 11, 12, 13, 14, 20, 30, 40, 50, 60, 70):
        (tmp_path / "model").write_bytes(bytes((1 << 22) - shift) + tensor.SerializeToString())
        assert source_of(tmp_path / "model").beside.words["files"] == "3"


def test_key_does_not_depend_on_the_operating_system(tmp_path, monkeypatch):
    tensor = onnx.TensorProto(name="w", data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights")
    pieces = np.arange(3 << 20, dtype=np.int32).tobytes()
    (tmp_path / "model.onnx").write_bytes(pieces + tensor.SerializeToString())
    (tmp_path / "weights").write_bytes(pieces)
    source = source_of(tmp_path / "model.onnx")
    assert source.beside.words["files"] == "2"
    monkeypatch.delattr(os, "pread")  # Windows lacks it
    assert source_of(tmp_path / "model.onnx") == source


@pytest.mark.parametrize(
    "text",
    [
        "float[2, 3] x) => (float location) { location = ReduceSum<keepdims = 0>(x)",
        "float[2, 3] x) => (float[2, 3] location) { location = Relu(x)",
        "float[2, 3] location) => (float[2, 3] y) { y = Relu(location)",
    ],
)
def test_value_named_location_is_accepted(tmp_path, folder, text):
    model = parse(f"{HEAD} g ({text} }}")
    onnx.save_model(model, tmp_path / "model.onnx")
    feed = {model.graph.input[0].name: numbers(2, 3)}
    for source in (tmp_path / "model.onnx", model.SerializeToString()):
        for _ in range(2):
            hit(source, feed, "fake_npu", folder)


def test_equal_models_with_different_external_weights(tmp_path, folder):
    for seed in (1, 2):
        model = onnx.parser.parse_model(MATMUL)
        model.graph.initializer.append(numpy_helper.from_array(numbers(200, 200, seed=seed), "w"))
        (tmp_path / str(seed)).mkdir()
        onnx.save_model(model, tmp_path / str(seed) / "model.onnx", save_as_external_data=True, location="weights")
    first, second = (tmp_path / str(seed) / "model.onnx" for seed in (1, 2))
    assert first.read_bytes() == second.read_bytes()
    hits = [hit(path, {"x": numbers(2, 200)}, "fake_npu", folder) for path in (first, second, first, second)]
    assert hits == [False, False, True, True]


def test_invalid_model_type_raises_the_usual_error(folder):
    for source in (7, bytearray(b"x"), None):
        with pytest.raises(TypeError, match=r"a model is a path, bytes or an onnx\.ModelProto"):
            session(source, "fake_npu", folder)


def test_editing_device_arguments_does_not_affect_the_session(folder):
    model = parse(NO_TWO_SHAPES).SerializeToString()
    hit(model, {"x": numbers(2, 4)}, ("fake_npu", {"threads": 1}), folder)
    given = {"threads": 1}
    requests = [("fake_npu", given)]
    with session(model, requests, folder) as opened:
        requests[:], given["threads"] = ["keeping"], "none"
        for count in (2, 3):
            opened.run(None, {"x": numbers(count, 4)})
        assert {step.device for step in opened.provenance.steps} == {"fake_npu", "cpu"}


def test_rules_edited_during_a_session_are_an_error(folder, tmp_path):
    """A plan by other rules is neither run nor cached under the key of the first ones."""
    model, rules = parse(NO_TWO_SHAPES).SerializeToString(), tmp_path / "rules.toml"
    rules.write_text(BAN.format("Exp"))
    hit(model, {"x": numbers(2, 4)}, "fake_npu", folder, rules=rules)
    with session(model, "fake_npu", folder, rules=rules) as opened:
        rules.write_text(BAN.format("Relu"))
        with pytest.raises(InvalidOptionError, match="'rules' or 'plan' has changed since the session was created"):
            opened.run(None, {"x": numbers(3, 4)})
    rules.write_text(BAN.format("Exp"))
    with session(model, "fake_npu", folder, rules=rules) as opened:
        opened.run(None, {"x": numbers(3, 4)})
        assert [step.device for step in opened.provenance.steps] == ["fake_npu", "cpu"]


def test_plans_with_custom_kernels_are_not_cached(folder):
    model = parse(NO_TWO_SHAPES).SerializeToString()
    hit(model, {"x": numbers(2, 4)}, "fake_npu", folder)
    (plan,) = folder.glob("*.plan")
    before = plan.read_bytes()
    with session(model, "fake_npu", folder) as opened:
        kernel = nna.register_kernel("fake_npu", "Exp", lambda x: x * 0, overrides=True)
        opened.run(None, {"x": numbers(3, 4)})
        nna.unregister_kernel(kernel)
        opened.run(None, {"x": numbers(4, 4)})
    assert plan.read_bytes() == before


SEEDED = """
import os, sys, numpy, nnadapter as nna
options = nna.Options(cache_dir=sys.argv[2], rules="[[ban]]\\nop_type = 'Erf'\\ndevice = 'cpu'\\n")
with nna.InferenceSession(sys.argv[1], devices=sys.argv[3], options=options) as session:
    session.run(None, {"x": numpy.ones((2, 3), numpy.float32)})
print(*sorted(os.listdir(sys.argv[2])))
"""


@pytest.mark.slow
@pytest.mark.parametrize("device", ["fake_npu", pytest.param("openvino", marks=pytest.mark.sweep)], indirect=True)
def test_keys_do_not_depend_on_hash_order(model, tmp_path, folder, device):
    (tmp_path / "model.onnx").write_bytes(model)
    command = [sys.executable, "-c", SEEDED, str(tmp_path / "model.onnx"), str(folder), device]
    listed = [
        subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2", "3")
    ]
    assert len({done.stdout for done in listed}) == 1
