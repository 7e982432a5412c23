"""A job and a server on Ray nodes on this machine; Ray is started once for the file."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import numpy as np
import pytest

import nnadapter as nna
from tests.models import parse
from tests.ray.cluster import cluster

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
WEIGHTS = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
MODEL = parse(
    f"""<ir_version: 10, opset_import: ["" : 17]>
g (float[N, 8] x) => (float[N, 4] y, int64[N] k)
<float[8, 4] w = {{{", ".join(map(str, WEIGHTS.reshape(-1)))}}}>
{{ h = MatMul(x, w) y = Relu(h) k = ArgMax<axis = 1, keepdims = 0>(y) }}"""
)
FAULTS = '[[fault]]\nkind = "fail"\nphase = "run"\nprobability = 0.1\n'
SLOW = '[[fault]]\nkind = "slow"\nphase = "run"\nnth = 2\nseconds = 1.5\n'
ROWS = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
FAULTY = "nnadapter:faulty:fake_npu"


@pytest.fixture(scope="module")
def nodes():
    """Yield one node with its devices as resources."""
    with cluster(resources=({FAULTY: 1},)) as (_, others):
        yield others


def expected(rows):
    y = np.maximum(rows @ WEIGHTS, 0)
    return y, y.argmax(1)


def check_rows(dataset, count):
    """Compare the rows of a result with numpy, and return their number."""
    seen = sorted(dataset.take_all(), key=lambda row: row["id"])
    assert [row["id"] for row in seen] == list(range(count))
    y, k = expected(ROWS[:count])
    np.testing.assert_allclose(np.stack([row["y"] for row in seen]), y, atol=1e-5)
    assert [row["k"] for row in seen] == k.tolist()


def dataset():
    import ray.data

    return ray.data.from_items([{"id": number, "data": row} for number, row in enumerate(ROWS)])


def test_a_job_compiles_once_and_its_summary_adds_up(nodes):
    data = dataset().materialize()
    result = nna.ray.map_batches(
        data, MODEL, devices=("faulty:fake_npu", {"script": FAULTS}), options={"fallback": "allow"},
        columns={"x": "data"}, passthrough_columns=["id"], batch_size=32, concurrency=2, num_cpus=0.5,
    )  # fmt: skip
    check_rows(result, len(ROWS))
    report = nna.ray.report(result)
    assert (
        report.rows
        == len(ROWS)
        == sum(report.rows_by_device.values())
        == sum(machine.rows for machine in report.machines)
    )
    assert report.compiles == 1 and len(report.kinds) == 1 and report.kinds[0].sessions == 2
    assert report.fallback_rows == report.rows_by_device.get("cpu", 0) > 0
    _errors(data)


def _errors(data):
    """Check that errors precede the job if possible, and are nnadapter's otherwise."""
    errors = nna.errors
    for settings, kind, text in (
        ({"columns": {"x": "dat"}}, errors.InvalidInputError, "did you mean 'data'"),
        ({"columns": {"x": "id"}}, errors.InputTypeError, "'id' contains int64, but input 'x' takes float32"),
        ({"columns": {"x": "data"}, "devices": "openvino:NPU"}, errors.DeviceUnavailableError, "no machine"),
        ({"columns": {"x": "data"}, "without_device": "gpu"}, errors.InvalidOptionError, "one of error, cpu"),
        ({"columns": {"x": "data"}, "batch_size": 0}, errors.InvalidOptionError, "batch_size"),
        ({"columns": {"x": "data"}, "options": {"trace": "t.json"}}, errors.InvalidOptionError, "'trace'"),
    ):
        with pytest.raises(kind, match=text):
            nna.ray.map_batches(data, MODEL, **settings)
    with pytest.raises(errors.InvalidOptionError, match="map_batches returned"):
        nna.ray.report(data)


def test_actors_run_anywhere_without_resource_arguments(monkeypatch):
    import ray

    from nnadapter.ray.batch import _placing
    from nnadapter.ray.cluster import read_source, request_of

    class Now:
        def map_batches(self, fn, ray_remote_args_fn=None):
            """Accept Ray's current arguments."""

    class Later:
        def map_batches(self, fn, resources=None):
            """Accept the arguments of Ray 2.64."""

    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0, FAULTY: 1.0})
    settings = {"devices": "faulty:fake_npu", "options": None, "threads": 1, "num_cpus": 1, "folder": None}
    source = read_source(MODEL)
    there, anywhere = (request_of(source, without_device=without, **settings) for without in ("error", "cpu"))
    for dataset in (Now(), Later()):
        assert _placing(dataset, there, 1, 0.5) == {"num_cpus": 1, "resources": {FAULTY: 0.5}}
    assert _placing(Now(), anywhere, 1, 0.5).keys() == {"num_cpus", "ray_remote_args_fn"}
    assert _placing(Later(), anywhere, 1, 0.5) == {"num_cpus": 1}


