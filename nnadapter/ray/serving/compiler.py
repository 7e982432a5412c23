"""The deployment beside a server's replicas that has the model compiled: once for each kind of machine."""

from __future__ import annotations

import numpy as np

from nnadapter.ray.job import Job
from nnadapter.ray.request import Request


class Compiler(Job):
    """A `Job` whose life is Ray Serve's: a replica that is started later finds what was compiled before."""

    def __init__(self, contents: bytes, request: Request) -> None:
        import ray

        super().__init__([ray.put(np.frombuffer(contents, np.uint8))], request)
