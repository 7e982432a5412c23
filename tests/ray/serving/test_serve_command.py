"""`nnadapter serve` as a person types it: what it refuses before Ray starts, and one server to its Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing
from urllib.request import Request, urlopen

import onnx
import pytest
from click.testing import CliRunner

from nnadapter.cli.entry import main
from tests.models import parse
from tests.ray.cluster import ENVIRONMENT, has_ray

pytestmark = [
    pytest.mark.skipif(not has_ray(), reason="the extra ray is not installed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
MODEL = parse('<ir_version: 10, opset_import: ["" : 17]> g (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }')
_PATIENCE_S = 120.0


@pytest.fixture
def model(tmp_path):
    onnx.save(MODEL, tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


def refused(*arguments):
    result = CliRunner().invoke(main, ["serve", *arguments])
    assert result.exit_code == 2 and "Traceback" not in result.output
    said = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(said) == 1
    return said[0]


@pytest.fixture
def _environment(monkeypatch):
    """A command that is run in this process says in its environment what Ray is to do."""
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_AUTH_MODE"):
        monkeypatch.setenv(name, ENVIRONMENT[name])


@pytest.mark.usefixtures("_environment")
def test_what_cannot_be_served_is_one_sentence(model, tmp_path):
    assert "nothing.onnx" in refused(str(tmp_path / "nothing.onnx"), "--port", "0")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    assert "broken.onnx" in refused(str(tmp_path / "broken.onnx"), "--port", "0")
    assert "fake_npv" in refused(model, "-d", "fake_npv", "--port", "0")
    assert "name of a served model" in refused(model, "--name", "a/b", "--port", "0")
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"127.0.0.1:{port} cannot be bound to" in refused(model, "--port", port)


def test_a_server_starts_answers_and_ends_by_an_interrupt(model, tmp_path):
    environment = {**os.environ, "RAY_worker_niceness": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "nnadapter", "serve", model, "-d", "fake_npu", "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    watch = threading.Timer(_PATIENCE_S, process.kill)
    watch.start()
    try:
        address = process.stdout.readline().strip()
        assert address.endswith("/v2/models/m"), process.stderr.read() if process.poll() is not None else address
        with urlopen(f"{address}/ready") as answer:
            assert answer.status == 200
        tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [-1.0, 0.0, 2.0]}
        body = json.dumps({"inputs": [tensor]}).encode()
        with urlopen(Request(f"{address}/infer", body)) as answer:
            assert json.load(answer)["outputs"][0]["data"] == [0.0, 0.0, 2.0]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert (process.returncode, out) == (0, "") and "Traceback" not in err
    finally:
        watch.cancel()
        process.kill()
        process.wait()
