"""A server of `nnadapter serve` on this machine: right answers, many callers, and what is wrong.

    python benchmarks/ray_serve.py [--requests 10000] [--callers 50]

It needs the extra ray, tritonclient and, for one row, curl.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import parser
from timing import table

sys.path.insert(0, str(Path(__file__).parent.parent))  # the package partition, before the program of that name

import nnadapter as nna

MODEL = """<ir_version: 10, opset_import: ["" : 17]>
g (float[N, 64] x, int64[N] i) => (float[N, 64] y, int64[N] k) {
  a = Relu(x) y = Add(a, a) k = Add(i, i) }"""
SLOW = '[[fault]]\nkind = "slow"\nphase = "run"\nnth = 3\nseconds = 0.7\n'
SIZES = (1, 2, 3, 5, 8)


def main() -> None:
    """Print what is asked for."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--requests", type=int, default=10_000)
    arguments.add_argument("--callers", type=int, default=50)
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model.onnx")
        onnx.save(parser.parse_model(MODEL), model)
        script = Path(folder, "slow.toml")
        script.write_text(SLOW)
        server, address = started(model)
        try:
            print_clients(address)
            print_latencies(model, address, chosen.requests, chosen.callers)
            print_wrong(address)
        finally:
            stop(server)
        server, address = started(model, "-d", "faulty:fake_npu", "--option", f"faulty:fake_npu.script={script}")
        try:
            print_deadline(address)
        finally:
            stop(server)


