"""fake_npu: the fast device in numpy, an accelerator that runs on the host, tuned.

What operations compute is said by `nnadapter.ir.definition`, which is there to be read; here it is made fast.

Read it in the order in which a model passes through it: driver, options, context, compiling, operations (the table),
verdicts, lowering with lowerings/, emitter and graph, reuse, scratch, memory and planner, program, arena, execution,
kernels/.
"""

from nnadapter.drivers.fake_npu.driver import FakeNpuDriver

__all__ = ["FakeNpuDriver"]
