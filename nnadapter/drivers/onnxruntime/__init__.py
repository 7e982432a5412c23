"""Device `cpu`: ONNX Runtime. Its sessions, errors and values also serve the execution providers."""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".driver": "CpuContext refused_nodes threads_gain",
        ".failures": "disabled_optimizers wrong_fusions wrong_optimizers",
        ".program": "most_pools not_counting pool_permit pools_held",
        ".sessions": "Loadable SessionExecution copied_run_options open_session without_files",
        ".values": "FLOAT",
    },
)
