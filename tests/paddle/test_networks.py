from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import numpy as np
import pytest

import nnadapter as nna

NETWORKS = {"cnn": 1.0, "recognizer": 1.0, "transformer": 1.0, "control flow": 0.4, "quantized": 1.0, "attributes": 0.9}
"""Name -> the least share of nodes on fake_npu."""
INPUTS = {"cnn": "image", "transformer": "ids"}


def opened(saved, name, **arguments):
    """Return a session; only one of concurrent tests converts the network."""
    with (saved / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        options = nna.Options(cache_dir=saved / "cache" / "programs", fallback="allow")
        return nna.InferenceSession(saved / name, options=options, **arguments)


@pytest.mark.sweep
@pytest.mark.parametrize("device", ["cpu", "fake_npu", "openvino"])
@pytest.mark.parametrize("name", NETWORKS)
def test_results_equal_paddle(saved, name, device):
    with opened(saved, name, devices=device) as session:
        for path in sorted((saved / name).glob("run*.npz")):
            run = dict(np.load(path))
            (called,) = (each.name for each in session.get_inputs())
            assert called == INPUTS.get(name, "x")
            feed = run.pop(f"in {called}")
            assert [output.name for output in session.get_outputs()] == list(run)
            for found, expected in zip(session.run(None, {called: feed}), run.values(), strict=True):
                assert found.dtype == expected.dtype
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        coverage = session.report().coverage
    print(f"{name} on {device}: {coverage.nodes:.0%} of nodes, {coverage.flops:.0%} of FLOPs off the CPU")
    assert device != "fake_npu" or coverage.nodes >= NETWORKS[name]


def test_cached_model_imports_no_paddle_and_starts_no_process(saved):
    opened(saved, "cnn", devices="cpu").close()
    code = f"""
import subprocess, sys
def refused(*arguments, **named): raise AssertionError("a process was started")
subprocess.Popen.__init__ = refused
import nnadapter
options = {{"cache_dir": {str(saved / "cache" / "programs")!r}}}
nnadapter.InferenceSession({str(saved / "cnn")!r}, devices="cpu", options=options)
nnadapter.paddle.create_predictor
print([name for name in sys.modules if name.partition(".")[0] in ("paddle", "paddle2onnx")])
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


@pytest.mark.sweep
def test_command_line_accepts_a_folder(saved):
    opened(saved, "cnn", devices="cpu").close()
    arguments = ["run", str(saved / "cnn"), "-d", "fake_npu", "--cache-dir", str(saved / "cache" / "programs")]
    process = subprocess.run(
        [sys.executable, "-m", "nnadapter", *arguments], capture_output=True, text=True, check=True
    )
    assert "fetch_name_0" in process.stdout


@pytest.mark.parametrize("name", ["inference.json", "inference.pdiparams"])
def test_either_file_names_the_model(saved, name):
    opened(saved, "cnn", devices="cpu").close()
    path, options = saved / "cnn" / name, nna.Options(cache_dir=saved / "cache" / "programs")
    with nna.InferenceSession(path, devices="cpu", options=options) as session:
        assert session.get_inputs()[0].name == "image"


@pytest.mark.sweep
def test_compile_report_compare_and_what_if_accept_a_folder(saved, tmp_path):
    opened(saved, "cnn", devices="cpu").close()
    model, options = saved / "cnn", nna.Options(cache_dir=saved / "cache" / "programs", fallback="allow")
    nna.compile(model, tmp_path / "cnn.nna", devices="fake_npu", options=options)
    assert nna.InferenceSession(tmp_path / "cnn.nna").get_inputs()[0].name == "image"
    assert nna.partition_report(model, "fake_npu", options=options).model == "cnn"
    assert (
        nna.compare(model, "fake_npu", options=nna.Options(cache_dir=saved / "cache" / "programs"))
        .differences[0]
        .agrees
    )
    assert nna.what_if([model / "inference.json"], "fake_npu", options=options).to_dict()


OLD = """
import sys, numpy, paddle
from paddle.inference import Config, create_predictor
network = paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 3), paddle.nn.BatchNorm2D(4), paddle.nn.ReLU())
network.eval()
spec = paddle.static.InputSpec([None, 3, None, None], "float32", "x")
paddle.jit.save(network, sys.argv[1] + "/inference", input_spec=[spec])
predictor = create_predictor(Config(sys.argv[1] + "/inference.pdmodel", sys.argv[1] + "/inference.pdiparams"))
(name,) = predictor.get_output_names()
predictor.get_input_handle("x").copy_from_cpu(numpy.ones((1, 3, 8, 9), "float32"))
predictor.run()
numpy.savez(sys.argv[1] + "/results.npz", **{name: predictor.get_output_handle(name).copy_to_cpu()})
"""


@pytest.mark.sweep
def test_model_before_paddle_3_keeps_its_names(saved, tmp_path):
    folder, script = tmp_path / "old", tmp_path / "old.py"
    folder.mkdir()
    script.write_text(OLD)
    environment = {**os.environ, "FLAGS_enable_pir_api": "0"}
    subprocess.run([sys.executable, script, folder], check=True, capture_output=True, env=environment)
    with nna.InferenceSession(folder, devices="fake_npu", options={"cache_dir": False}) as session:
        ((name, wanted),) = np.load(folder / "results.npz").items()
        assert [output.name for output in session.get_outputs()] == [name]
        np.testing.assert_allclose(session.run(None, {"x": np.ones((1, 3, 8, 9), np.float32)})[0], wanted, atol=1e-4)


@pytest.mark.sweep
def test_operations_without_converter_are_named(saved):
    with pytest.raises(nna.errors.InvalidModelError, match="cannot convert these operations: lgamma, svd;"):
        opened(saved, "refused", devices="cpu")
