"""Qualcomm's NPU (HTP) and GPU through ONNX Runtime's QNN provider, with typed options: the device `qnn`."""
