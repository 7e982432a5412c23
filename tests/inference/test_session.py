from __future__ import annotations

import copy
import gc
import pickle
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.drivers.onnxruntime import pool_permit
from nnadapter.errors import (
    CancelledError,
    ClosedError,
    DriverWarning,
    FallbackWarning,
    InputTypeError,
    InvalidInputError,
    InvalidOptionError,
    MissingInputError,
    NotDelegatedError,
)
from tests.models import CHAIN, HEAD, SANDWICH, numbers, parse, run_whole
from tests.trial_driver import COUNTS

TURNS = ("trial", {"only": ["RELU", "NEG", "ADD"]})


def test_fully_supported_model_is_one_segment():
    x = numbers(2, 3)
    with nna.InferenceSession(parse(CHAIN), devices="trial") as session:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], run_whole(parse(CHAIN), {"x": x})[0], rtol=1e-6)
        assert [step.device for step in session.provenance.steps] == ["trial"]
        assert session.report().coverage.nodes == session.report().coverage.flops == 1


def test_partially_supported_model_alternates_between_devices():
    x = numbers(5, 4)
    with nna.InferenceSession(parse(SANDWICH), devices=TURNS) as session:
        np.testing.assert_allclose(session.run(["y"], {"x": x})[0], run_whole(parse(SANDWICH), {"x": x})[0], rtol=1e-5)
        assert [step.device for step in session.provenance.steps] == ["trial", "cpu", "trial", "cpu", "trial"]
        report = session.report()
        assert report.exact and report.switches == 4
        assert {refusal.reason for node in report.nodes for refusal in node.refusals} == {"unsupported_operation"}


def test_cpu_session_is_bit_equal_to_onnxruntime():
    x = numbers(5, 4)
    with nna.InferenceSession(parse(SANDWICH), devices="cpu") as session:
        assert np.array_equal(session.run(None, {"x": x})[0], run_whole(parse(SANDWICH), {"x": x})[0])


def test_each_shape_has_a_plan_and_lru_eviction():
    with nna.InferenceSession(parse(SANDWICH), devices=TURNS, options=nna.Options(max_plans=2)) as session:
        for rows in (1, 2, 1, 3, 1, 2):
            assert session.run(None, {"x": numbers(rows, 4)})[0].shape == (rows, 4)
        plans = session.report().plans
    assert (plans.in_cache, plans.compiled, plans.reused, plans.evicted) == (2, 4, 2, 2)


def test_plan_cache_is_bounded_by_reported_bytes():
    with nna.InferenceSession(parse(CHAIN), devices="trial") as session:
        session.run(None, {"x": numbers(2, 3)})
        assert 1000 < session.report().plans.memory_bytes < 3000
        assert "plans      1 in cache (2.0 KiB), 1 compiled" in str(session.report())
    with nna.InferenceSession(parse(SANDWICH), devices="fake_npu", options={"max_plan_bytes": 1}) as session:
        for rows in (1, 2, 2):
            session.run(None, {"x": numbers(rows, 4)})
        plans = session.report().plans
    assert (plans.in_cache, plans.compiled, plans.reused, plans.evicted) == (1, 2, 1, 1)


def test_prepare_compiles_plans_before_the_runs():
    with nna.InferenceSession(parse(SANDWICH), devices=TURNS) as session:
        session.prepare([{"x": (7, 4)}, {"x": (8, 4)}])
        compiled = COUNTS["compile"]
        session.run(None, {"x": numbers(7, 4)})
        session.run(None, {"x": numbers(8, 4)})
        assert COUNTS["compile"] == compiled


def test_closing_frees_every_program_and_context():
    session = nna.InferenceSession(parse(SANDWICH), devices=TURNS)
    session.run(None, {"x": numbers(2, 4)})
    before = dict(COUNTS)
    session.close()
    assert COUNTS["closed"] == before.get("closed", 0) + 3
    assert COUNTS["context_closed"] == before.get("context_closed", 0) + 1


