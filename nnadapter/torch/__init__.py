"""PyTorch models on any device: a back end of `torch.compile`, and modules as models of sessions. See docs/pytorch.md.

ATen operators that PyTorch's exporter can write as ONNX are grouped into regions; a session runs each region. PyTorch
runs the other operators. In this package, `torch` means PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnadapter.process.lazily import lazily

if TYPE_CHECKING:
    from nnadapter.torch.compiled_report import FallbackOperatorFacts, GraphFacts, TorchReport
    from nnadapter.torch.entry import nnadapter, report, to_device


__all__ = ["FallbackOperatorFacts", "GraphFacts", "TorchReport", "nnadapter", "report", "to_device"]

__getattr__ = lazily(
    __name__,
    {
        ".compiled_report": "FallbackOperatorFacts GraphFacts TorchReport",
        ".entry": "nnadapter report to_device",
    },
)
