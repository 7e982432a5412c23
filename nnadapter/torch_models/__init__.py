"""PyTorch's programs in ONNX's words: modules as models, and the operators that have a form in ONNX or get one.

Inside this room `torch` is PyTorch, as everywhere: imports are absolute.
"""
