"""ONNX Runtime itself. All of nnadapter imports it from here, and `nnadapter.ort` before it takes the name.

While `nnadapter.ort` stands in for ONNX Runtime, `import onnxruntime` gives the stand-in, in modules and functions of
ours too that are imported or called later.
"""

import onnxruntime

__all__ = ["onnxruntime"]
