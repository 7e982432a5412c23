from __future__ import annotations

import asyncio
import json
import re
from types import SimpleNamespace

import numpy as np

from nnadapter.ray.actors import Sums
from nnadapter.ray.cluster import Request
from nnadapter.ray.job import (
    BatchKey,
    BatchRecord,
    CompileResult,
    Job,
    JobSnapshot,
    Kind,
    SessionRecord,
    Totals,
    local_kind,
)
from nnadapter.ray.job_report import job_report


def record(task, ordinal, rows=64, where="fake_npu", fallen=0):
    incidents = (("fake_npu: ExecutionError", 1),) if fallen else ()
    shapes = ((f"x[{rows}, 3]", 1, rows, 0.5, 0.5),)
    return BatchRecord(
        BatchKey("once", task, ordinal), "node-1", "kind-1", rows, 1, 0.5, ((where, rows),), fallen, incidents, shapes
    )


def totals():
    sums = Totals()
    for each in (record("0", 0), record("0", 1, 20), record("1", 0, where="cpu", fallen=64)):
        sums.add(each)
    for each in (record("0", 0), record("0", 1, 20), record("0", 2, 6)):  # the machine failed after the second batch
        sums.add(each)
    return sums


def test_repeated_task_counts_once():
    sums = totals()
    assert (sums.rows, sums.batches, sums.repeated_batches, sums.repeated_rows) == (154, 4, 2, 84)
    assert sums.where == {"fake_npu": 90, "cpu": 64} and sums.fallen == 64
    assert sum(sums.where.values()) == sum(sums.machines.values()) == sum(sums.kinds.values()) == sums.rows


def test_shapes_and_incidents_are_bounded():
    sums = Totals()
    for number in range(1000):
        sums.add(record("0", number, number + 1))
    assert len(sums.shapes) <= 257 and sum(row[0] for row in sums.shapes.values()) == 1000


def test_snapshot_does_not_list_every_task():
    async def job():
        made = Job([b""], None)
        for task in ("0", "1", "0"):
            await made.add(record(task, 0))
        return await made.snapshot(), await made.add(record("1", 0)), await made.snapshot()

    before, _, after = asyncio.run(job())
    assert before.totals.counted_batches == after.totals.counted_batches == {}
    assert (before.totals.repeated_batches, after.totals.repeated_batches, after.totals.batches) == (1, 2, 2)


def test_runs_are_summed_by_devices_and_shapes():
    class Step:
        def __init__(self, device):
            self.device = device

    class Provenance:
        fell_back, incidents = False, ()

        def __init__(self, *devices):
            self.steps = [Step(device) for device in devices]

    sums = Sums()
    for rows, devices in ((4, ("a", "cpu", "a")), (2, ("a", "cpu")), (4, ("cpu",))):
        sums.add(Provenance(*devices), {"x": np.zeros((rows, 3)), "z": np.zeros(rows)}, rows, rows / 2)
    assert sums.where == {"a+cpu": 6, "cpu": 4}
    for rows in range(300):
        sums.add(Provenance("cpu"), {"x": np.zeros(rows)}, 1, 0.5)
    kind = SimpleNamespace(name="kind-1")
    result = sums.record(BatchKey("once", "0", 0), SimpleNamespace(machine="node-1", kind=kind), 10)
    assert result.shapes[:2] == (("x[4, 3], z[4]", 2, 8, 4.0, 2.0), ("x[2, 3], z[2]", 1, 2, 1.0, 1.0))
    assert len(result.shapes) == 257 and result.shapes[-1][:3] == ("others", 46, 46)


def report():
    kind = Kind(
        name="kind-1", devices=(("fake_npu", {}),), missing={"qnn": "no <b>SDK</b>"}, description={"system": "Linux"}
    )
    plan = json.dumps({"segments": [{"device": "fake_npu"}, {"device": "cpu"}]})
    made = CompileResult(
        seconds=2.0,
        nbytes=1 << 20,
        notes=("a <note>",),
        cached=1,
        report=plan,
    )
    session = SessionRecord("a1", "node-1", "host", "kind-1", ("fake_npu", "cpu"), 0.25)
    told = JobSnapshot(totals(), 2, {"kind-1": kind}, {"kind-1": made}, {"kind-1": 1}, (session,))
    request = Request(
        name="<model>.onnx", digest="", signature=None, is_compiled=False, path="",
        device_requests={"fake_npu": {}, "qnn": {}}, options=None, shapes=(), allows_cpu=True, threads=1, folder="",
    )  # fmt: skip
    return job_report(request, told)


def test_report_as_json_text_and_html(tmp_path):
    result = report()
    data = json.loads(result.to_json())
    assert (data["rows"], data["compiles"], data["fallback_rows"]) == (154, 1, 64)
    assert data["kinds"][0]["segments"] == {"fake_npu": 1, "cpu": 1} and data["schema_version"] == 2
    text = str(result)
    for said in (
        "154 rows in 4 runs",
        "ran on   fake_npu: 90 rows",
        "2 batches of 84 rows",
        "compiled 1 time, 2.00 s",
    ):
        assert said in text
    page = result.to_html()
    assert (
        "<model>" not in page and "&lt;model&gt;.onnx" in page and "no &lt;b&gt;SDK" in page and "<script" not in page
    )
    assert re.search(r"default-src &#x27;none&#x27;; style-src &#x27;sha256-", page)
    for ending, start in ((".html", "<!doctype html>"), (".json", "{"), (".txt", "model")):
        result.save(tmp_path / f"report{ending}")
        assert (tmp_path / f"report{ending}").read_text().startswith(start)


def test_kinds_differ_by_compiled_program():
    def kind(wanted, threads=1):
        return local_kind(wanted, allows_cpu=True, threads=threads)

    same = kind({"fake_npu": {}})
    assert same.name == kind({"fake_npu": {}}).name and same.devices == (("fake_npu", {"threads": 1}),)
    others = [kind({"cpu": {}}), kind({"fake_npu": {"precision": "float16"}}), kind({"fake_npu": {}}, threads=2)]
    assert len({same.name, *(each.name for each in others)}) == 4
    without = kind({"openvino:NPU": {}})
    assert without.devices == (("cpu", {}),) and "openvino:NPU" in without.missing
