"""fake_npu: the reference driver, an accelerator that runs on the host, in numpy.

Read it in the order in which a model passes through it: driver, options, context, operations (the table), verdicts,
lowering with lowerings/, emitter and graph, reuse, scratch, memory and planner, program, arena, execution, kernels/.
"""

from nnadapter.drivers.fake_npu.driver import FakeNpuDriver

__all__ = ["FakeNpuDriver"]