@pytest.mark.parametrize("devices", ["trial", "cpu"])
@pytest.mark.parametrize(
    ("feed", "error", "words"),
    [
        ({}, MissingInputError, r"\['x'\]"),
        ({"x": numbers(2, 3), "z": numbers(1)}, InvalidInputError, "'z'"),
        ({"x": numbers(2, 3).astype(np.float64)}, InputTypeError, "float64.*float32"),
        ({"x": numbers(3, 3)}, InvalidInputError, r"\[3, 3\].*\[2, 3\]"),
        ({"x": numbers(6)}, InvalidInputError, r"\[6\].*\[2, 3\]"),
        ({"x": "words"}, InputTypeError, "'x'"),
        ([1, 2], InvalidInputError, "dictionary"),
    ],
)
def test_invalid_feeds_are_refused(devices, feed, error, words):
    with nna.InferenceSession(parse(CHAIN), devices=devices) as session, pytest.raises(error, match=words):
        session.run(None, feed)


@pytest.mark.parametrize("devices", ["trial", "cpu"])
def test_numbers_are_refused_for_string_inputs(devices):
    text = f"{HEAD} g (string[2] s) => (string[2] t) {{ t = Identity(s) }}"
    with nna.InferenceSession(parse(text), devices=devices, options=nna.Options(fallback="allow")) as session:
        with pytest.raises(InputTypeError, match="float64.*string"):
            session.run(None, {"s": np.zeros(2)})
        assert session.run(None, {"s": np.array(["a", "b"])})[0].tolist() == ["a", "b"]


@pytest.mark.parametrize("devices", ["trial", "cpu"])
def test_unknown_output_names_are_refused(devices):
    with nna.InferenceSession(parse(CHAIN), devices=devices) as session:
        with pytest.raises(InvalidInputError, match="'nope'.*'y'"):
            session.run(["nope"], {"x": numbers(2, 3)})
        assert len(session.run([], {"x": numbers(2, 3)})) == 1
        assert len(session.run(["y", "y"], {"x": numbers(2, 3)})) == 2


def test_lists_ort_values_and_strided_arrays_are_accepted():
    wide = numbers(2, 6)
    with nna.InferenceSession(parse(CHAIN), devices="trial") as session:
        expected = session.run(None, {"x": np.ascontiguousarray(wide[:, ::2])})[0]
        value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(wide[:, ::2]))
        for feed in (wide[:, ::2], wide[:, ::2].tolist(), value):
            np.testing.assert_array_equal(session.run(None, {"x": feed})[0], expected)


def test_signature_equals_onnxruntime():
    text = f"""{HEAD}
    g (float[N, 3, Q, 4] x, int64[2] n, string[1] s) => (float[N, 3, M, 4] y, int64 m, string[1] t) {{
        y = Relu(x)
        m = Size(n)
        t = Identity(s)
    }}"""
    model = parse(text)
    theirs = onnxruntime.InferenceSession(model.SerializeToString())
    with nna.InferenceSession(model, devices="trial") as session:
        for ours, reference in (
            (session.get_inputs(), theirs.get_inputs()),
            (session.get_outputs(), theirs.get_outputs()),
        ):
            assert [(value.name, value.shape, value.type) for value in ours] == [
                (value.name, value.shape, value.type) for value in reference
            ]


@pytest.mark.parametrize(
    ("kind", "labels"),
    [("int64", "classlabels_int64s: ints = [5, 7]"), ("string", 'classlabels_strings: strings = ["a", "b"]')],
)
def test_map_types_equal_onnxruntime(kind, labels):
    text = f"""<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 1]>
    g (float[N, 2] x) => (seq(map({kind}, float[])) y) {{ a = Relu (x)  y = ai.onnx.ml.ZipMap <{labels}> (a) }}"""
    model = parse(text)
    theirs = onnxruntime.InferenceSession(model.SerializeToString())
    with nna.InferenceSession(model, devices="trial") as session:
        assert session.get_outputs()[0].type == theirs.get_outputs()[0].type
        assert session.run(None, {"x": numbers(3, 2)}) == theirs.run(None, {"x": numbers(3, 2)})


