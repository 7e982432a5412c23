"""Near misses: models and environments almost equal to those of a cache entry must not reuse it wrongly."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import nnadapter as nna
from benchmarks.models.language_models import Sizes, cache_names, first_feed, language_model
from nnadapter.errors import CacheWarning
from nnadapter.files.atomic_files import replace_file
from nnadapter.store import MADE, Folder, Key, read_entry, write_entry
from tests.caching.nets import X, network, outcome
from tests.models import CHAIN, HEAD, numbers, parse, run_whole
from tests.optional import needs

EVERY = pytest.mark.parametrize("device", ["fake_npu", "openvino", "acme_c", "qnn"], indirect=True)
MODELS = pytest.mark.parametrize("device", ["fake_npu", "openvino"], indirect=True)
"""A device for adapter IR, and one for ONNX."""


@EVERY
def test_next_session_of_the_model_is_a_hit(tmp_path, device):
    assert outcome(tmp_path, network(), device) == (False, "nothing is cached")
    assert outcome(tmp_path, network(), device) == (True, "")


@EVERY
def test_renamed_values_are_a_hit(tmp_path, device):
    outcome(tmp_path, network(), device)
    assert outcome(tmp_path, network(names=("input", "first", "second", "result")), device) == (True, "")


@EVERY
@pytest.mark.parametrize(
    ("other", "differs"),
    [
        ({"filters": 4}, "shapes, constants"),
        ({"seed": 7}, "constants"),
        ({"scale": 1.0000001}, "constants"),
        ({"swapped": True}, "constants"),
    ],
    ids=["filters of 4 by 4", "other weights", "one bit", "the same weights in other places"],
)
def test_other_weights_are_an_explained_miss(tmp_path, device, other, differs):
    outcome(tmp_path, network(), device)
    hit, why = outcome(tmp_path, network(**other), device)
    assert not hit and why.startswith(f"the nearest entry differs in {differs}")
    assert outcome(tmp_path, network(), device)[0]


@MODELS
def test_order_of_initializers_does_not_matter(tmp_path, device):
    outcome(tmp_path, network(), device)
    assert outcome(tmp_path, network(order=(1, 0)), device)[0]


@MODELS
def test_other_shapes_are_a_miss(tmp_path, device):
    outcome(tmp_path, network(), device)
    model = network(size=16)
    hit, why = outcome(tmp_path, model, device, {"x": numbers(1, 3, 16, 16)})
    assert not hit and "differs in shapes (inputs '[1, 3, 12, 12]' there, '[1, 3, 16, 16]' here)" in why


def nodes(*rows, inputs="float[2, 3, 8, 8] x", outputs="y"):
    return parse(f"{HEAD} g ({inputs}) => (float[2, 3, 8, 8] {outputs}) {{ {' '.join(rows)} }}")


@MODELS
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("y = LeakyRelu<alpha = 0.1>(x)", "y = LeakyRelu<alpha = 0.100001>(x)"),
        ("y = Elu<alpha = 0.0>(x)", "y = Elu<alpha = -0.0>(x)"),
        ("y = Softmax<axis = 2>(x)", "y = Softmax<axis = 3>(x)"),
        ("a = Relu(x) b = Neg(x) y = Sub(a, b)", "a = Relu(x) b = Neg(x) y = Sub(b, a)"),
        ("a = Relu(x) y = Sub(a, x)", "a = Relu(x) y = Sub(x, a)"),
        ("y = Sigmoid(x)", "y = Tanh(x)"),
    ],
)
def test_other_attributes_and_edges_are_a_miss(tmp_path, device, first, second):
    feed = {"x": numbers(2, 3, 8, 8)}
    for _ in range(2):
        for model in (nodes(first), nodes(second)):
            found = outcome(tmp_path, model, device, feed)
    assert found[0]
    assert len(list(tmp_path.glob("*.program"))) == 2


@MODELS
def test_another_precision_is_a_miss(tmp_path, device):
    texts = [
        f"{HEAD} g ({dtype}[2, 4] x) => ({dtype}[2, 4] y) {{ a = Relu(x) y = Add(a, x) }}"
        for dtype in ("float", "int32")
    ]
    feeds = [{"x": np.arange(-4, 4).reshape(2, 4).astype(dtype)} for dtype in (np.float32, np.int32)]
    for text, feed in zip(texts, feeds, strict=True):
        assert not outcome(tmp_path, parse(text), device, feed)[0]
    assert outcome(tmp_path, parse(texts[0]), device, feeds[0])[0]


@MODELS
def test_other_initial_states_are_a_miss(tmp_path, device):
    def recurrent(seed):  # one sequence: openvino serializes no program for more
        arrays = {
            "w": numbers(1, 16, 3, seed=1), "r": numbers(1, 16, 4, seed=2), "h": numbers(1, 1, 4, seed=seed),
            "c": numbers(1, 1, 4, seed=4),
        }  # fmt: skip
        node = helper.make_node("LSTM", ["x", "w", "r", "", "", "h", "c"], ["y"], hidden_size=4)
        values = [helper.make_tensor_value_info(*row) for row in (("x", 1, [5, 1, 3]), ("y", 1, [5, 1, 1, 4]))]
        held = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
        graph = helper.make_graph([node], "g", values[:1], values[1:], held)
        return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])

    feed = {"x": numbers(5, 1, 3)}
    assert not outcome(tmp_path, recurrent(3), device, feed)[0]
    hit, why = outcome(tmp_path, recurrent(9), device, feed)
    assert not hit and "constants" in why


@MODELS
def test_other_options_are_an_explained_miss(tmp_path, device):
    plain, other = {
        "fake_npu": ({}, {"memory_bytes": 1 << 28}),
        "openvino": ({}, {"threads": 1}),
    }[device]
    outcome(tmp_path, network(), (device, plain))
    hit, why = outcome(tmp_path, network(), (device, other))
    name = next(iter(other))
    assert not hit and f"the nearest entry differs in options ({name} '" in why


def test_subgraphs_that_read_other_values_differ():
    from nnadapter.onnx.canonical import canonical

    def branching(read, constant="1.0"):
        return onnx.parser.parse_model(f"""{HEAD} g (bool c, float[2] p, float[2] q) => (float[2] y) {{
            a = Relu(p)
            b = Relu(q)
            y = If(c) <
                then_branch = t () => (float[2] u) {{
                    k = Constant<value = float[1] {{{constant}}}>()
                    u = Add({read}, k)
                }},
                else_branch = e () => (float[2] v) {{ v = Neg({read}) }}
            >
        }}""")

    forms = [canonical(model) for model in (branching("a"), branching("b"), branching("a", "2.0"))]
    assert forms[0].structure != forms[1].structure
    assert forms[0].structure == forms[2].structure
    assert bytes(forms[0].constants[0].read()) != bytes(forms[2].constants[0].read())


def test_node_that_names_a_file_has_no_key():
    from nnadapter.ir.text import NotCanonicalError
    from nnadapter.onnx.canonical import canonical

    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=0, ep_cache_context="f.bin")
    values = [helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]))
    with pytest.raises(NotCanonicalError, match="may depend on a file"):
        canonical(model)


def test_unknown_model_fields_have_no_key():
    from nnadapter.ir.text import NotCanonicalError
    from nnadapter.onnx.canonical import canonical

    model = network()
    model.graph.quantization_annotation.add().tensor_name = "x"
    with pytest.raises(NotCanonicalError, match="quantization_annotation"):
        canonical(model)


PLUGIN = """
import numpy as np
from nnadapter.drivers import (
    SUPPORTED, Capability, Context, Device, DeviceInfo, Driver, Execution, ModelForm, Program, Threading
)