class Client:
    def __init__(self, port):
        self.port = port

    def ask(self, method, path, body=None, headers=None):
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            connection.close()

    def infer(self, rows, **more):
        tensor = {"name": "x", "shape": list(rows.shape), "datatype": "FP32", "data": rows.reshape(-1).tolist()}
        status, text, _ = self.ask("POST", "/v2/models/m/infer", json.dumps({"inputs": [tensor], **more}))
        return status, json.loads(text)


@pytest.mark.sweep
def test_server_follows_the_open_inference_protocol(nodes):
    from ray import serve

    from nnadapter.ray.serving import free_port

    client = Client(free_port("127.0.0.1", 0))
    serve.start(http_options={"host": "127.0.0.1", "port": client.port})
    application = nna.ray.deployment(
        MODEL, name="m", devices=("faulty:fake_npu", {"script": SLOW}), num_cpus=0.5, max_request_bytes=100_000
    )
    try:
        serve.run(application, name="m", route_prefix="/", blocking=False)
        _right_answers(client)
        _wrong_requests(client)
        _many_callers(client)
    finally:
        serve.shutdown()


def _right_answers(client):
    assert client.ask("GET", "/v2/health/ready")[0] == client.ask("GET", "/v2/models/m/ready")[0] == 200
    status, said = client.infer(ROWS[:3])
    assert status == 200 and said["outputs"][1]["datatype"] == "INT64"
    np.testing.assert_allclose(np.reshape(said["outputs"][0]["data"], (3, 4)), expected(ROWS[:3])[0], atol=1e-5)
    started = time.monotonic()
    assert client.infer(ROWS[:1], parameters={"timeout": 300_000})[0] == 504  # the second run is slow
    assert time.monotonic() - started < 1.5
    assert client.infer(ROWS[:1])[0] == 200, "the next one works"
    triton = pytest.importorskip("tritonclient.http")
    with triton.InferenceServerClient(f"127.0.0.1:{client.port}") as theirs:
        assert theirs.is_server_live() and theirs.is_model_ready("m")
        assert theirs.get_model_metadata("m")["inputs"][0]["shape"] == [-1, 8]
        tensor = triton.InferInput("x", [5, 8], "FP32")
        tensor.set_data_from_numpy(ROWS[:5])
        result = theirs.infer("m", [tensor], request_id="me")
        np.testing.assert_array_equal(result.as_numpy("k"), expected(ROWS[:5])[1])
    status, text, _ = client.ask("GET", "/v2/models/m/report")
    assert status == 200 and json.loads(text)["server"]["statuses"]["504"] == 1
    assert json.loads(text)["session"]["devices"][0] == "faulty:fake_npu"
    assert client.ask("GET", "/v2/models/m/report.html")[1].startswith(b"<!doctype html>")


def _wrong_requests(client):
    for status, text in (
        (client.infer(ROWS[:1, :5])[0], "a shape"),
        (client.ask("POST", "/v2/models/m/infer", b"{")[0], "broken JSON"),
        (client.ask("POST", "/v2/models/m/infer", b"{}", {"Content-Encoding": "gzip"})[0] - 15, "compressed"),
    ):
        assert status == 400, text
    assert client.ask("POST", "/v2/models/other/infer", b"{}")[0] == 404
    assert client.ask("POST", "/v2/models/m/infer", b" " * 100_001)[0] == 413
    _, said = client.infer(ROWS[:1], outputs=[{"name": "q"}])
    assert said == {"error": "the model has no output 'q'; known: k, y"}


def _many_callers(client):
    """Check that concurrent callers with different shapes get their own results."""

    def ask(number):
        rows = ROWS[number : number + 1 + number % 5]
        status, said = client.infer(rows)
        return status == 200 and np.allclose(
            np.reshape(said["outputs"][0]["data"], (-1, 4)), expected(rows)[0], atol=1e-5
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(100)))
    server = json.loads(client.ask("GET", "/v2/models/m/report")[1])["server"]
    assert server["batched_requests"] > 0
    assert server["statuses"].keys() <= {"200", "400", "404", "413", "415", "504"}