def test_metadata_equals_onnxruntime():
    model = parse(CHAIN)
    model.metadata_props.add(key="character", value="a\nb")
    model.producer_name, model.model_version, model.doc_string = "tests", 3, "words"
    theirs = onnxruntime.InferenceSession(model.SerializeToString()).get_modelmeta()
    with nna.InferenceSession(model, devices="trial") as session:
        ours = session.get_modelmeta()
    for name in ("producer_name", "graph_name", "domain", "description", "graph_description", "version"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.custom_metadata_map == theirs.custom_metadata_map


def test_overridable_initializers_are_accepted_as_feeds():
    text = f"{HEAD} g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {{1, 2}}> {{ y = Mul(x, w) }}"
    x = np.array([3, 4], np.float32)
    with nna.InferenceSession(parse(text), devices="trial") as session:
        assert [value.name for value in session.get_overridable_initializers()] == ["w"]
        assert session.run(None, {"x": x})[0].tolist() == [3, 8]
        assert session.run(None, {"x": x, "w": x})[0].tolist() == [9, 16]


def test_concurrent_runs_of_one_session():
    feeds = [numbers(1 + index % 3, 4, seed=index) for index in range(24)]
    expected = [run_whole(parse(SANDWICH), {"x": feed})[0] for feed in feeds]
    got: dict[int, np.ndarray] = {}
    with nna.InferenceSession(parse(SANDWICH), devices=TURNS, options=nna.Options(max_plans=1)) as session:

        def work(part):
            for index in part:
                got[index] = session.run(None, {"x": feeds[index]})[0]
                assert not session.provenance.fell_back

        threads = [threading.Thread(target=work, args=(range(start, 24, 4),)) for start in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for index, array in enumerate(expected):
        np.testing.assert_allclose(got[index], array, rtol=1e-5)


def test_asynchronous_runs():
    x = numbers(2, 3)
    done = threading.Event()
    heard = []
    with nna.InferenceSession(parse(CHAIN), devices="trial") as session:
        expected = session.run(None, {"x": x})[0]
        future = session.submit(None, {"x": x})
        np.testing.assert_array_equal(future.result()[0], expected)
        assert [step.device for step in future.provenance.steps] == ["trial"]
        session.run_async(None, {"x": x}, lambda *said: (heard.append(said), done.set()), "mine")
        assert done.wait(10)
        results, mine, error = heard[0]
        assert mine == "mine" and error == "" and np.array_equal(results[0], expected)
        streamed = list(session.stream([{"x": x + index} for index in range(5)], depth=3))
        for index, result in enumerate(streamed):
            np.testing.assert_array_equal(result[0], session.run(None, {"x": x + index})[0])
        with pytest.raises(MissingInputError):
            session.submit(None, {}).result()


def test_callback_exceptions_reach_threading_excepthook(monkeypatch):
    heard = SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", heard.put)

    def fail(*_):
        raise OSError("no more room")

    with nna.InferenceSession(parse(CHAIN), devices="trial") as session:
        session.run_async(None, {"x": numbers(2, 3)}, fail, None)
        said = heard.get(timeout=10)
        assert said.exc_type is OSError and str(said.exc_value) == "no more room" and said.exc_traceback is not None
        assert session.submit(None, {"x": numbers(2, 3)}).result(10), "the pool goes on"


def test_io_bindings():
    x, target = numbers(2, 3), np.empty((2, 3), np.float32)
    with nna.InferenceSession(parse(CHAIN), devices="trial") as session:
        expected = session.run(None, {"x": x})[0]
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y", "cpu", 0, np.float32, target.shape, target.ctypes.data)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(target, expected)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], expected)
        values = session.run_with_ort_values(["y"], {"x": onnxruntime.OrtValue.ortvalue_from_numpy(x)})
        np.testing.assert_array_equal(values[0].numpy(), expected)


@pytest.mark.parametrize("device", ["cpu", "trial"])
def test_unbound_input_is_named(device):
    text = f"{HEAD} g (float[2] a, float[2] b, float[2] unread) => (float[2] y) {{ y = Add(a, b) }}"
    with nna.InferenceSession(parse(text), devices=device) as session:
        binding = session.io_binding()
        for name in ("a", "unread"):
            binding.bind_cpu_input(name, np.ones(2, np.float32))
        binding.bind_output("y")
        with pytest.raises(MissingInputError, match=r"\['b'\].*feed every one of \['a', 'b', 'unread'\]") as caught:
            session.run_with_iobinding(binding)
        assert caught.value.name == "b"
        binding.clear_binding_inputs()
        for name, size in (("a", 2), ("b", 3)):
            binding.bind_cpu_input(name, np.ones(size, np.float32))
        if device == "cpu":  # values without a reader are not required
            with pytest.raises(InvalidInputError, match="'?b'?.*3") as caught:
                session.run_with_iobinding(binding)
            assert type(caught.value) is InvalidInputError
        binding.bind_cpu_input("unread", np.ones(2, np.float32))
        binding.bind_cpu_input("b", np.ones(2, np.float32))
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == [2, 2]


def test_terminate_stops_a_run():
    options = onnxruntime.RunOptions()
    options.terminate = True
    with nna.InferenceSession(parse(CHAIN), devices="trial") as session, pytest.raises(CancelledError):
        session.run(None, {"x": numbers(2, 3)}, options)


def test_outputs_belong_to_the_caller():
    text = f"""{HEAD} g (float[2] x) => (float[2] y, float[2] z, float[2] x2) <float[2] w = {{1, 2}}> {{
        y = Add(x, w)
        z = Identity(w)
        x2 = Identity(x)
    }}"""
    x = np.array([3, 4], np.float32)
    with nna.InferenceSession(parse(text), devices="trial") as session:
        first = session.run(None, {"x": x})
        for array in first:
            array[...] = -1
        assert x.tolist() == [3, 4]
        assert [array.tolist() for array in session.run(None, {"x": x})] == [[4, 6], [1, 2], [3, 4]]


def test_device_that_refuses_all_nodes_warns_with_reason():
    with pytest.warns(FallbackWarning, match="'trial' took none of the 4 nodes.*unsupported_operation"):
        session = nna.InferenceSession(parse(CHAIN), devices=("trial", {"only": ["TANH"]}))
    session.close()


def test_warning_for_a_refused_single_node_is_singular():
    text = f"{HEAD} g (float[2] x) => (float[2] y) {{ y = Relu(x) }}"
    with pytest.warns(FallbackWarning, match=r"'trial' took no node; the only one was refused because of .*[^s]$"):
        session = nna.InferenceSession(parse(text), devices=("trial", {"only": ["TANH"]}))
    session.close()


def test_forbidden_fallback_names_refused_nodes():
    with pytest.raises(NotDelegatedError, match="2 of 5 nodes") as caught:
        nna.InferenceSession(parse(SANDWICH.replace("[N", "[2")), devices=TURNS, options=nna.Options(fallback="forbid"))
    assert caught.value.device == "trial" and len(caught.value.nodes) == 2
    with nna.InferenceSession(
        parse(SANDWICH.replace("[N", "[2")), devices=[TURNS, "cpu"], options=nna.Options(fallback="forbid")
    ) as session:
        assert session.run(None, {"x": numbers(2, 4)})[0].shape == (2, 4)


def test_sequences_and_strings_pass_through_the_cpu():
    text = f"""{HEAD} g (float[2] x, string[2] s) => (seq(float[2]) q, string[2] t, float[2] y) {{
        a = Relu(x)
        q = SequenceConstruct(a, x)
        t = Identity(s)
        b = SequenceAt(q, one)
        y = Neg(b)
    }}""".replace("{\n", "{\n one = Constant<value = int64 {1}>()\n", 1)
    x, s = np.array([-3, 4], np.float32), np.array(["a", "b"], dtype=object)
    expected = run_whole(parse(text), {"x": x, "s": s})
    with nna.InferenceSession(parse(text), devices=TURNS) as session:
        q, t, y = session.run(None, {"x": x, "s": s})
    assert [part.tolist() for part in q] == [part.tolist() for part in expected[0]]
    assert t.tolist() == ["a", "b"] and y.tolist() == expected[2].tolist()


def test_default_devices(monkeypatch):
    monkeypatch.setenv("NNADAPTER_DEVICES", "trial, cpu")
    with nna.InferenceSession(parse(CHAIN)) as session:
        assert session.devices == ("trial", "cpu")
    assert nna.get_device() == "trial"
    monkeypatch.delenv("NNADAPTER_DEVICES")
    with nna.InferenceSession(parse(CHAIN)) as session:
        assert session.devices == ("cpu",)


def test_providers_select_devices():
    with nna.InferenceSession(parse(CHAIN), providers=["trial", ("CPUExecutionProvider", {})]) as session:
        assert session.devices == ("trial", "cpu")
    with pytest.warns(FallbackWarning, match="CUDAExecutionProvider"):
        nna.InferenceSession(parse(CHAIN), providers=["CUDAExecutionProvider", "CPUExecutionProvider"]).close()
    with pytest.raises(InvalidOptionError, match="2 and 1"):
        nna.InferenceSession(parse(CHAIN), providers=["trial", "CPUExecutionProvider"], provider_options=[{}])


@pytest.mark.parametrize(
    "given",
    [
        {"fallback": "maybe"},
        {"max_plans": 0},
        {"max_plans": True},
        {"max_plan_bytes": 0},
        {"max_plan_bytes": 1e9},
        {"nope": 1},
        {"policy": "x"},
    ],
)
def test_invalid_options_are_refused(given):
    with pytest.raises(InvalidOptionError):
        nna.InferenceSession(parse(CHAIN), options=given)


def test_session_options_reach_the_cpu_steps():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    with nna.InferenceSession(parse(SANDWICH), options, devices=TURNS) as session:
        session.run(None, {"x": numbers(2, 4)})
        assert session.get_session_options() is options
    assert options.use_per_session_threads
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"


def test_successful_session_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with nna.InferenceSession(parse(SANDWICH), devices=TURNS) as session:
            session.run(None, {"x": numbers(2, 4)})


@pytest.mark.parametrize("devices", ["trial", "cpu"])
def test_closed_session_refuses_runs(devices):
    session = nna.InferenceSession(parse(SANDWICH), devices=devices)
    session.run(None, {"x": numbers(2, 4)})
    session.close()
    session.close()
    with pytest.raises(ClosedError, match="closed"):
        session.run(None, {"x": numbers(2, 4)})
    with pytest.raises(ClosedError):
        session.submit(None, {"x": numbers(2, 4)})


def test_first_device_of_a_driver_has_one_name():
    with nna.InferenceSession(parse(CHAIN), devices="cpu:0") as session:
        assert session.devices == ("cpu",)
    with pytest.raises(InvalidOptionError, match="named twice"):
        nna.InferenceSession(parse(CHAIN), devices=["trial", "trial:0"])
    with pytest.raises(InvalidOptionError, match="got 5"):
        nna.InferenceSession(parse(CHAIN), devices=5)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [({"nope": (1,)}, "'nope'"), ({"x": (1, 2, 3)}, r"\[1, 2, 3\]"), ({"x": (1, 5)}, r"\[1, 5\]"), ({}, "'x'; pass")],
)
def test_invalid_shapes_are_refused_by_prepare(shapes, words):
    with nna.InferenceSession(parse(SANDWICH), devices="trial") as session:
        with pytest.raises(InvalidInputError, match=words):
            session.prepare(shapes)
        assert session._engine.source.counts.compiled == 0


def free_pools():
    """Return how many sessions could have thread pools now; other live sessions use some."""
    gc.collect()
    return len(list(iter(pool_permit, None)))


def test_garbage_collected_sessions_release_thread_pools():
    before = free_pools()
    wide = parse(SANDWICH.replace("N, 4", "N, 100000"))  # wide enough for threads on the CPU
    for _ in range(12):
        session = nna.InferenceSession(wide, devices=TURNS)
        session.run(None, {"x": numbers(2, 100000)})
        assert free_pools() < before
        del session
    assert free_pools() == before
    assert onnxruntime.InferenceSession(parse(CHAIN).SerializeToString()).run(None, {"x": numbers(2, 3)})


def test_failed_session_creation_closes_all_contexts():
    before = COUNTS.get("context_closed", 0)
    with pytest.raises(nna.errors.InvalidModelError):
        nna.InferenceSession(b"garbage", devices="trial")
    with pytest.raises(nna.errors.DeviceUnavailableError):
        devices = ["trial", ("trial:2", {"fault": "context"})]
        nna.InferenceSession(parse(CHAIN), devices=devices, options={"fallback": "forbid"})
    assert COUNTS["context_closed"] == before + 2


def test_invalid_values_on_the_cpu_are_input_errors():
    text = f"{HEAD} g (float[3] x, int64 i) => (float y) {{ a = Neg(x) y = Gather(a, i) }}"
    feed = {"x": numbers(3), "i": np.array(9)}
    for devices in ("cpu", ("trial", {"only": ["NEG"]})):
        with nna.InferenceSession(parse(text), devices=devices) as session, pytest.raises(InvalidInputError):
            session.run(None, feed)


class PickledByItsPath(nna.InferenceSession):
    """Session that is pickled by its path, as clients of ONNX Runtime do it."""

    def __init__(self, path):
        super().__init__(path)
        self.path = path

    def __getstate__(self):
        return {"path": self.path}

    def __setstate__(self, state):
        self.__init__(state["path"])


@pytest.mark.parametrize("again", [lambda it: pickle.loads(pickle.dumps(it)), copy.copy, copy.deepcopy])
def test_subclass_may_support_pickling_and_copying(again, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(parse(CHAIN).SerializeToString())
    session, feed = PickledByItsPath(path), {"x": numbers(2, 3)}
    np.testing.assert_array_equal(again(session).run(None, feed)[0], session.run(None, feed)[0])


def test_pickling_a_session_is_an_error_with_advice():
    session = nna.InferenceSession(parse(CHAIN))
    with pytest.raises(TypeError, match="a session cannot be pickled.*open its model in the other process"):
        pickle.dumps(session)


def test_session_options_without_effect_on_devices_warn(tmp_path: Path) -> None:
    model = parse(CHAIN).SerializeToString()
    written = tmp_path / "optimized.onnx"
    entries = {"ep.context_enable": "1", "session.save_model_format": "ORT", "session.compile_only": "1"}

    def asked(change: Callable[[onnxruntime.SessionOptions], object], devices: str) -> list[str]:
        session_options = onnxruntime.SessionOptions()
        change(session_options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            nna.InferenceSession(model, session_options, devices=devices)
        return [str(each.message) for each in caught if issubclass(each.category, DriverWarning)]

    policy = onnxruntime.OrtExecutionProviderDevicePolicy.PREFER_CPU
    changes: dict[str, Callable[[onnxruntime.SessionOptions], object]] = {
        "optimized_model_filepath": lambda made: setattr(made, "optimized_model_filepath", str(written)),
        "providers": lambda made: made.add_provider("CPUExecutionProvider", {}),
        "selection policy": lambda made: made.set_provider_selection_policy(policy),
        **{key: partial(_add_entry, key=key, value=value) for key, value in entries.items()},
    }
    for name, change in changes.items():
        told = asked(change, "fake_npu")
        assert len(told) == 1, (name, told)
        assert name in told[0]
    assert not written.exists()
    assert asked(lambda made: made.add_session_config_entry("session.compile_only", "0"), "fake_npu") == []
    assert asked(lambda made: made.add_session_config_entry("session.set_denormal_as_zero", "1"), "fake_npu") == []
    assert asked(changes["optimized_model_filepath"], "cpu") == []
    assert written.exists()


def _add_entry(options: onnxruntime.SessionOptions, *, key: str, value: str) -> None:
    options.add_session_config_entry(key, value)


def test_session_options_inside_a_model_are_not_used(monkeypatch: pytest.MonkeyPatch):
    if "AzureExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no AzureExecutionProvider")
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    x = numbers(2, 3)
    with (
        pytest.warns(FallbackWarning, match="took none"),
        nna.InferenceSession(parse(CHAIN), devices="ort:Azure") as session,
    ):
        np.testing.assert_allclose(session.run(None, {"x": x})[0], run_whole(parse(CHAIN), {"x": x})[0], rtol=1e-6)
