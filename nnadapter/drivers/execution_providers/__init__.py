"""ONNX Runtime's execution providers as devices: `ort:NAME`.

A provider comes with the installed ONNX Runtime, from a package that holds a plug-in library, or from a library that a
person names. What it takes is read from ONNX Runtime's own graph assignment.
"""
