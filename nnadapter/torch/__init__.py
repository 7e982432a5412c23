"""PyTorch models on any device: a back end of `torch.compile`, and modules as models.

PyTorch captures graphs, AOTAutograd makes forward and backward graphs of them, in ATen ops. What PyTorch's own exporter
has an ONNX form for becomes regions, each the model of an ordinary session; the rest stays in PyTorch. So devices,
fallback, policies and reports are those of every other model. docs/pytorch.md has the reader's side.

Inside this room `torch` is PyTorch, as everywhere: imports are absolute. `import nnadapter` imports neither.
"""

from __future__ import annotations
