"""Export of PyTorch programs to ONNX, with the rewrites of the exported graph."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import onnx_ir
import torch
from onnx_ir.passes import common as passes
from onnxscript.optimizer import fold_constants_ir
from onnxscript.rewriter import RewritePass, RewriteRule
from onnxscript.rewriter.rules import common as rules
from torch.export import ExportedProgram
from torch.onnx import OnnxExporterError, _constants
from torch.onnx._internal.exporter import _core

from nnadapter.torch.onnx_forms import as_tensors, without_types
from nnadapter.torch.operators import registry

if TYPE_CHECKING:
    import onnx


class WrongType(Exception):  # noqa: N818  always caught
    """Error: a result has a data type that a cast cannot correct."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


def keep_type(graph: onnx.GraphProto, output: onnx.ValueInfoProto, like: Any) -> None:
    """Cast an output to the data type of `like` if the exporter widened it; otherwise raise WrongType."""
    expected_type = _core.torch_dtype_to_onnx_dtype(like.dtype if isinstance(like, torch.Tensor) else torch.int64)
    actual_type = type(expected_type)(output.type.tensor_type.elem_type)
    if actual_type == expected_type:
        return
    if not (
        actual_type.is_floating_point()
        and expected_type.is_floating_point()
        and actual_type.bitwidth > expected_type.bitwidth
    ):
        raise WrongType(
            f"PyTorch's exporter returns the type {actual_type.name.lower()}, expected {expected_type.name.lower()}"
        )
    _round(graph, output, int(expected_type))


def _round(graph: onnx.GraphProto, output: onnx.ValueInfoProto, element_type: int) -> None:
    wide = f"{output.name}.wide"
    for node in graph.node:
        node.input[:] = [wide if name == output.name else name for name in node.input]
        node.output[:] = [wide if name == output.name else name for name in node.output]
    for value in (*graph.initializer, *graph.value_info):
        value.name = wide if value.name == output.name else value.name
    cast = graph.node.add(op_type="Cast", name=f"{output.name}.rounded", input=[wide], output=[output.name])
    cast.attribute.add(name="to", type=_INT, i=element_type)
    output.type.tensor_type.elem_type = element_type


_INT = 2


_ROUNDS = 2


def tidy(model: onnx_ir.Model) -> None:
    """Fold constants, simplify, and remove unused and duplicate values."""
    passes.InlinePass()(model)
    for _ in range(_ROUNDS):
        fold_constants_ir(model, onnx_shape_inference=True)
        _REWRITING(model)
        passes.RemoveUnusedNodesPass()(model)
    _separate_outputs(model.graph)
    for tidying in _TIDYING:
        tidying()(model)


def _separate_outputs(graph: onnx_ir.Graph) -> None:
    for place, value in enumerate(graph.outputs):
        if value.producer() is None:
            node = onnx_ir.node("Identity", inputs=[value])
            (result,) = node.outputs
            graph.append(node)
            graph.outputs[place] = result
            if value.is_graph_input():
                result.name = f"{value.name}_given"
            else:
                result.name, value.name = value.name, f"{value.name}_constant"
            result.shape, result.type = value.shape, value.type


def _multiplied(op: Any, x: Any, number: Any) -> Any:
    return op.Mul(x, number)


def _multiplying(op: Any, x: Any, number: Any) -> Any:
    return op.Mul(number, x)


def _divided(op: Any, x: Any, number: Any) -> Any:
    return op.Div(x, number)


def _itself(op: Any, x: Any, number: Any) -> Any:
    return op.Identity(x)


def _is_one(context: Any, x: Any, number: Any) -> bool:
    value = number.const_value
    return value is not None and not len(value.shape) and bool(value.numpy() == 1)


RULES = (
    "two_reshapes_matmul_reshape_rule",
    "one_reshape_matmul_reshape_rule",
    "cast_constant_of_shape_rule",
    "cast_constant_of_shape_without_value_rule",
    "collapse_slice_rule",
    "collapse_slice2_rule",
    "materialize_reshape_shape_rule",
    "flatten_to_reshape_rule",
    "reshape_reshape_rule",
    "squeeze_reshape_1d_rule",
    "unsqueeze_unsqueeze_rule",
    "transpose_transpose_rule",
    "successive_relu_rule",
    "no_op_cast_rule",
    "no_op_expand_rule",
    "no_op_transpose_rule",
    "no_op_dynamic_scatter_nd_rule",
    "no_op_static_scatter_nd_rule",
    "normalize_pad_format_conv_rule",
    "normalize_pad_format_conv_integer_rule",
    "fuse_pad_into_conv_rule",
    "fuse_pad_into_conv_integer_rule",
    "fuse_batchnorm_into_conv_rule",
    "fuse_batchnorm_into_conv_transpose_rule",
    "fuse_batchnorm_into_gemm_rule",
    "remove_optional_bias_from_conv_rule",
    "remove_optional_bias_from_conv_transpose_rule",
    "remove_optional_bias_from_gemm_rule",
)
"""Rewrite rules of onnxscript; missing ones are skipped."""
_REWRITING = RewritePass(
    [
        *(RewriteRule(form, _itself, _is_one) for form in (_multiplied, _multiplying, _divided)),
        *(getattr(rules, name) for name in RULES if hasattr(rules, name)),
    ]
)
_TIDYING = (
    passes.RemoveUnusedFunctionsPass,
    passes.RemoveUnusedOpsetsPass,
    partial(passes.LiftConstantsToInitializersPass, lift_all_constants=True, size_limit=0),
    passes.LiftSubgraphInitializersToMainGraphPass,
    passes.DeduplicateInitializersPass,
    passes.CommonSubexpressionEliminationPass,
    passes.OutputFixPass,
    passes.NameFixPass,
)


def export_program(program: ExportedProgram) -> onnx.ModelProto:
    """Export a program with a cached operator registry, unlike `torch.onnx.export`."""
    opset = _constants.ONNX_DEFAULT_OPSET
    return exported(program, registry=registry(opset), opset_version=opset)


class _Decomposed(ExportedProgram):  # type: ignore[misc]  # untyped
    def run_decompositions(self, *_: Any, **__: Any) -> ExportedProgram:
        return self


def exported(program: ExportedProgram, **options: Any) -> onnx.ModelProto:
    """Export and simplify a program, which is modified. Raises OnnxExporterError."""
    decomposed = _Decomposed(
        program.graph_module,
        program.graph,
        program.graph_signature,
        program.state_dict,
        program.range_constraints,
        program.module_call_graph,
        constants=program.constants,
    )
    as_tensors(decomposed.graph)
    onnx_program = _core.export(decomposed, verbose=False, optimize=False, **options)
    without_types(onnx_program.model)
    try:
        tidy(onnx_program.model)
    except Exception as error:  # raised by rules of onnxscript; the innermost cause has the message
        raise OnnxExporterError(f"the exported model cannot be simplified: {error}") from error
    model: onnx.ModelProto = onnx_program.model_proto
    return model
