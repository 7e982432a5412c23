"""Models on many machines: batches over Ray Data, requests over Ray Serve. See docs/machines.md."""

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
