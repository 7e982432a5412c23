"""Paddle's predictor interface over sessions; general behavior is tested with ONNX models."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import nnadapter as nna
from nnadapter import paddle
from nnadapter.paddle.config import ANSWERS, IGNORED, REFUSED
from tests.models import parse
from tests.optional import needs

ADDING = """<ir_version: 10, opset_import: ["" : 17]>
g (float[n, 2] x, float[n, 2] y) => (float[n, 2] sum, float[n, 2] x2) { sum = Add(x, y) x2 = Add(x, x) }"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(parse(ADDING), path)
    return path


@pytest.fixture
def predictor(model):
    config = paddle.Config(model)
    config.enable_custom_device("fake_npu", 0)
    return paddle.create_predictor(config)


def ones(*shape):
    return np.ones(shape, np.float32)


@needs("paddle", "paddle2onnx")
def test_deployment_script_needs_only_another_import(saved, tmp_path):
    folder, run = saved / "recognizer", np.load(saved / "recognizer" / "run0.npz")
    np.save(tmp_path / "in.npy", run["in x"])
    script = Path(__file__).with_name("deployment.py")
    environment = {**os.environ, "NNADAPTER_CACHE_DIR": str(saved / "cache"), "NNADAPTER_DEVICES": "fake_npu"}
    told, results = [], []
    for module in ("paddle.inference", "nnadapter.paddle"):
        out = tmp_path / f"{module}.npy"
        arguments = [folder / "inference.json", folder / "inference.pdiparams", tmp_path / "in.npy", out]
        command = [sys.executable, script, module, *arguments]
        process = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        told.append(process.stdout.splitlines()[-1])
        results.append(np.load(out))
    assert told[0] == told[1]
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)


def test_handles_hold_copied_values(predictor):
    assert (predictor.get_input_names(), predictor.get_output_names()) == (["x", "y"], ["sum", "x2"])
    x, y = map(predictor.get_input_handle, ("x", "y"))
    source = ones(3, 2)
    x.copy_from_cpu(source)
    y.share_external_data(source)
    source[:] = 5.0
    assert predictor.run() is None
    total = predictor.get_output_handle("sum")
    np.testing.assert_array_equal(total.copy_to_cpu(), np.full((3, 2), 6.0, np.float32))
    assert (total.shape(), total.type(), total.lod()) == ([3, 2], paddle.DataType.FLOAT32, [])
    assert (x.name(), x.shape(), x.type()) == ("x", [3, 2], paddle.DataType.FLOAT32)


def test_reshaping_keeps_values_that_fill_the_shape(predictor):
    handle = predictor.get_input_handle("x")
    handle.reshape([4, 2])
    assert handle.shape() == [4, 2]
    handle.copy_from_cpu(np.arange(8, dtype=np.float32).reshape(4, 2))
    handle.reshape((1, 2))
    np.testing.assert_array_equal(handle.copy_to_cpu(), [[0, 1]])
    handle.reshape(9)
    with pytest.raises(nna.errors.InvalidInputError, match="'x' has no value"):
        handle.copy_to_cpu()


def test_run_takes_arrays_in_the_order_of_the_inputs(predictor):
    total, doubled = predictor.run([ones(1, 2), 2 * ones(1, 2)])
    np.testing.assert_array_equal(total, [[3, 3]])
    np.testing.assert_array_equal(doubled, [[2, 2]])
    with pytest.raises(nna.errors.InvalidInputError, match="2 inputs, got 1"):
        predictor.run([ones(1, 2)])


def test_clone_has_separate_handles_and_the_same_session(predictor):
    other = predictor.clone()
    predictor.run([ones(1, 2), ones(1, 2)])
    assert other.session is predictor.session
    with pytest.raises(nna.errors.InvalidInputError, match="'sum' has no value"):
        other.get_output_handle("sum").copy_to_cpu()
    assert predictor.try_shrink_memory() == 0
    assert predictor.clear_intermediate_tensor() is None
    assert predictor.report().coverage.nodes == 1.0


def test_pool_has_the_requested_size(model):
    pool = paddle.PredictorPool(paddle.Config(model), 2)
    assert pool.retrieve(0) is not pool.retrieve(1)
    assert pool.retrieve(0).session is pool.retrive(1).session
    with pytest.raises(nna.errors.InvalidOptionError, match="2 predictors"):
        pool.retrieve(2)
    with pytest.raises(nna.errors.InvalidOptionError, match="at least 1"):
        paddle.PredictorPool(paddle.Config(model), 0)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda each: each.get_input_handle("z"),
            nna.errors.InvalidInputError,
            "no input 'z'; did you mean|known: x, y",
        ),
        (lambda each: each.get_output_handle("summ"), nna.errors.InvalidInputError, "did you mean 'sum'"),
        (lambda each: each.run(), nna.errors.MissingInputError, "x"),
        (lambda each: each.get_output_handle("sum").reshape([1]), nna.errors.InvalidInputError, "is an output"),
        (lambda each: each.get_input_handle("x").copy_from_cpu(1.0), TypeError, "numpy array or a list"),
        (lambda each: each.get_input_handle("x").set_lod([[0, 1]]), nna.errors.InvalidInputError, "pad the sequences"),
        (lambda each: each.run([ones(1, 2).astype("float64")] * 2), nna.errors.InputTypeError, "float64"),
    ],
)
def test_misuse_is_an_error(predictor, call, error, match):
    with pytest.raises(error, match=match):
        call(predictor)


