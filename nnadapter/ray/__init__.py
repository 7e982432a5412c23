"""Models on many machines: batches over Ray Data, requests over Ray Serve.

Scheduling, queues, retries and HTTP are Ray's. What is here says what a machine has, compiles a model once for each
kind of machine, makes batches of rows or requests into runs of ordinary sessions, and adds up where they ran.
docs/machines.md has the reader's side.

Inside this room `ray` is Ray, as everywhere: imports are absolute. Names are imported on first use, so that neither
`import nnadapter` nor `import nnadapter.ray` imports Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnadapter.process.lazily import lazily

if TYPE_CHECKING:
    from nnadapter.ray.batch import map_batches, report
    from nnadapter.ray.cluster import resources
    from nnadapter.ray.job_report import JobReport
    from nnadapter.ray.serving.application import deployment


__all__ = ["JobReport", "deployment", "map_batches", "report", "resources"]

__getattr__ = lazily(
    __name__,
    {
        ".batch": "map_batches report",
        ".cluster": "resources",
        ".job_report": "JobReport",
        ".serving.application": "deployment",
    },
)
