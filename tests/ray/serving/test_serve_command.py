from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import onnx
import pytest
from click.testing import CliRunner

from nnadapter.cli import main
from tests.models import parse
from tests.ray.cluster import ENVIRONMENT

pytestmark = [
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
    """Set Ray's options, which a command in this process reads from its environment."""
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_AUTH_MODE"):
        monkeypatch.setenv(name, ENVIRONMENT[name])


@pytest.mark.usefixtures("_environment")
def test_unservable_models_are_errors(model, tmp_path):
    assert "nothing.onnx" in refused(str(tmp_path / "nothing.onnx"), "--port", "0")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    assert "broken.onnx" in refused(str(tmp_path / "broken.onnx"), "--port", "0")
    assert "fake_npv" in refused(model, "-d", "fake_npv", "--port", "0")
    assert "a served model's name" in refused(model, "--name", "a/b", "--port", "0")
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"127.0.0.1:{port} cannot be bound to" in refused(model, "--port", port)


BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [-1.0, 0.0, 2.0]}]}).encode()


class Served:
    """Server in its own process session, as supervisors start one."""

    def __init__(self, model):
        environment = {**os.environ, "RAY_worker_niceness": "0"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nnadapter", "serve", model, "-d", "fake_npu", "--port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
        )  # fmt: skip
        self.watch = threading.Timer(_PATIENCE_S, self.process.kill)
        self.watch.start()

    def address(self):
        address = self.process.stdout.readline().strip()
        assert address.endswith("/v2/models/m"), address or self.process.communicate()[1]
        return address

    def end(self):
        """Return the exit code, the remaining output, and the processes left in the session."""
        out, err = self.process.communicate()
        self.watch.cancel()
        folders = (each for each in Path("/proc").iterdir() if each.name.isdigit())
        left = [folder.name for folder in folders if session_of(folder) == self.process.pid]
        return self.process.returncode, out + err, left

    def close(self):
        self.watch.cancel()
        self.process.kill()
        self.process.wait()


def session_of(folder):
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[3])
    except OSError:
        return None


@pytest.fixture
def server(model):
    served = Served(model)
    yield served
    served.close()


def infer(address):
    with urlopen(Request(f"{address}/infer", BODY)) as answer:
        return json.load(answer)["outputs"][0]["data"]


def ask_until(end, address, requests):
    """Send requests in sequence; note when each was sent and ended, and its result."""
    url = urlsplit(f"{address}/infer")
    while not end.is_set():
        with closing(HTTPConnection(url.netloc)) as connection:
            try:
                connection.request("POST", url.path, BODY)
            except OSError:
                continue
            began = time.monotonic()
            try:
                result = json.load(connection.getresponse())["outputs"][0]["data"]
            except OSError as error:
                result = str(error)
        requests.append((began, time.monotonic(), result))


@pytest.mark.sweep
def test_terminated_server_answers_pending_requests(server):
    address, end, requests = server.address(), threading.Event(), []
    with urlopen(f"{address}/ready") as answer:
        assert answer.status == 200
    assert infer(address) == [0.0, 0.0, 2.0]
    clients = [threading.Thread(target=ask_until, args=(end, address, requests)) for _ in range(8)]
    for client in clients:
        client.start()
    time.sleep(0.5)
    signalled = time.monotonic()
    os.killpg(server.process.pid, signal.SIGTERM)  # including Ray's processes, as supervisors do
    assert server.end() == (0, "", [])
    end.set()
    for client in clients:
        client.join()
    under_way = [result for began, ended, result in requests if began < signalled < ended]
    assert under_way and all(result == [0.0, 0.0, 2.0] for result in under_way)


@pytest.mark.sweep
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_other_signals_end_the_server(server, number):
    server.address()
    server.process.send_signal(number)
    assert server.end() == (0, "", [])


@pytest.mark.sweep
@pytest.mark.parametrize("seconds", [4.0, 8.0, 12.0])
def test_a_signal_ends_a_server_that_is_starting(server, seconds):
    time.sleep(seconds)
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == (143, "terminated\n", [])


@pytest.mark.sweep
def test_second_signal_ends_the_server_immediately(server):
    address = urlsplit(server.address())
    with socket.create_connection((address.hostname, address.port)) as client:
        # the rest of the body never arrives
        client.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1")
        time.sleep(1)
        server.process.send_signal(signal.SIGINT)
        time.sleep(2)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == (143, "terminated\n", [])


JOB = """
import sys
from ray.data import range as rows_to
import nnadapter as nna

rows = rows_to(3000).map_batches(lambda batch: {"x": batch["id"].astype("float32").repeat(3).reshape(-1, 3)})
made = nna.ray.map_batches(rows, sys.argv[1], devices="fake_npu", num_cpus=0.1)
print("begin", flush=True)
while True:
    made.take_all()
"""


@pytest.mark.sweep
@pytest.mark.parametrize("seconds", [0.0, 5.0, 15.0])
def test_terminated_job_prints_no_traceback(model, tmp_path, seconds):
    (tmp_path / "job.py").write_text(JOB)
    root = str(Path(__file__).parents[3])
    with subprocess.Popen(
        [sys.executable, tmp_path / "job.py", model], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": root},
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "begin\n"
        time.sleep(seconds)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 143 and "Traceback" not in err and "SIGTERM" not in err
