"""PyTorch models on any device: a back end of `torch.compile`, and modules as models.

PyTorch captures graphs, AOTAutograd makes forward and backward graphs of them, in ATen ops. What PyTorch's own exporter
has an ONNX form for becomes regions, each the model of an ordinary session; the rest stays in PyTorch. So devices,
fallback, policies and reports are those of every other model. docs/pytorch.md has the reader's side.

Inside this room `torch` is PyTorch, as everywhere: imports are absolute. Names are imported on first use, so that
neither `import nnadapter` nor `import nnadapter.torch` imports PyTorch.
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
