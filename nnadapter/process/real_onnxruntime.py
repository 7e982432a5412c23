"""The real ONNX Runtime; all of nnadapter imports it from here.

While `nnadapter.ort` replaces ONNX Runtime, `import onnxruntime` returns the replacement, in our modules too.
"""

import onnxruntime

__all__ = ["onnxruntime"]