class Adding(Execution):
    def __init__(self, added):
        self.added = added

    def compute(self, inputs):
        return [np.float32(inputs[0] + self.added)]

class AddingProgram(Program):
    def __init__(self, added):
        self.added = added

    def create_execution(self):
        return Adding(self.added)

    def serialize(self):
        return str(self.added).encode()

class AddingContext(Context):
    def supported(self, model):
        return [SUPPORTED] * len(model.operations)

    def compile(self, model):
        return AddingProgram({added})

    def deserialize(self, blob):
        return AddingProgram(float(blob))

class AddingDevice(Device):
    capability = Capability(form=ModelForm.IR, threading=Threading.EXCLUSIVE)

    def create_context(self, options):
        return AddingContext()

class AddingDriver(Driver):
    def open(self, device_id):
        return AddingDevice()

    def devices(self):
        return [DeviceInfo(name="adding", version="{version}", sub_type="{hardware}")]
"""
"""Driver whose result differs in each of its versions, whatever the model."""
START = """
import sys, numpy, nnadapter
options = nnadapter.Options(cache_dir=sys.argv[2])
with nnadapter.InferenceSession(sys.argv[1], devices="adding", options=options) as session:
    print(session.run(None, {"x": numpy.zeros((2, 3), numpy.float32)})[0][0, 0], session.report().segments[0].cache)
