"""Export of entire models: names, layouts, fused activations, quantized operands, outputs, refusals."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.errors import InvalidModelError
from nnadapter.exporting import export_model, exporters, to_onnx
from nnadapter.ir import SCHEMAS, DataType, Layout, OperandType, Quantization, QuantizedType
from nnadapter.ir.definition import by_definition
from nnadapter.ir.operations import CustomCall
from nnadapter.ir.symbolic_numbers import SymbolicTrace
from nnadapter.onnx import inlined, is_reference
from tests.models import run_whole

FLOATS = OperandType(DataType.FLOAT32, (2, 3))


def op_types(model):
    return [node.op_type for node in model.graph.node]


def agree(model, *feeds, tolerance=1e-5):
    written = inlined(to_onnx(model))
    onnx.checker.check_model(written, full_check=True)
    got = run_whole(written, {value.name: feed for value, feed in zip(written.graph.input, feeds, strict=True)})
    for result, wanted in zip(got, by_definition(model, feeds), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=tolerance, atol=tolerance)
    return written


def test_every_operation_has_an_exporter():
    assert set(exporters()) == set(SCHEMAS)


def test_nodes_are_named_after_their_origins():
    builder = nna.ModelBuilder()
    x = builder.add_input("x", FLOATS)
    (root,) = builder.add_operation("RSQRT", (x,), outputs=["root"], origins=["norm"])
    model = builder.finish(builder.add_operation("ADD", (root, x), outputs=["norm"]))
    written = to_onnx(model)
    assert [value.name for value in (*written.graph.input, *written.graph.output)] == ["x", "norm"]
    assert [(node.name, *node.output) for node in written.graph.node][-2:] == [("norm/1", "root"), ("norm/2", "norm")]
    assert len({node.name for node in written.graph.node}) == 3


def test_every_output_is_produced_by_a_separate_node():
    builder = nna.ModelBuilder()
    x = builder.add_input("x", FLOATS)
    constant = builder.add_constant("c", np.ones(2, np.float32))
    (y,) = builder.add_operation("NEG", (x,))
    agree(builder.finish([y, x, y, constant]), np.ones((2, 3), np.float32))


def test_images_with_channels_last_are_transposed():
    builder = nna.ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (1, 5, 5, 2), Layout.NHWC))
    weight = builder.add_constant("w", np.random.default_rng(0).random((3, 2, 3, 3), np.float32))
    fused = {"fuse_code": "clip", "fuse_parameters": (0.0, 3.0)}
    model = builder.finish(builder.add_operation("CONV_2D", (x, weight), fused))
    written = agree(model, np.random.default_rng(1).random((1, 5, 5, 2), np.float32))
    assert op_types(written) == ["Transpose", "Conv", "Clip", "Transpose"]


def test_quantized_operations_become_float_operations_between_qdq():
    builder = nna.ModelBuilder()
    x = builder.add_input(
        "x", OperandType(DataType.UINT8, (2, 3), quantization=Quantization(scale=(0.1,), zero_point=(7,)))
    )
    scales = Quantization(scale=(0.05, 0.02, 0.1, 0.03), zero_point=(0,) * 4, axis=0)
    weight = builder.add_constant("w", np.arange(-6, 6, dtype=np.int8).reshape(4, 3), scales)
    result = QuantizedType(DataType.INT8, Quantization(scale=(0.2,), zero_point=(-3,)))
    made = builder.add_operation("FULLY_CONNECTED", (x, weight), quantized=[result])
    feed = np.array([[0, 100, 255], [7, 8, 200]], np.uint8)
    written = agree(builder.finish(made), feed, tolerance=1)  # an additional rounding: one step
    assert op_types(written) == ["DequantizeLinear", "DequantizeLinear", "Gemm", "QuantizeLinear"]
    sums = agree(builder.finish(builder.add_operation("FULLY_CONNECTED", (x, weight))), feed, tolerance=0)
    assert "MatMulInteger" in op_types(sums)


def test_custom_operation_becomes_its_original_node():
    call = CustomCall(
        domain="acme", op_type="Blend", since_version=3, attributes={"share": 0.5}, present=(0, 2), outputs=(FLOATS,)
    )
    builder = nna.ModelBuilder()
    x = builder.add_input("x", FLOATS)
    written = to_onnx(builder.finish(builder.add_operation("CUSTOM", (x, x), call.to_attributes())))
    (node,) = written.graph.node
    assert (node.domain, node.op_type, list(node.input)) == ("acme", "Blend", ["x", "", "x"])
    assert onnx.helper.get_node_attr_value(node, "share") == 0.5
    assert {entry.domain: entry.version for entry in written.opset_import}["acme"] == 3


def test_inexpressible_operation_is_omitted_or_an_error():
    builder = nna.ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.UINT16, (2, 3)))
    (y,) = builder.add_operation("RELU", (x,), outputs=["y"])
    model = builder.finish(builder.add_operation("BITWISE_NOT", (y,)))
    exported = export_model(model)
    assert [value.name for value in exported.model.graph.input] == ["x", "y"]
    assert [list(nodes) for nodes in exported.nodes] == [[], [0]]
    with pytest.raises(
        InvalidModelError, match=r"operation 0 RELU \('y'\) cannot be written as ONNX: .* does not accept uint16"
    ):
        to_onnx(model)


def test_large_weights_are_references():
    builder = nna.ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (1, 256)))
    weight = builder.add_constant("w", np.ones((256, 256), np.float32))
    model = builder.finish(builder.add_operation("FULLY_CONNECTED", (x, weight)))
    assert [is_reference(tensor) for tensor in to_onnx(model).graph.initializer] == [True]


def test_contrib_op_runs_as_a_custom_operation():
    call = CustomCall(
        domain="com.microsoft",
        op_type="QuickGelu",
        since_version=1,
        attributes={"alpha": 1.0},
        present=(0,),
        outputs=(FLOATS,),
    )
    builder = nna.ModelBuilder()
    x = builder.add_input("x", FLOATS)
    model = builder.finish(builder.add_operation("CUSTOM", (x,), call.to_attributes()))
    feed = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
    with nna.Context(nna.Device.acquire("cpu")) as context, nna.Execution(nna.Compilation(context, model)) as execution:
        execution.set_inputs([feed])
        np.testing.assert_allclose(execution.compute()[0], feed / (1 + np.exp(-feed)), rtol=1e-5)


def test_dynamic_sizes_become_dimension_names_but_not_attributes():
    trace = SymbolicTrace()
    size = trace.variable(5)
    builder = nna.ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (size, 3)))
    (y,) = builder.add_operation("RELU", (x,))
    relu = to_onnx(builder.finish([y]))
    assert [value.type.tensor_type.shape.dim[0].dim_param for value in relu.graph.input] == ["size_0"]
    session = onnxruntime.InferenceSession(relu.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": -np.ones((7, 3), np.float32)})[0].shape == (7, 3)
    spread = builder.finish(builder.add_operation("RESHAPE", (y,), {"shape": (3, size)}))
    with pytest.raises(InvalidModelError, match="dynamic sizes"):
        to_onnx(spread)


@pytest.mark.parametrize("mask", [None, DataType.BOOL, DataType.FLOAT32])
def test_large_attention_masks_are_stored_in_the_model(mask):
    size = OperandType(DataType.FLOAT32, (1, 1, 300, 2))  # 300 x 300 booleans exceed the smallest reference
    builder = nna.ModelBuilder()
    inputs = [builder.add_input(name, size) for name in "qkv"]
    if mask is not None:
        inputs.append(builder.add_constant("mask", np.ones((300, 300), mask.array_type)))
    attributes = {"scale": 0.5, "is_causal": True, "offset": 3, "left_window": 4, "right_window": 5}
    model = builder.finish(builder.add_operation("ATTENTION", inputs, attributes))
    agree(model, *np.random.default_rng(0).random((3, 1, 1, 300, 2), np.float32))


def test_attention_window_of_any_length_is_compact():
    size = OperandType(DataType.FLOAT32, (1, 1, 1 << 40, 2))
    written = to_onnx(one("ATTENTION", size, size, size, scale=1.0, left_window=4))
    assert written.ByteSize() < 2000


def test_empty_equation_is_written_out():
    builder = nna.ModelBuilder()
    scalar = builder.add_input("x", OperandType(DataType.FLOAT32, ()))
    (made,) = builder.add_operation("EINSUM", (scalar,), {"equation": ""})
    written = agree(builder.finish(builder.add_operation("NEG", (made,))), np.array(3, np.float32))
    del written.graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(written).graph.value_info
    assert [value.type.tensor_type.HasField("shape") for value in inferred] == [True]


def test_nodes_of_copies_have_unique_names():
    builder = nna.ModelBuilder()
    x = builder.add_input("x", FLOATS)
    (y,) = builder.add_operation("NEG", (x,), outputs=["y"], origins=["y/1/2"])
    written = to_onnx(builder.finish([y, y]))
    assert len({node.name for node in written.graph.node}) == 2


def test_long_exporter_constants_are_stored_in_the_model():
    builder = nna.ModelBuilder()
    zero_point = (3,) * 20000
    scales = Quantization(scale=tuple(np.linspace(0.1, 1, 20000).tolist()), zero_point=zero_point, axis=0)
    x = builder.add_input("x", OperandType(DataType.INT8, (20000,), quantization=scales))
    model = builder.finish(builder.add_operation("DEQUANTIZE", (x,), {"to": "float32"}))
    agree(model, np.arange(20000).astype(np.int8))


def one(type_, *types, **attributes):
    """Return a model of one operation on inputs of these types."""
    builder = nna.ModelBuilder()
    inputs = [builder.add_input(f"x{position}", each) for position, each in enumerate(types)]
    return builder.finish(builder.add_operation(type_, inputs, attributes))


def test_float64_mean_variance_normalization_is_decomposed():
    wide = OperandType(DataType.FLOAT64, (2, 3))
    model = one("MEAN_VARIANCE_NORMALIZATION", wide, axes=(1,), epsilon=1e-9)
    agree(model, np.array([[1.0, 2, 4], [0, 5, 6]]))


def test_result_has_the_data_type_of_the_scale():
    half = OperandType(DataType.FLOAT16, (2, 3))
    model = one("RMS_NORMALIZATION", half, OperandType(DataType.FLOAT32, (3,)), axis=1, epsilon=1e-5)
    agree(model, np.array([[1, 2, 4], [0, 5, 6]], np.float16), np.array([1, 0.5, 3], np.float32), tolerance=1e-3)
