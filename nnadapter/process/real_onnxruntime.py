"""The real ONNX Runtime, which all other modules import from here.

While `nnadapter.ort` replaces ONNX Runtime, `import onnxruntime` returns the replacement, even in our modules.
"""

import onnxruntime

__all__ = ["onnxruntime"]