"""


def started(folder, *, package="1.0", version="1", hardware="chip", added=1):
    """Return the output of a child process with that driver installed."""
    site = folder / "site"
    info = site / "adding-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "entry_points.txt").write_text("[nnadapter.drivers]\nadding = adding_driver:AddingDriver\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: adding\nVersion: {package}\n")
    (site / "adding_driver.py").write_text(PLUGIN.format(version=version, hardware=hardware, added=added))
    onnx.save_model(parse(CHAIN), folder / "model.onnx")
    paths = os.pathsep.join((str(site), *sys.path))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", START, str(folder / "model.onnx"), str(folder / "kept")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    computed, _, said = done.stdout.partition(" ")
    return float(computed), said


@pytest.mark.sweep
def test_other_driver_or_hardware_is_an_explained_miss(tmp_path):
    assert started(tmp_path)[1].startswith("CacheFacts(hit=False")
    assert started(tmp_path) == (1.0, "CacheFacts(hit=True, miss_reason='')\n")
    for change, words in (
        ({"package": "1.1"}, "driver (distribution 'adding 1.0' there, 'adding 1.1' here)"),
        ({"version": "2", "added": 2}, "driver (version '1' there, '2' here"),
        ({"hardware": "other chip"}, "hardware 'chip' there, 'other chip' here"),
        ({"added": 3}, "files '"),
    ):
        computed, said = started(tmp_path, **change)
        assert computed == change.get("added", 1)
        assert "hit=False" in said and words in said
    assert started(tmp_path) == (1.0, "CacheFacts(hit=True, miss_reason='')\n")


def test_model_file_replaced_during_a_session(tmp_path):
    """The session continues with the loaded model; the next one loads the new file."""
    path, folder = tmp_path / "model.onnx", tmp_path / "kept"
    options = nna.Options(cache_dir=folder)

    def write(seed):
        beside = tmp_path / "beside.onnx"
        onnx.save_model(network(seed=seed), beside)
        os.utime(beside, (1, 1))  # same path, size and time
        beside.replace(path)

    write(0)
    with nna.InferenceSession(path, devices="fake_npu", options=options) as session:
        write(50)
        first = session.run(None, {"x": X})
        with nna.InferenceSession(path, devices="fake_npu", options=options) as other:
            second = other.run(None, {"x": X})
            assert not other.report().segments[0].cache.hit
        np.testing.assert_allclose(first, run_whole(network(), {"x": X}), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(second, run_whole(network(seed=50), {"x": X}), rtol=1e-4, atol=1e-4)


@needs("openvino")
def test_external_data_of_the_same_path_size_and_time_is_read(tmp_path):
    path, folder = tmp_path / "model.onnx", tmp_path / "kept"

    def write(seed):
        model = onnx.parser.parse_model(
            f"{HEAD} g (float[2, 200] x) => (float[2, 200] y) {{ a = MatMul(x, w) y = Relu(a) }}"
        )
        model.graph.initializer.append(numpy_helper.from_array(numbers(200, 200, seed=seed), "w"))
        wanted = run_whole(model, {"x": numbers(2, 200)})
        (tmp_path / "weights").unlink(missing_ok=True)
        onnx.save_model(model, path, save_as_external_data=True, location="weights")
        for each in (path, tmp_path / "weights"):
            os.utime(each, (1, 1))
        return wanted

    for seed, is_hit in ((1, False), (1, True), (2, False), (2, True), (1, True)):
        wanted = write(seed)
        with nna.InferenceSession(path, devices="openvino", options=nna.Options(cache_dir=folder)) as session:
            np.testing.assert_allclose(session.run(None, {"x": numbers(2, 200)}), wanted, rtol=1e-3, atol=1e-3)
            assert session.report().segments[0].cache.hit is is_hit


@MODELS
def test_cloned_layers_are_separate_hits(tmp_path, device):
    rows = "".join(f"m{at} = MatMul(x{at}, w{at}) r{at} = Relu(m{at}) x{at + 1} = Erf(r{at}) " for at in range(3))
    model = onnx.parser.parse_model(f"{HEAD} g (float[4, 8] x0) => (float[4, 8] x3) {{ {rows} }}")
    model.graph.initializer.extend(numpy_helper.from_array(numbers(8, 8, seed=at), f"w{at}") for at in range(3))
    rules = f"[[ban]]\nop_type = 'Erf'\ndevice = '{device}'"
    feed = {"x0": numbers(4, 8)}
    assert not outcome(tmp_path, model, device, feed, rules=rules)[0]
    assert outcome(tmp_path, model, device, feed, rules=rules) == (True, "; ; ")


@pytest.mark.parametrize("device", ["openvino"], indirect=True)
def test_dynamic_plans_are_hits(tmp_path, device):
    model = parse(f"{HEAD} g (float[N, 4] x) => (float[N, 4] y) {{ a = Relu(x) b = Exp(a) y = Add(b, x) }}")
    kept = []
    for _ in range(2):
        with nna.InferenceSession(model, devices=device, options=nna.Options(cache_dir=tmp_path)) as session:
            for rows in (2, 3, 5, 7):
                feed = {"x": numbers(rows, 4)}
                np.testing.assert_allclose(session.run(None, feed), run_whole(model, feed), rtol=1e-5, atol=1e-5)
            kept.append((session.report().segments[0].cache.hit, session.report().plans.compiled))
    assert [hit for hit, _ in kept] == [False, True] and kept[0][1] == kept[1][1]


def test_program_rejected_by_its_driver_is_recompiled(tmp_path):
    folder = Folder(tmp_path, 1 << 30)
    outcome(tmp_path, network(), "fake_npu")
    (path,) = (each.path for each in folder.entries() if each.path.suffix == ".program")
    entry = read_entry(path)
    damaged = bytes(entry.made[:200]) + bytes(100)
    key = Key(entry.kind, entry.parts)
    replace_file(path, lambda file: write_entry(file, key, lambda writer: writer.add(MADE, damaged), 0.0))
    with pytest.warns(CacheWarning, match="rejects it"):
        hit, why = outcome(tmp_path, network(), "fake_npu")
    assert not hit and "its driver rejects it" in why
    assert outcome(tmp_path, network(), "fake_npu")[0]


@pytest.mark.slow
def test_session_without_a_cache_does_not_import_caching(tmp_path):
    onnx.save_model(parse(CHAIN), tmp_path / "model.onnx")
    code = (
        "import sys, nnadapter\n"
        "with nnadapter.InferenceSession(sys.argv[1], devices='fake_npu') as session:\n"
        "    session.report()\n"
        "unused = ('nnadapter.store', 'nnadapter.ir.text')\n"
        "print([name for name in sys.modules if name.startswith(unused)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.onnx")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("device", ["openvino"], indirect=True)
def test_language_model_with_a_growing_cache(tmp_path, device):
    sizes = Sizes(layers=2, width=32, heads=4, words=40)
    model = language_model(sizes)
    hits = []
    for _ in range(2):
        with (
            nna.InferenceSession(model, devices=device, options=nna.Options(cache_dir=tmp_path)) as session,
            nna.InferenceSession(model, devices="cpu") as plain,
        ):
            feed = dict(first_feed(sizes, (1, 2, 3)))
            for _ in range(5):
                got, wanted = session.run(None, feed), plain.run(None, feed)
                for one, other in zip(got, wanted, strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
                names = [f"past.{name}" for name in cache_names(sizes)]
                feed = {"ids": np.array([[7]], np.int64), **dict(zip(names, wanted[1:], strict=True))}
            segments = session.report().segments
            hits.append([each.cache.hit for each in segments if each.cache is not None])
    assert hits[1] and all(hits[1]) and not all(hits[0])