def test_strings_and_empty_offsets_are_accepted(predictor):
    handle = predictor.get_input_handle("x")
    handle.set_lod([])
    handle.copy_from_cpu(["a", "b"])
    assert handle.shape() == [2]


def test_devices_of_paddle_and_nnadapter_are_accepted(model):
    config = paddle.Config(model)
    assert config.devices is None
    config.enable_use_gpu(100, 1)
    assert (config.use_gpu(), config.gpu_device_id()) == (True, 1)
    assert config.devices == ("ort:CUDA", {"provider_options": ["device_id=1"]})
    config.disable_gpu()
    assert config.devices is None
    config.enable_custom_device("acme", 2)
    assert config.devices == "acme:2"
    config.set_devices(["fake_npu", "cpu"])
    assert config.devices == ["fake_npu", "cpu"]


def test_options_are_set_separately_or_together(model, tmp_path):
    config = paddle.Config(model)
    config.set_options(policy="latency")
    config.set_optim_cache_dir(tmp_path)
    assert (config.options.policy, config.options.cache_dir) == ("latency", tmp_path)
    config.set_options(nna.Options(), fallback="forbid")
    assert (config.options.policy, config.options.fallback) == ("priority", "forbid")
    with pytest.raises(nna.errors.InvalidOptionError, match="policy"):
        config.set_options(policy="fastest")


def test_a_config_names_files_or_a_folder(tmp_path):
    (tmp_path / "net.pdmodel").touch()
    assert paddle.Config(tmp_path).model_dir() == str(tmp_path)
    named = paddle.Config(tmp_path, "net")
    assert (named.prog_file(), named.model_dir()) == (str(tmp_path / "net.pdmodel"), "")
    config = paddle.Config()
    config.set_prog_file("a.json")
    config.set_params_file("b.pdiparams")
    assert (config.prog_file(), config.params_file()) == ("a.json", "b.pdiparams")
    assert paddle.Config(config).params_file() == "b.pdiparams"
    assert "a.json" in config.summary()
    with pytest.raises(nna.errors.InvalidOptionError, match="has no model"):
        paddle.create_predictor(paddle.Config())


def test_other_settings_are_ignored_or_refused(model):
    config = paddle.Config(model)
    for name in IGNORED:
        assert getattr(config, name)(1, some=2) is None
    assert [getattr(config, name)() for name in ANSWERS] == [*ANSWERS.values()]
    for name in REFUSED:
        with pytest.raises(nna.errors.InvalidOptionError, match=f"Config.{name} is not supported"):
            getattr(config, name)
    with pytest.raises(AttributeError, match="did you mean 'enable_memory_optim'"):
        config.enable_memory_optin()


def test_documentation_describes_all_settings():
    page = (Path(__file__).parents[2] / "docs" / "paddle.md").read_text()
    rows = dict(re.findall(r"^\| (`.*`) \| (.*) \|$", page, re.MULTILINE))
    told = {name: meaning for names, meaning in rows.items() for name in re.findall(r"`(\w+)`", names)}
    assert told.items() >= {**IGNORED, **{name: f"an error: {reason}" for name, reason in REFUSED.items()}}.items()


def test_thread_count_reaches_onnxruntime(model):
    config = paddle.Config(model)
    assert config.cpu_math_library_num_threads() == 1
    config.set_cpu_math_library_num_threads(3)
    assert config.cpu_math_library_num_threads() == 3
    assert paddle.create_predictor(config).session.get_session_options().intra_op_num_threads == 3


def test_types_have_the_names_of_paddle():
    assert paddle.get_num_bytes_of_data_type(paddle.DataType.FLOAT16) == 2
    assert paddle.PrecisionType.Half is not paddle.PrecisionType.Float32
    assert paddle.PlaceType.CUSTOM.name == "CUSTOM"
    assert paddle.get_version().startswith("version: nnadapter")


@needs("paddle")
@pytest.mark.sweep
def test_interface_of_paddle_is_complete():
    classes = "(p.Config, p.Predictor, p.Tensor, p.PredictorPool)"
    code = f"import paddle.inference as p; print([n for c in {classes} for n in dir(c) if n[0] != '_'])"
    process = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    left_out = {"Bfloat16", "Float32", "Half", "Int8", "register_input_hook", "register_output_hook"}
    left_out |= {"share_external_data_by_ptr_name", "tensorrt_precision_mode", "xpu_config"}
    ours = {*IGNORED, *REFUSED, *ANSWERS, *left_out}
    for each in (paddle.Config, paddle.Predictor, paddle.Tensor, paddle.PredictorPool):
        ours.update(dir(each))
    assert set(ast.literal_eval(process.stdout.splitlines()[-1])) - ours == set()
