"""The five NNAdapter interfaces, for people who build a model by hand: no ONNX, no partitioner, one device.

    Device        a device of this machine, by its name
    Context       the device opened with options
    ModelBuilder  makes the model, operand by operand (`nnadapter.ir.builder`)
    Compilation   the device's verdicts on a model, and the program that it makes of it
    Execution     inputs, a run, outputs

Each is made from the one before it, is a context manager, and closes what was made from it before itself.

Source: NNAdapterDevice, NNAdapterContext, NNAdapterModel, NNAdapterCompilation, NNAdapterExecution.
"""

from nnadapter.ir.builder import ModelBuilder
from nnadapter.runtime.compilation import Compilation, Execution
from nnadapter.runtime.device import Context, Device

__all__ = ["Compilation", "Context", "Device", "Execution", "ModelBuilder"]
