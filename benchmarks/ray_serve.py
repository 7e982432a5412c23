"""A server of `nnadapter serve` on this machine: right answers, many callers, and requests that cannot be answered.

It needs the package tritonclient and, for one row, the program curl.
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
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import parser

import nnadapter as nna
from benchmarks.harness import Results, Table

MODEL = """<ir_version: 10, opset_import: ["" : 17]>
g (float[N, 64] x, int64[N] i) => (float[N, 64] y, int64[N] k) {
  a = Relu(x) y = Add(a, a) k = Add(i, i) }"""
SLOW = '[[fault]]\nkind = "slow"\nphase = "run"\nnth = 3\nseconds = 0.7\n'
SIZES = (1, 2, 3, 5, 8)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--callers", type=int, default=50)


def run(options: argparse.Namespace, results: Results) -> None:
    """Ask a server, then one with a slow device."""
    lifetimes: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model.onnx")
        onnx.save(parser.parse_model(MODEL), model)
        script = Path(folder, "slow.toml")
        script.write_text(SLOW)
        with serving(lifetimes, model) as address:
            measure_clients(address, results.table("Clients at several shapes"))
            measure_latencies(model, address, options, results)
            measure_wrong(address, results.table("Requests that cannot be answered"))
        slow = ("-d", "faulty:fake_npu", "--option", f"faulty:fake_npu.script={script}")
        with serving(lifetimes, model, *slow) as address:
            measure_deadline(address, results.table("A deadline of 0.4 s; the third run takes 0.7 s"))
    table = results.table("Servers")
    for lifetime in lifetimes:
        table.add(lifetime)


@contextmanager
def serving(lifetimes: list[dict[str, Any]], model: Path, *more: str) -> Iterator[str]:
    """Serve a model while this is open, end the server by Ctrl-C, and add both times to `lifetimes`."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "nnadapter", "serve", str(model), "--port", "0", *more]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    starting = time.perf_counter() - began
    try:
        yield address
    finally:
        began = time.perf_counter()
        os.kill(server.pid, signal.SIGINT)
        code = server.wait(60)
        row = {"server": " ".join(["nnadapter serve", *more[:2]]), "answers after s": starting, "exit code": code}
        lifetimes.append({**row, "ended after s": time.perf_counter() - began})


def place_of(address: str) -> tuple[str, str]:
    """Return host with port, and the path of a model."""
    host, _, path = address.removeprefix("http://").partition("/")
    return host, f"/{path}"


def body_of(rows: int, seed: int) -> tuple[bytes, np.ndarray[Any, Any]]:
    """Return a request of so many rows."""
    x = np.random.default_rng(seed).normal(size=(rows, 64)).astype(np.float32)
    tensors = [
        {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.reshape(-1).tolist()},
        {"name": "i", "shape": [rows], "datatype": "INT64", "data": [seed] * rows},
    ]
    return json.dumps({"inputs": tensors}).encode(), x