def started(model: Path, *more: str) -> tuple[subprocess.Popen[str], str]:
    """A server, and its address when it answers."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "nnadapter", "serve", str(model), "--port", "0", *more]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    print(f"{' '.join(['nnadapter serve', *more[:2]])}: answers after {time.perf_counter() - began:.1f} s")
    return server, address


def stop(server: subprocess.Popen[str]) -> None:
    """Ctrl-C, as a person ends it."""
    began = time.perf_counter()
    os.kill(server.pid, signal.SIGINT)
    code = server.wait(60)
    print(f"Ctrl-C: exit code {code} after {time.perf_counter() - began:.1f} s\n")


def place_of(address: str) -> tuple[str, str]:
    """Host with port, and the path of a model."""
    host, _, path = address.removeprefix("http://").partition("/")
    return host, f"/{path}"


def body_of(rows: int, seed: int) -> tuple[bytes, np.ndarray[Any, Any]]:
    """A request of so many rows."""
    x = np.random.default_rng(seed).normal(size=(rows, 64)).astype(np.float32)
    tensors = [
        {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.reshape(-1).tolist()},
        {"name": "i", "shape": [rows], "datatype": "INT64", "data": [seed] * rows},
    ]
    return json.dumps({"inputs": tensors}).encode(), x


def ask(connection: HTTPConnection, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    """Status and text."""
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def is_right(text: bytes, x: np.ndarray[Any, Any], seed: int) -> bool:
    """Whether an answer is that of a request."""
    outputs = {each["name"]: each["data"] for each in json.loads(text)["outputs"]}
    y = np.reshape(outputs["y"], x.shape)
    return bool(np.allclose(y, np.maximum(x, 0) * 2, atol=1e-5)) and outputs["k"] == [2 * seed] * len(x)


def print_clients(address: str) -> None:
    """Tritonclient with binary tensors and curl with JSON, at several shapes."""
    import tritonclient.http as triton

    host, path = place_of(address)
    right = []
    with triton.InferenceServerClient(host) as client:
        for rows in SIZES:
            _, x = body_of(rows, rows)
            inputs = [triton.InferInput("x", list(x.shape), "FP32"), triton.InferInput("i", [rows], "INT64")]
            inputs[0].set_data_from_numpy(x)
            inputs[1].set_data_from_numpy(np.full(rows, rows, np.int64))
            result = client.infer(path.rpartition("/")[2], inputs)
            y, k = result.as_numpy("y"), result.as_numpy("k")
            right.append(np.allclose(y, np.maximum(x, 0) * 2) and k.tolist() == [2 * rows] * rows)
    print(f"tritonclient, {len(right)} shapes: {sum(right)} right")
    if shutil.which("curl"):
        found = []
        for rows in SIZES:
            body, x = body_of(rows, rows)
            command = ["curl", "-s", f"{address}/infer", "-d", "@-"]
            found.append(is_right(subprocess.run(command, input=body, capture_output=True, check=True).stdout, x, rows))
        print(f"curl, {len(found)} shapes: {sum(found)} right")


def print_latencies(model: Path, address: str, requests: int, callers: int) -> None:
    """All requests by all callers, each answer held against its request; one caller; and a session without a server."""
    host, path = place_of(address)
    bodies = [body_of(SIZES[seed % len(SIZES)], seed) for seed in range(100)]

    def calls(number: int, count: int, taken: list[float], wrong: list[int]) -> None:
        connection = HTTPConnection(host, timeout=60)
        for each in range(number, number + count):
            body, x = bodies[each % 100]
            began = time.perf_counter()
            status, text = ask(connection, "POST", f"{path}/infer", body)
            taken.append(time.perf_counter() - began)
            if status != 200 or not is_right(text, x, each % 100):
                wrong.append(status)

    rows = []
    for name, count in ((f"{callers} callers", callers), ("1 caller", 1)):
        taken: list[float] = []
        wrong: list[int] = []
        each = requests // callers if count > 1 else 500
        threads = [threading.Thread(target=calls, args=(number, each, taken, wrong)) for number in range(count)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rate = len(taken) / (time.perf_counter() - began)
        rows.append((name, len(taken), len(wrong), *milliseconds(taken), f"{rate:.0f}"))
    with nna.InferenceSession(model, devices="cpu") as session:
        bare = []
        for each in range(500):
            _, x = bodies[each % 100]
            began = time.perf_counter()
            session.run(None, {"x": x, "i": np.full(len(x), 1, np.int64)})
            bare.append(time.perf_counter() - began)
    rows.append(("a bare session", len(bare), 0, *milliseconds(bare), f"{1 / np.mean(bare):.0f}"))
    print(table(("who asks", "requests", "lost or wrong", "p50 ms", "p99 ms", "per second"), rows))
    server = json.loads(ask(HTTPConnection(host), "GET", f"{path}/report")[1])["server"]
    print(f"runs {server['runs']}, requests that shared a run {server['requests_that_shared_a_run']}\n")


def milliseconds(taken: list[float]) -> tuple[str, str]:
    """The median and the 99th of a hundred."""
    return tuple(f"{float(np.percentile(taken, each)) * 1e3:.3f}" for each in (50, 99))  # type: ignore[return-value]


def print_wrong(address: str) -> None:
    """Requests that cannot be answered, and what is."""
    host, path = place_of(address)
    good, _ = body_of(1, 1)
    changed = [json.loads(good) for _ in range(4)]
    changed[0]["inputs"][0]["name"] = "picture"
    changed[1]["inputs"][0].update(shape=[1, 63], data=[0] * 63)
    changed[2]["inputs"][0]["datatype"] = "FP64"
    changed[3]["inputs"][0]["data"] = [0] * 5
    cases = [
        ("a wrong name", f"{path}/infer", json.dumps(changed[0]).encode()),
        ("a wrong shape", f"{path}/infer", json.dumps(changed[1]).encode()),
        ("a wrong type", f"{path}/infer", json.dumps(changed[2]).encode()),
        ("too few numbers", f"{path}/infer", json.dumps(changed[3]).encode()),
        ("broken JSON", f"{path}/infer", good[:-3]),
        ("lists a hundred thousand deep", f"{path}/infer", b'{"inputs":' + b"[" * 100_000),
        ("JSON of 9 MB", f"{path}/infer", b" " * (9 << 20)),
        ("a model that is not there", "/v2/models/other/infer", good),
        ("another address", "/v2/nothing", good),
    ]
    rows = []
    for name, where, body in cases:
        status, text = ask(HTTPConnection(host, timeout=30), "POST", where, body)
        rows.append((name, status, json.loads(text)["error"][:90].replace("|", "\\|")))
    connection = HTTPConnection(host, timeout=30)  # says how long it is, and sends next to nothing of it
    connection.putrequest("POST", f"{path}/infer")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders(b"{")
    answer = connection.getresponse()
    rows.append(("1 TB", answer.status, json.loads(answer.read())["error"]))
    status, _ = ask(HTTPConnection(host, timeout=30), "POST", f"{path}/infer", good)
    rows.append(("the next good one", status, ""))
    print(table(("request", "status", "what is said"), rows), "\n")


def print_deadline(address: str) -> None:
    """The third run takes 0.7 s and cannot be stopped: its request is over its time, and the next one is not."""
    host, path = place_of(address)
    request = json.loads(body_of(1, 1)[0])
    rows = []
    for number in range(1, 6):
        body = json.dumps({**request, "parameters": {"timeout": 400_000}}).encode()
        began = time.perf_counter()
        status, text = ask(HTTPConnection(host, timeout=30), "POST", f"{path}/infer", body)
        said = json.loads(text).get("error", "")[:80]
        rows.append((number, status, f"{time.perf_counter() - began:.3f}", said))
    print(table(("request", "status", "seconds", "what is said"), rows))


if __name__ == "__main__":
    main()
