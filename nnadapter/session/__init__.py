"""Sessions, reports, comparisons and devices, as a person calls them; and the five NNAdapter interfaces.

For people who build a model by hand, without ONNX and partitioner, on one device:

    Device        a device of this machine, by its name
    Context       the device opened with options
    ModelBuilder  makes the model, operand by operand (`nnadapter.ir.builder`)
    Compilation   the device's verdicts on a model, and the program that it makes of it
    Execution     inputs, a run, outputs

Each is made from the one before it, is a context manager, and closes what was made from it before itself.

Source: NNAdapterDevice, NNAdapterContext, NNAdapterModel, NNAdapterCompilation, NNAdapterExecution.
"""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".bench": "EngineTiming PEERS Spread peer_of verdict",
        ".device": "taking_ir",
    },
)
