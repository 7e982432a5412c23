"""Job on three nodes: one node is killed, and the driver fails one run in twenty. Long test."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import nnadapter as nna
from tests.ray.cluster import cluster
from tests.ray.test_cluster import MODEL, expected

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.filterwarnings("ignore"),
]
FAULTS = """
[[fault]]
kind = "fail"
phase = "run"
probability = 0.05
[[fault]]
kind = "slow"
phase = "run"
seconds = 0.1
"""
DEVICE = "nnadapter:faulty:fake_npu"
ROWS = np.random.default_rng(0).normal(size=(10_000, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def nodes():
    """Yield nodes; the driver's node has no device, so actors run on the others."""
    with cluster(3, cpus=2, resources=({}, {DEVICE: 1}, {DEVICE: 1})) as found:
        yield found


def test_every_row_counts_once_if_a_node_is_killed(nodes):
    import ray.data

    made, others = nodes
    data = ray.data.range(len(ROWS)).map_batches(lambda batch: {"id": batch["id"], "data": ROWS[batch["id"]]})
    result = nna.ray.map_batches(
        data.repartition(40), MODEL, devices=("faulty:fake_npu", {"script": FAULTS}), options={"fallback": "allow"},
        columns={"x": "data"}, passthrough_columns=["id"], batch_size=64, concurrency=2, num_cpus=1,
    )  # fmt: skip

    def kill():
        while nna.ray.report(result).rows < 2000:
            time.sleep(0.05)
        made.remove_node(others[-1], allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    rows = sorted(result.take_all(), key=lambda row: row["id"])
    killer.join()
    assert [row["id"] for row in rows] == list(range(len(ROWS)))
    np.testing.assert_allclose(np.stack([row["y"] for row in rows]), expected(ROWS)[0], atol=1e-5)
    report = nna.ray.report(result)
    assert (
        report.rows
        == len(ROWS)
        == sum(report.rows_by_device.values())
        == sum(machine.rows for machine in report.machines)
    )
    assert report.compiles == 1 and report.fallback_rows > 0
    assert len(report.machines) == 2, "they land where their device is"


def test_errors_pass_through_ray(nodes):
    import ray.data

    wrong = ray.data.range(10).map_batches(lambda batch: {"x": np.ones((len(batch["id"]), 5), np.float32)})
    late = nna.ray.map_batches(wrong, MODEL, devices="cpu", num_cpus=0.5)
    with pytest.raises(nna.errors.InvalidInputError, match=r"rows of column 'x' have shape \[5\]"):
        late.take_all()
    with pytest.raises(nna.errors.InvalidInputError, match="column 'x' for input 'x' is not in the dataset"):
        nna.ray.map_batches(ray.data.range(10), MODEL, devices="cpu", num_cpus=0.5)