def ask(connection: HTTPConnection, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    """Return the status and the text of an answer."""
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def is_right(text: bytes, x: np.ndarray[Any, Any], seed: int) -> bool:
    """Return whether an answer belongs to a request."""
    outputs = {output["name"]: output["data"] for output in json.loads(text)["outputs"]}
    y = np.reshape(outputs["y"], x.shape)
    return bool(np.allclose(y, np.maximum(x, 0) * 2, atol=1e-5)) and outputs["k"] == [2 * seed] * len(x)


def measure_clients(address: str, table: Table) -> None:
    """Ask by tritonclient with binary tensors and by curl with JSON, at several shapes."""
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
    table.add({"client": "tritonclient", "shapes": len(right), "right": int(sum(right))})
    if shutil.which("curl"):
        results = []
        for rows in SIZES:
            body, x = body_of(rows, rows)
            command = ["curl", "-s", f"{address}/infer", "-d", "@-"]
            results.append(
                is_right(subprocess.run(command, input=body, capture_output=True, check=True).stdout, x, rows)
            )
        table.add({"client": "curl", "shapes": len(results), "right": sum(results)})


def measure_latencies(model: Path, address: str, options: argparse.Namespace, results: Results) -> None:
    """Ask by all callers and by one, with every answer checked, and run a session without a server."""
    host, path = place_of(address)
    bodies = [body_of(SIZES[seed % len(SIZES)], seed) for seed in range(100)]

    def calls(number: int, count: int, durations: list[float], wrong: list[int]) -> None:
        connection = HTTPConnection(host, timeout=60)
        for index in range(number, number + count):
            body, x = bodies[index % 100]
            began = time.perf_counter()
            status, text = ask(connection, "POST", f"{path}/infer", body)
            durations.append(time.perf_counter() - began)
            if status != 200 or not is_right(text, x, index % 100):
                wrong.append(status)

    table, callers = results.table(), options.callers
    for name, count in ((f"{callers} callers", callers), ("1 caller", 1)):
        durations: list[float] = []
        wrong: list[int] = []
        index = options.requests // callers if count > 1 else 500
        threads = [threading.Thread(target=calls, args=(number, index, durations, wrong)) for number in range(count)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rate = len(durations) / (time.perf_counter() - began)
        table.add({"callers": name, **requests_row(durations, len(wrong)), "per second": rate})
    with nna.InferenceSession(model, devices="cpu") as session:
        bare = []
        for index in range(500):
            _, x = bodies[index % 100]
            began = time.perf_counter()
            session.run(None, {"x": x, "i": np.full(len(x), 1, np.int64)})
            bare.append(time.perf_counter() - began)
    table.add({"callers": "a session alone", **requests_row(bare, 0), "per second": float(1 / np.mean(bare))})
    wrong_answers = sum(row["lost or wrong"] for row in table.rows)
    if wrong_answers:
        results.fail(f"{wrong_answers} answers are lost or wrong")
    server = json.loads(ask(HTTPConnection(host), "GET", f"{path}/report")[1])["server"]
    results.note(f"runs {server['runs']}, requests that shared a run {server['batched_requests']}")


def requests_row(durations: list[float], wrong: int) -> dict[str, Any]:
    """Return the columns of some requests."""
    p50, p99 = (1e3 * float(np.percentile(durations, percentage)) for percentage in (50, 99))
    return {"requests": len(durations), "lost or wrong": wrong, "p50 ms": p50, "p99 ms": p99}


def measure_wrong(address: str, table: Table) -> None:
    """Send requests that cannot be answered, and then a good one."""
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
    for name, where, body in cases:
        status, text = ask(HTTPConnection(host, timeout=30), "POST", where, body)
        table.add({"request": name, "status": status, "message": json.loads(text)["error"][:90]})
    connection = HTTPConnection(host, timeout=30)  # announces its length, and sends next to nothing
    connection.putrequest("POST", f"{path}/infer")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders(b"{")
    answer = connection.getresponse()
    table.add({"request": "1 TB", "status": answer.status, "message": json.loads(answer.read())["error"]})
    status, _ = ask(HTTPConnection(host, timeout=30), "POST", f"{path}/infer", good)
    table.add({"request": "the next good one", "status": status, "message": ""})


def measure_deadline(address: str, table: Table) -> None:
    """Send requests; the third exceeds its time: its run cannot be stopped, and the next request is in time."""
    host, path = place_of(address)
    request = json.loads(body_of(1, 1)[0])
    for number in range(1, 6):
        body = json.dumps({**request, "parameters": {"timeout": 400_000}}).encode()
        began = time.perf_counter()
        status, text = ask(HTTPConnection(host, timeout=30), "POST", f"{path}/infer", body)
        message = json.loads(text).get("error", "")[:80]
        table.add({"request": number, "status": status, "s": time.perf_counter() - began, "message": message})
