"""The few operations of which probes consist, as ONNX, for devices that take that form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.ir.model import Model
from nnadapter.onnx.building import build
from partition.graph import Value

if TYPE_CHECKING:
    import onnx

OPSET = 17


def onnx_form(model: Model) -> onnx.ModelProto:
    """Return a probe's model in opset 17; constants are initializers."""
    names = [operand.name.replace("%", "v") for operand in model.operands]
    values = [
        Value(name, operand.type.dtype.value, tuple(operand.type.dimensions))
        for name, operand in zip(names, model.operands, strict=True)
    ]
    constants = {
        name: operand.value for name, operand in zip(names, model.operands, strict=True) if operand.value is not None
    }
    nodes = []
    for operation in model.operations:
        op_type, attributes, lists = _OPS[operation.type](operation.attributes)
        if operation.type == "LSTM":
            attributes = {**attributes, "hidden_size": model.operands[operation.inputs[2]].type.dimensions[2]}
        inputs, outputs = ([names[each] for each in group] for group in (operation.inputs, operation.outputs))
        for sizes in lists:
            inputs.append(f"{outputs[0]} sizes")
            constants[inputs[-1]] = np.array(sizes, np.int64)
        nodes.append((op_type, inputs, outputs, attributes))
    model_inputs, model_outputs = ([values[operand] for operand in group] for group in (model.inputs, model.outputs))
    return build(nodes, model_inputs, model_outputs, constants, OPSET)


_Ops = Callable[[Mapping[str, Any]], tuple[str, Mapping[str, Any], tuple[tuple[int, ...], ...]]]
_OPS: Mapping[str, _Ops] = {
    "ADD": lambda _: ("Add", {}, ()),
    "SUB": lambda _: ("Sub", {}, ()),
    "MUL": lambda _: ("Mul", {}, ()),
    "TANH": lambda _: ("Tanh", {}, ()),
    "SIGMOID": lambda _: ("Sigmoid", {}, ()),
    "ERF": lambda _: ("Erf", {}, ()),
    "HARD_SWISH": lambda _: ("HardSwish", {}, ()),
    "RELU": lambda _: ("Relu", {}, ()),
    "MAT_MUL": lambda _: ("MatMul", {}, ()),
    "SOFTMAX": lambda each: ("Softmax", {"axis": each["axis"]}, ()),
    "CONCAT": lambda each: ("Concat", {"axis": each["axis"]}, ()),
    "SPLIT": lambda each: ("Split", {"axis": each["axis"]}, (each["split"],)),
    "LSTM": lambda each: ("LSTM", {"direction": each["direction"]}, ()),
    "RESHAPE": lambda each: ("Reshape", {}, (each["shape"],)),
    "TRANSPOSE": lambda each: ("Transpose", {"perm": each["perm"]}, ()),
    "LAYER_NORMALIZATION": lambda each: ("LayerNormalization", {"axis": each["axis"]}, ()),
    "BATCH_NORMALIZATION": lambda _: ("BatchNormalization", {}, ()),
    "REDUCE_MEAN": lambda each: (
        "ReduceMean",
        {"axes": each["axes"], "keepdims": int(each["keepdims"])},
        (),
    ),
    "CONV_2D": lambda each: (
        "Conv",
        {name: each[name] for name in ("pads", "strides", "dilations", "group")},
        (),
    ),
}
"""Operation type -> op type, attributes, and further inputs that are lists of numbers."""
