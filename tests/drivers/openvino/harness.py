from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

from nnadapter.drivers.openvino import OpenvinoDriver
from nnadapter.drivers.selection import check_options

HEAD = '<ir_version: 10, opset_import: ["" : 18]>'


def model_of(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEAD} g {text}")


def context(**options):
    return OpenvinoDriver().open("CPU").create_context(check_options("openvino:CPU", options))


def computed(opened, model, inputs):
    program = opened.compile(model)
    execution = program.create_execution()
    results = execution.compute(list(map(read_only, inputs)))
    execution.close()
    program.close()
    return results


def read_only(array):
    """Return a contiguous, read-only copy, as the host passes arrays."""
    array = np.array(array, order="C")
    array.setflags(write=False)
    return array
