"""ONNX's shape inference on one-node models: the oracle of the shape rules."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from nnadapter.ir import DataType, Layout, OperandType, check_attributes, check_inputs, schema_of

Shape = tuple[int, ...]


def operand(*dimensions: int, dtype: str = "float32", layout: str = "NCHW") -> OperandType:
    return OperandType(DataType(dtype), dimensions, Layout(layout))


def infer(type_: str, inputs: list[OperandType | None], **attributes: object) -> tuple[OperandType, ...]:
    """Check the inputs, fill in the attributes and apply the shape rule, as the builder does."""
    schema = schema_of(type_)
    check_inputs(schema, inputs)
    return schema.infer(inputs, check_attributes(schema, attributes))


def dimensions(type_: str, inputs: list[Shape], **attributes: object) -> list[Shape]:
    return [result.dimensions for result in infer(type_, [operand(*shape) for shape in inputs], **attributes)]


def flops(type_: str, inputs: list[OperandType | None], **attributes: object) -> int:
    schema = schema_of(type_)
    complete = check_attributes(schema, attributes)
    return schema.flops(inputs, schema.infer(inputs, complete), complete)


def onnx_dimensions(
    op_type: str, inputs: list[Shape | np.ndarray], outputs: int = 1, opset: int = 22, **attributes: object
) -> list[Shape]:
    """Return the shapes of the outputs. An input is a shape (float32) or an array, which becomes an initializer."""
    names = [f"x{index}" for index in range(len(inputs))]
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op_type, names, results, **attributes)
    pairs = list(zip(names, inputs, strict=True))
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, x) for n, x in pairs if isinstance(x, tuple)]
    fixed = [numpy_helper.from_array(x, n) for n, x in pairs if not isinstance(x, tuple)]
    graph = helper.make_graph([node], "one", given, [onnx.ValueInfoProto(name=n) for n in results], fixed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    result = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph.output
    return [tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim) for value in result]
