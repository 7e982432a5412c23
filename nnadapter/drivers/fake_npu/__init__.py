"""fake_npu: the reference driver, an accelerator simulated in numpy on the host.

Driver authors can follow its structure. Reading order, as a model passes through: driver, options, compiling,
operations (the table), lowering and lowerings/, emitter and graph, reuse, memory, program, execution, kernels/.
Independent: streams (device memory, streams, events) and clock (simulated time).
"""

from __future__ import annotations

from nnadapter.drivers.fake_npu.driver import FakeNpuDriver
from nnadapter.process.lazily import lazily

__all__ = ["FakeNpuDriver"]

__getattr__ = lazily(
    __name__,
    {
        ".clock": "instruction_flops simulated_profile simulated_seconds",
        ".driver": "FakeNpuDevice",
        ".execution": "BLAS_THREADS Resources run_limited",
        ".graph": "NpuGraph",
        ".limits": "Arithmetic HELD LIMITS",
        ".lowering": "Lowered PASSES evaluate evaluator lower",
        ".operations": "OPERATIONS judge",
        ".options": "OPTIONS operations_named",
        ".program": "FakeNpuOpenProgram SymbolicGraph weight_bytes",
        ".reuse": "BoundConstants Groups LoweringTemplate Lowerings",
        ".streams": "DeviceMemory FakeNpuMemory",
    },
)
