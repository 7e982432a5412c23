"""One-node models: converted, interpreted, and compared with ONNX Runtime or the reference evaluator of onnx."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from nnadapter.converters import Conversion, OnnxNode, convert_graph, converted, read_node, since_version
from nnadapter.drivers import Reason, Unsupported
from nnadapter.exporting import export_model
from nnadapter.ir import Array, Model, verify
from nnadapter.ir.definition import by_definition
from nnadapter.onnx import inlined
from partition import Value

EXPORT_TOLERANCE = 1e-4
"""For nodes exported as several operations: both sides round in float32, in a different order."""


def opsets(op_type: str, first: int = 1, last: int = 99) -> list[int]:
    """Return an opset for every version of `op_type` with a converter; versions before 7 by opset 7."""
    return [max(version, 7) for version in converted()["", op_type] if first <= version <= last]


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def make(
    op_type: str,
    opset: int,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    constant: Sequence[int] = (),
    outputs: int | Sequence[str] = 1,
) -> onnx.ModelProto:
    """Return a model of one node. Inputs at the positions in `constant` are initializers; None is an absent input."""
    names = ["" if value is None else f"x{index}" for index, value in enumerate(inputs)]
    made = [f"y{index}" for index in range(outputs)] if isinstance(outputs, int) else list(outputs)
    node = helper.make_node(op_type, names, made, name="node", **(attributes or {}))
    known = [numpy_helper.from_array(inputs[index], names[index]) for index in constant]
    given = [
        helper.make_tensor_value_info(names[index], helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for index, value in enumerate(inputs)
        if value is not None and index not in constant
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in made if name]
    imports = [helper.make_opsetid("", opset)]
    graph = helper.make_graph([node], "graph", given, results, known)
    model = helper.make_model(graph, opset_imports=imports, ir_version=max(4, helper.find_min_ir_version_for(imports)))
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    if op_type in ("GroupNormalization", "MeanVarianceNormalization"):  # onnx infers no type
        inferred.graph.output[0].type.CopyFrom(inferred.graph.input[0].type)
    return inferred


def convert(model: onnx.ModelProto, known: Mapping[str, Array] | None = None) -> Conversion:
    """Convert a model with inferred shapes; `known` are inputs to treat as constants."""
    graph, opsets = model.graph, {imported.domain: imported.version for imported in model.opset_import}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer} | dict(known or {})
    values = {info.name: _value(info) for info in (*graph.input, *graph.value_info, *graph.output)}
    nodes = [
        read_node(node, node.name or str(index), since_version(node.domain, node.op_type, opsets[node.domain]) or 0)
        for index, node in enumerate(graph.node)
    ]
    return convert_graph(nodes, values, constants, [output.name for output in graph.output])


def _value(info: onnx.ValueInfoProto) -> Value:
    tensor = info.type.tensor_type
    if not tensor.elem_type:
        return Value(info.name, dtype=f"{info.type.WhichOneof('value') or 'unknown'}")
    dtype = (
        "string" if tensor.elem_type == TensorProto.STRING else helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    )
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)
    return Value(info.name, dtype, shape)


def expected(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Return the results of ONNX Runtime, or of onnx.reference if ONNX Runtime lacks the op, version or type."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return list(session.run(None, dict(feeds)))
    except Exception:  # noqa: BLE001  the reference evaluator knows every op
        return list(ReferenceEvaluator(model).run(None, dict(feeds)))


def check(
    op_type: str,
    opset: int,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    constant: Sequence[int] = (),
    outputs: int | Sequence[str] = 1,
    tolerance: float = 1e-5,
    oracle: Sequence[Array] | None = None,
) -> Conversion:
    """Convert a node, run the result and compare; `tolerance` is absolute and relative."""
    model = make(op_type, opset, inputs, attributes, constant=constant, outputs=outputs)
    conversion = convert(model)
    assert conversion.verdicts[0], str(conversion.verdicts[0])
    verify(conversion.model)
    feeds = {
        f"x{index}": np.asarray(value)
        for index, value in enumerate(inputs)
        if value is not None and index not in constant
    }
    ordered = [feeds[conversion.model.operands[index].name] for index in conversion.model.inputs]
    wanted = expected(model, feeds) if oracle is None else list(oracle)
    _agree(by_definition(conversion.model, ordered), wanted, tolerance)
    check_export(conversion.model, ordered, wanted, tolerance)
    return conversion


def check_export(model: Model, feeds: Sequence[Array], wanted: Sequence[Array], tolerance: float) -> None:
    """Export the converted node to ONNX again and compare the results.

    Integer results may be off by one step: they are exported as floats that are quantized again.
    """
    exported = export_model(model)
    if exported.refusals:
        return  # tests/exporting checks what ONNX cannot express
    written = inlined(exported.model)
    onnx.checker.check_model(written, full_check=True)
    try:
        got = expected(written, {value.name: feed for value, feed in zip(written.graph.input, feeds, strict=True)})
    except Exception:  # noqa: BLE001  neither ONNX Runtime nor the reference evaluator supports the form
        return
    typed = [
        each if each.dtype == want.dtype else each.view(want.dtype) for each, want in zip(got, wanted, strict=True)
    ]
    quantized = any(operand.type.quantization for operand in model.operands)
    for got_one, want in zip(typed, wanted, strict=True):  # ONNX Runtime returns 8-bit floats as bytes
        is_rounded = quantized and want.dtype.kind in "iu"
        _agree([got_one], [want], 1.0 if is_rounded else max(tolerance, EXPORT_TOLERANCE))


def _agree(results: Sequence[Array], wanted: Sequence[Array], tolerance: float) -> None:
    for got, want in zip(results, wanted, strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        wide = np.float64 if got.dtype.kind not in "biu" else got.dtype
        np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance)


def refusal(
    op_type: str,
    opset: int,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    constant: Sequence[int] = (),
    outputs: int | Sequence[str] = 1,
) -> Unsupported:
    """Convert a node that must be refused, and return the refusal; the model must stay empty."""
    conversion = convert(make(op_type, opset, inputs, attributes, constant=constant, outputs=outputs))
    verdict = conversion.verdicts[0]
    assert isinstance(verdict, Unsupported), f"{op_type} was converted"
    assert not conversion.model.operations
    assert not conversion.model.operands
    assert verdict.detail
    return verdict


def reason(*arguments: Any, **keywords: Any) -> Reason:
    return refusal(*arguments, **keywords).reason


def reason_by_type(
    op_type: str, version: int, inputs: Sequence[str], output: str, attributes: Mapping[str, Any] | None = None
) -> Reason | None:
    """Return the reason for refusing a node of these types (`float32[2, 3]`), without onnx's own inference.

    No input is constant. None if the node is converted.
    """
    names = [f"x{index}" for index in range(len(inputs))]
    types = {name: _typed(name, text) for name, text in zip([*names, "y"], [*inputs, output], strict=True)}
    node = OnnxNode("node", op_type, "", version, tuple(names), ("y",), dict(attributes or {}))
    verdict = convert_graph([node], types, {}, ["y"]).verdicts[0]
    return verdict.reason if isinstance(verdict, Unsupported) else None


def _typed(name: str, text: str) -> Value:
    dtype, _, dimensions = text.rstrip("]").partition("[")
    return Value(name, dtype, tuple(int(size) for size in dimensions.split(",") if size))
