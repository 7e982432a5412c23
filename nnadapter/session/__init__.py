"""Sessions, comparisons and benchmarks, and the NNAdapter interfaces to run a hand-built model on one device.

    Device        a device of this machine, by name
    Context       the device opened with options
    ModelBuilder  builds the model (`nnadapter.ir.builder`)
    Compilation   verdicts, and the compiled program
    Execution     inputs, a run, outputs

Each is created from the one above and is a context manager. Closing one first closes everything created from it.

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
