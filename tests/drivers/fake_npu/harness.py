from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from nnadapter.drivers.fake_npu import FakeNpuDriver, lower
from nnadapter.ir import DataType, ModelBuilder, OperandType


def context(**options):
    device = FakeNpuDriver().open("")
    defaults = {option.name: option.default for option in device.capability.options}
    return device.create_context({**defaults, **options})


def type_of(array):
    return OperandType(DataType(array.dtype.name), array.shape)


def model_of(type_, arrays, attributes=None, constants=()):
    """Return a model of one operation and its feeds; None is an absent input."""
    builder = ModelBuilder()
    operands, feeds = [], []
    for position, array in enumerate(arrays):
        if array is None:
            operands.append(-1)
        elif position in constants:
            operands.append(builder.add_constant(f"constant{position}", array))
        else:
            operands.append(builder.add_input(f"input{position}", type_of(array)))
            feeds.append(array)
    return builder.finish(builder.add_operation(type_, operands, attributes or {})), feeds


def run_model(model, feeds, **options):
    opened = context(**options)
    assert all(opened.supported(model)), opened.supported(model)
    assert opened.admit(model).verdict
    return opened.compile(model).create_execution().compute(feeds)


def run(type_, arrays, attributes=None, constants=(), **options):
    model, feeds = model_of(type_, arrays, attributes, constants)
    results = run_model(model, feeds, **options)
    for result, operand in zip(results, model.outputs, strict=True):
        assert type_of(result) == OperandType(
            model.operands[operand].type.dtype, model.operands[operand].type.dimensions
        )
    return results[0] if len(results) == 1 else results


def kernels_of(type_, arrays, attributes=None, constants=()):
    """Return the kernels of a lowered operation, except layout changes."""
    model, _ = model_of(type_, arrays, attributes, constants)
    names = [instruction.kernel for instruction in lower(model).graph.instructions]
    return [name for name in names if name != "transpose"]


def oracle(op_type, arrays, attributes=None, constants=(), outputs=1, opset=22):
    names = [f"input{position}" if array is not None else "" for position, array in enumerate(arrays)]
    node = helper.make_node(op_type, names, [f"output{index}" for index in range(outputs)], **(attributes or {}))
    feeds = {
        name: array
        for position, (name, array) in enumerate(zip(names, arrays, strict=True))
        if name and position not in constants
    }
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in feeds.items()
        ],
        [helper.make_empty_tensor_value_info(f"output{index}") for index in range(outputs)],
        [numpy_helper.from_array(arrays[position], names[position]) for position in constants],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(onnx.shape_inference.infer_shapes(model).SerializeToString(), options)
    results = session.run(None, feeds)
    return results[0] if outputs == 1 else results


def floats(*dimensions, seed=0):
    return np.random.default_rng(seed).standard_normal(dimensions, dtype=np.float32)


def close(result, expected, tolerance=2e-5):
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)
