"""The few operations of which probes consist, as ONNX, for devices that take that form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx
from onnx import helper, numpy_helper

from nnadapter.ir.model import Model
from partition.dtypes import ELEMENT_TYPE_OF_DTYPE

OPSET = 13
_IR_VERSION = 8


def onnx_form(model: Model) -> onnx.ModelProto:
    """Return a probe's model in opset 13; constants are initializers."""
    names = [operand.name.replace("%", "v") for operand in model.operands]
    values = [
        helper.make_tensor_value_info(
            name, ELEMENT_TYPE_OF_DTYPE[operand.type.dtype.value], list(operand.type.dimensions)
        )
        for name, operand in zip(names, model.operands, strict=True)
    ]
    nodes, constants = [], []
    for operation in model.operations:
        op_type, attributes, lists = _OPS[operation.type](operation.attributes)
        inputs = [names[operand] for operand in operation.inputs]
        for sizes in lists:
            inputs.append(f"{names[operation.outputs[0]]} sizes")
            constants.append(helper.make_tensor(inputs[-1], onnx.TensorProto.INT64, [len(sizes)], sizes))
        nodes.append(helper.make_node(op_type, inputs, [names[each] for each in operation.outputs], **attributes))
    constants += [
        numpy_helper.from_array(operand.value, name)
        for name, operand in zip(names, model.operands, strict=True)
        if operand.value is not None
    ]
    given, wanted = ([values[operand] for operand in group] for group in (model.inputs, model.outputs))
    graph = helper.make_graph(nodes, "probe", given, wanted, constants)
    return helper.make_model(graph, ir_version=_IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)])


_Ops = Callable[[Mapping[str, Any]], tuple[str, Mapping[str, Any], tuple[tuple[int, ...], ...]]]
_OPS: Mapping[str, _Ops] = {
    "ADD": lambda _: ("Add", {}, ()),
    "SUB": lambda _: ("Sub", {}, ()),
    "MUL": lambda _: ("Mul", {}, ()),
    "TANH": lambda _: ("Tanh", {}, ()),
    "ERF": lambda _: ("Erf", {}, ()),
    "RELU": lambda _: ("Relu", {}, ()),
    "MAT_MUL": lambda _: ("MatMul", {}, ()),
    "SOFTMAX": lambda given: ("Softmax", {"axis": given["axis"]}, ()),
    "CONCAT": lambda given: ("Concat", {"axis": given["axis"]}, ()),
    "SPLIT": lambda given: ("Split", {"axis": given["axis"]}, (given["split"],)),
    "REDUCE_MAX": lambda given: ("ReduceMax", {"axes": given["axes"], "keepdims": int(given["keepdims"])}, ()),
    "CONV_2D": lambda given: (
        "Conv",
        {name: given[name] for name in ("pads", "strides", "dilations", "group")},
        (),
    ),
}
"""Operation type -> op type, attributes, and further inputs that are lists of numbers."""
