"""One-node models without an onnx schema: converted, and expanded into ONNX ops, compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from nnadapter.candidates import prepare
from nnadapter.converters import Conversion, convert_graph
from nnadapter.drivers import Unsupported
from nnadapter.ir import Array
from nnadapter.ir.definition import by_definition
from nnadapter.onnx import has_body
from nnadapter.onnx.preparation import Specialized, expanded, function_body, specialize

OPSETS = (13, 17, 20, 23)
"""Opsets of bodies; each introduces some op."""


def model_of(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    constant: Sequence[int] = (),
    outputs: int | Sequence[str] = 1,
    opset: int = 17,
    domain: str = "com.microsoft",
) -> onnx.ModelProto:
    """Return a model of one node, static only in the last dimensions, without output types; see `single_node.make`."""
    names = ["" if value is None else f"x{index}" for index, value in enumerate(inputs)]
    made = [f"y{index}" for index in range(outputs)] if isinstance(outputs, int) else list(outputs)
    node = helper.make_node(op_type, names, made, name="node", domain=domain, **(attributes or {}))
    known = [numpy_helper.from_array(inputs[index], names[index]) for index in constant]
    given = [
        helper.make_tensor_value_info(
            names[index],
            helper.np_dtype_to_tensor_dtype(value.dtype),
            [*(f"x{index}_{axis}" for axis in range(value.ndim - 1)), *value.shape[-1:]],
        )
        for index, value in enumerate(inputs)
        if value is not None and index not in constant
    ]
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    results = [onnx.ValueInfoProto(name=name) for name in made if name]
    graph = helper.make_graph([node], "graph", given, results, known)
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def feeds_of(inputs: Sequence[Array | None], constant: Sequence[int] = ()) -> dict[str, Array]:
    return {f"x{index}": value for index, value in enumerate(inputs) if value is not None and index not in constant}


def onnxruntime_results(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Return ONNX Runtime's results without optimization."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def check(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    tolerance: float = 1e-4,
    valid: Sequence[tuple[slice, ...] | None] = (),
    opsets: Sequence[int] = OPSETS,
    **keywords: Any,
) -> Conversion:
    """Convert and run a node, and its body at several opsets, and compare; `tolerance` is absolute and relative.

    `valid` selects the part of each output that ONNX Runtime defines.
    """
    model = model_of(op_type, inputs, attributes, **keywords)
    feeds = feeds_of(inputs, keywords.get("constant", ()))
    expected = onnxruntime_results(model, feeds)
    specialized, conversion = converted(model, feeds)
    assert conversion.verdicts[0], str(conversion.verdicts[0])
    ordered = [feeds[conversion.model.operands[index].name] for index in conversion.model.inputs]
    _compare(by_definition(conversion.model, ordered), expected, tolerance, valid)
    for opset in opsets if has_body(specialized.nodes[0].domain, op_type) else ():
        plain = model_of(op_type, inputs, attributes, **{**keywords, "opset": opset})
        _compare(onnxruntime_results(written_out(plain, feeds), feeds), expected, tolerance, valid)
    return conversion


def converted(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> tuple[Specialized, Conversion]:
    """Specialize the model for the shapes of the feeds, and convert it."""
    shapes = {name: value.shape for name, value in feeds.items()}
    specialized = specialize(prepare(model), shapes)
    graph = specialized.graph
    return specialized, convert_graph(specialized.nodes, graph.values, specialized.constants, graph.outputs)


def written_out(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> onnx.ModelProto:
    """Replace the node of a model with the ops of its body."""
    prepared = prepare(model)
    body = function_body(prepared, 0)
    assert body is not None, "no body"
    result = expanded(prepared, {"node": body})
    assert result is not None, "the body cannot be used"
    assert not any(node.domain for node in result[0].model.graph.node)
    return result[0].model


def refusal(op_type: str, inputs: Sequence[Array | None], attributes: Any = None, **keywords: Any) -> Unsupported:
    model = model_of(op_type, inputs, attributes, **keywords)
    feeds = feeds_of(inputs, keywords.get("constant", ()))
    verdict = converted(model, feeds)[1].verdicts[0]
    assert isinstance(verdict, Unsupported), f"{op_type} was converted"
    return verdict


def _compare(
    results: Sequence[Array], wanted: Sequence[Array], tolerance: float, valid: Sequence[tuple[slice, ...] | None]
) -> None:
    for got, want, part in zip_longest(results, wanted, valid):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        got, want = (each if part is None else each[part] for each in (got, want))
        wide = np.float64 if got.dtype.kind not in "biu" else got.dtype
        np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance)
