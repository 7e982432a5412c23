"""What a session of ONNX Runtime holds: ONNX Runtime does not say, so by a rule that was measured.

Source: growth of the process by malloc's own count, models of 30 to 460 nodes and 1 to 70 MB of weights, ONNX Runtime
1.31. What runs need comes from an arena that all sessions share and no session owns.
"""

from __future__ import annotations

from nnadapter.drivers.onnxruntime.weights import Loadable

_PYTHON_COPIES = 1
"""ONNX Runtime's Python session keeps the serialized model, to be made again with other providers."""
_BYTES_PER_NODE = 7 << 10
"""A kernel, its definition and its place in the order."""
_BYTES_PER_SESSION = 96 << 10


def session_bytes(model: Loadable, nodes: int) -> int:
    """Return the bytes that a session holds, beside what runs need.

    Args:
        model: as ONNX Runtime was given it; the session has its weights in the form that its kernels want.
        nodes: how many it has; 0 if nobody counted them.
    """
    return _BYTES_PER_SESSION + _PYTHON_COPIES * len(model.contents) + model.nbytes + _BYTES_PER_NODE * nodes
