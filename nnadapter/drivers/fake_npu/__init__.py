"""fake_npu: the reference device in numpy, an accelerator that runs on the host.

`nnadapter.ir.definition` defines operations element by element; this package shows a driver that compiles them.

Reading order, as a model passes through: driver, options, compiling, operations (the table), lowering with lowerings/,
emitter and graph, reuse, memory, program and open_program, execution, kernels/.
"""

from nnadapter.drivers.fake_npu.driver import FakeNpuDriver

__all__ = ["FakeNpuDriver"]
