"""Ray clusters on this machine, for tests and scripts: several nodes, and no leftovers."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # otherwise Ray writes a token into the home folder
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # only addresses of this machine
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_COLOR_PREFIX": "0",
    "RAY_worker_niceness": "0",  # otherwise workers run at a niceness of 15
}
"""Read by Ray's import, and by its processes."""


@contextmanager
def cluster(nodes: int = 1, cpus: int = 3, resources: Any = ({},), store_bytes: int = 80 << 20) -> Iterator[Any]:
    """Start nodes with this many processors and these resources; the driver is on the first node."""
    folder = tempfile.mkdtemp(prefix="nna", dir="/tmp")  # socket paths must be short
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        # About ten processes import the same modules: they share one bytecode cache outside the packages.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("PYTHONPYCACHEPREFIX", os.environ.get("PYTHONPYCACHEPREFIX") or str(Path(folder, "pyc")))
        root = str(Path(__file__).parents[2])
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", "")))))
        import ray
        from ray.cluster_utils import Cluster

        each = {"num_cpus": cpus, "object_store_memory": store_bytes, "include_dashboard": False}
        head = {**each, "resources": dict(resources[0])}
        made = Cluster(initialize_head=True, head_node_args=head)
        try:
            # The driver attaches to the first node if it is the only one.
            ray.init(address=made.address, log_to_driver=False, logging_level="error")
            others = [
                made.add_node(num_cpus=cpus, object_store_memory=store_bytes, resources=dict(resources[place]))
                for place in range(1, nodes)
            ]
            _quiet()
            yield made, others
        finally:
            _end(made)
            shutil.rmtree(folder, ignore_errors=True)


def _quiet() -> None:
    import logging

    from ray.data import DataContext

    for name in ("ray", "ray.data", "ray.serve"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    DataContext.get_current().enable_progress_bars = False


def _end(made: Any) -> None:
    import ray

    ray.shutdown()
    made.shutdown()
