"""The device `cpu`, which is ONNX Runtime; sessions, errors, versions and values also serve its execution providers."""
