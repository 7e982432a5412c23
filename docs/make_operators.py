"""Write docs/reference/operators.md and the table of ONNX ops by operation, from the converters and fake_npu's table.

    python docs/make_operators.py

What the code knows is not written by hand. Which operations of the adapter IR an ONNX op becomes is found by converting
the operator tests that the package onnx ships.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.defs
from onnx import numpy_helper, parser

import nnadapter.converters
import nnadapter.ir.definition.onnx_ops
from nnadapter.candidates import prepare
from nnadapter.converters import Conversion, convert_graph, converted
from nnadapter.converters.registry import NO_CONVERTER, UNCONVERTED
from nnadapter.drivers.fake_npu import LIMITS, OPERATIONS
from nnadapter.errors import InvalidModelError
from nnadapter.ir import DataType
from nnadapter.ir.operations import SCHEMAS
from nnadapter.onnx import MICROSOFT, has_body, is_further
from nnadapter.onnx.preparation import specialize

PAGE = Path(__file__).parent / "reference" / "operators.md"
TABLE = Path(nnadapter.ir.definition.onnx_ops.__file__)
OLDEST_OPSET = 7
_BECOMES = {
    "MatMulNBits": ["MAT_MUL_N_BITS"],
}
"""Operations of ops that no operator test of onnx covers."""
_SEVERAL_OUTPUTS = frozenset(["Split", "TopK"])
_FURTHER = (
    "(float[1, 1, 3, 3, 3] x, float[1, 1, 2, 2, 2] w) => (float[1, 1, 2, 2, 2] y) { y = Conv (x, w) }",
    "(float[1, 1, 3, 3] x) => (float[1, 1, 2, 2] y, int64[1, 1, 2, 2] i)"
    " { y, i = MaxPool <kernel_shape = [2, 2]> (x) }",
    "(float[1, 1, 2, 4, 4] x) => (float[1, 1, 1, 3, 3] y, int64[1, 1, 1, 3, 3] i)"
    " { y, i = MaxPool <kernel_shape = [2, 2, 2]> (x) }",
    "(float[1, 1, 4, 4] x, float[1, 5] r) => (float[1, 1, 2, 2] y) { y = MaxRoiPool <pooled_shape = [2, 2]> (x, r) }",
    "(float[n] x) => (float[n] y) { s = Shape (x)  y = ConstantOfShape (s) }",
    "(float[n] x) => (int64[n] y) <int64 zero = {0}, int64 one = {1}> { s = Size (x)  y = Range (zero, s, one) }",
    *(
        f"(float[2, 4] x) => (float[2, 4] y) {{ y = com.microsoft.{activation} (x) }}"
        for activation in ("Gelu", "FastGelu", "QuickGelu")
    ),
    "(float[2, 4] x, float[4] b) => (float[2, 4] y) { y = com.microsoft.BiasGelu (x, b) }",
    "(float[2, 3] x, float[3, 4] w) => (float[2, 4] y) { y = com.microsoft.FusedMatMul (x, w) }",
    "(float[2, 3] x, float[3, 4] w, float[4] b) => (float[2, 4] y)"
    ' { y = com.microsoft.FusedGemm <activation = "Relu"> (x, w, b) }',
    "(float[2, 16] x) => (float[2, 1] y) <uint8[1, 1, 8] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[1] s = {0.1}>"
    " { y = com.microsoft.MatMulNBits <K = 16, N = 1, bits = 4, block_size = 16> (x, w, s) }",
    *(
        f"(uint8[4] x) => (uint8[4] y) <float s = {{0.1}}, uint8 z = {{9}}> {{ y = com.microsoft.{node} }}"
        for node in (
            "QLinearAdd (x, s, z, x, s, z, s, z)",
            "QLinearMul (x, s, z, x, s, z, s, z)",
            "QLinearSigmoid (x, s, z, s, z)",
            "QLinearLeakyRelu (x, s, z, s, z)",
        )
    ),
    "(float[1, 2, 4, 4] x, float[2, 2, 3, 3] w) => (float[1, 2, 2, 2] y)"
    ' { y = com.microsoft.FusedConv <activation = "Relu"> (x, w) }',
    "(float[1, 2, 4] x, float[4] g) => (float[1, 2, 4] y) { y = SimplifiedLayerNormalization (x, g) }",
    "(float[1, 2, 4] x, float[4] g) => (float[1, 2, 4] y) { y = com.microsoft.SkipLayerNormalization (x, x, g) }",
    "(float[1, 2, 4] x, float[4] g) => (float[1, 2, 4] y)"
    " { y = com.microsoft.SkipSimplifiedLayerNormalization (x, x, g) }",
    "(float[1, 3, 8] x, float[8, 24] w, float[24] b) => (float[1, 3, 8] y)"
    " { y = com.microsoft.Attention <num_heads = 2> (x, w, b) }",
    "(float[1, 3, 8] q, float[1, 3, 8] k, float[1, 3, 8] v) => (float[1, 3, 8] y)"
    " { y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v) }",
    "(float[1, 2, 3, 4] x, int64[1, 3] p, float[8, 2] c, float[8, 2] s) => (float[1, 2, 3, 4] y)"
    " { y = com.microsoft.RotaryEmbedding (x, p, c, s) }",
    "(float[1, 2, 32] q, float[1, 2, 16] k) => (float[1, 2, 32] y) <int32[1] n = {1}, int32[1] t = {2}>"
    " { y = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1> (q, k, k, , , n, t) }",
    "(int32[1, 2] i, float[5, 4] w, float[7, 4] p, float[4] g) => (float[1, 2, 4] y, int32[1] m)"
    " { y, m = com.microsoft.EmbedLayerNormalization (i, , w, p, , g, g) }",
    "(uint8[1, 2, 4] x, int8[4, 12] w, float[12] b) => (float[1, 2, 4] y) <float s = {0.1}>"
    " { y = com.microsoft.QAttention <num_heads = 2> (x, w, b, s, s) }",
    "(float[1, 4, 4, 2] x, float[2, 2, 3, 3] w) => (float[1, 2, 2, 2] y) { y = com.microsoft.NhwcConv (x, w) }",
    "(uint8[1, 4, 4, 2] x) => (uint8[1, 3, 3, 2] y) { y = com.microsoft.NhwcMaxPool <kernel_shape = [2, 2]> (x) }",
    "(float[2, 4] x, int8[4, 3] w) => (float[2, 3] y) <float s = {0.1}>"
    " { y = com.microsoft.DynamicQuantizeMatMul (x, w, s) }",
    "(uint8[2, 4] x, int8[4, 3] w) => (float[2, 3] y) <float s = {0.1}>"
    " { y = com.microsoft.MatMulIntegerToFloat (x, w, s, s) }",
    "(uint8[2, 4] x) => (uint8[2, 1] y) <float s = {0.1}, uint8 z = {9}, uint8[4, 1] w = {1, 2, 3, 4}>"
    " { y = com.microsoft.QGemm (x, s, z, w, s, z, , s, z) }",
    "(uint8[1, 2, 4, 4] x) => (uint8[1, 2, 3, 3] y) <float s = {0.1}, uint8 z = {9}>"
    " { y = com.microsoft.QLinearAveragePool <kernel_shape = [2, 2]> (x, s, z, s, z) }",
    "(uint8[1, 2, 4, 4] x) => (uint8[1, 2, 1, 1] y) <float s = {0.1}, uint8 z = {9}>"
    " { y = com.microsoft.QLinearGlobalAveragePool (x, s, z, s, z) }",
    "(uint8[2, 4] x) => (uint8[2, 4] y) <float s = {0.1}, uint8 z = {9}>"
    " { y = com.microsoft.QLinearSoftmax <opset = 13> (x, s, z, s, z) }",
    "(uint8[2, 4] x) => (uint8[2, 8] y) <float s = {0.1}, uint8 z = {9}>"
    " { y = com.microsoft.QLinearConcat <axis = 1> (s, z, x, s, z, x, s, z) }",
    "(bool[4] c, uint8[4] x) => (uint8[4] y) <float s = {0.1}, uint8 z = {9}>"
    " { y = com.microsoft.QLinearWhere (c, x, s, z, x, s, z, s, z) }",
    "(float[3, 1, 2] x) => (float[3, 1, 1, 1] y) <int8[1, 2, 4] w = {1, 2, 3, 4, 5, 6, 7, 8},"
    " int8[1, 1, 4] r = {1, 2, 3, 4}, float[1] s = {0.1}, int8[1] z = {0}>"
    " { y = com.microsoft.DynamicQuantizeLSTM <hidden_size = 1> (x, w, r, , , , , , s, z, s, z) }",
)
"""Ops in forms that no test of onnx has, and ops of ONNX Runtime."""
_MANY = 1 << 25
"""A size at which nothing is folded."""


def page() -> str:
    """Return the page."""
    return "\n".join([*_head(), *_converted(), *_refused(), *_operations(), *_not_a_number()])


def _head() -> Iterator[str]:
    of_onnx = [
        (op, version) for op, versions in converted().items() for version in versions if not is_further(*op, version)
    ]
    ops, versions = len({op for op, _ in of_onnx}), len(of_onnx)
    others = sum(map(len, converted().values())) - versions
    yield "# Operators"
    yield ""
    yield "This page is generated from the code by `python docs/make_operators.py`."
    yield ""
    yield f"Made with onnx {onnx.__version__}, which defines opsets up to {onnx.defs.onnx_opset_version()}."
    yield ""
    yield f"{ops} ops of ONNX's domains are converted, in {versions} schema versions, from opset"
    yield f"{OLDEST_OPSET} on, and {others} ops of ONNX Runtime, most of {MICROSOFT}."
    yield "A node can still be refused because of an attribute value, a data type, an unknown shape, or a computed"
    yield "input that must be constant. `nnadapter report` shows the reason. Refused nodes run on the next device that"
    yield "supports them, finally on the CPU, or on `reference` if ONNX Runtime lacks a kernel, opset or data type."


def _converted() -> Iterator[str]:
    becomes = _operations_by_op()
    yield ""
    yield "## Converted"
    yield ""
    yield "The third column lists the operations that onnx's tests of the op were converted to; it is empty if none was"
    yield "converted. Ops of com.microsoft, and some of ONNX Runtime in ONNX's own domain, are functions of ONNX's ops,"
    yield "and become their operations. The fourth column lists data types that fake_npu supports for all of them."
    yield ""
    yield "| ONNX op | schema versions | operations of the adapter IR | data types on fake_npu |"
    yield "|---|---|---|---|"
    for (domain, op_type), versions in sorted(converted().items(), key=lambda item: item[0][::-1]):
        operations = sorted(becomes.get((domain, op_type), ())) or _BECOMES.get(op_type, [])
        missing = [name for name in operations if name not in OPERATIONS]
        told = f"without {', '.join(missing)}" if missing else ", ".join(sorted(_common_dtypes(operations)))
        called = f"{domain}::{op_type}" if domain else op_type
        if has_body(domain, op_type) and not told:
            told = "those of its function body"
        yield f"| {called} | {_listed(versions)} | {', '.join(operations)} | {told} |"


def _common_dtypes(operations: Sequence[str]) -> frozenset[DataType]:
    """Return the data types of the first input that all operations support; empty without operations."""
    taken = [OPERATIONS[name].other_dtypes.get(0, OPERATIONS[name].dtypes) for name in operations]
    return frozenset.intersection(*taken) if taken else frozenset()


def _refused() -> Iterator[str]:
    yield ""
    yield "## Not converted"
    yield ""
    yield f"Ops of ai.onnx without a converter, from opset {OLDEST_OPSET} on, by reason:"
    yield ""
    yield "| ONNX ops | reason | description: the op |"
    yield "|---|---|---|"
    by_reason: dict[tuple[str, str], list[str]] = {}
    for op_type in sorted(_known_ops() - {op_type for _, op_type in converted()}):
        by_reason.setdefault(UNCONVERTED.get(op_type, NO_CONVERTER), []).append(op_type)
    for (reason, why), names in sorted(by_reason.items()):
        yield f"| {', '.join(names)} | `{reason}` | {why} |"
    yield ""
    yield "Ops of other domains, such as ai.onnx.ml, have no converter, except those above."


def _operations() -> Iterator[str]:
    yield ""
    yield "## Operations that fake_npu supports"
    yield ""
    yield f"{len(OPERATIONS)} of the {len(SCHEMAS)} operations of the adapter IR."
    yield "The [operations](../operations/README.md) have a definition each."
    yield "`nnadapter ops fake_npu` prints the same."
    yield f"Limits: {LIMITS}."
    yield ""
    yield "| operation | rank | data types of the first input | limits |"
    yield "|---|---|---|---|"
    for type_, row in sorted(OPERATIONS.items()):
        low, high = row.ranks
        ranks = str(low) if low == high else f"{low} to {high}"
        dtypes = sorted(row.other_dtypes.get(0, row.dtypes))
        yield f"| {type_} | {ranks} | {', '.join(dtypes)} | {row.limits_in_words} |"
    yield ""


def _not_a_number() -> Iterator[str]:
    yield "## NaN on fake_npu"
    yield ""
    yield "ONNX does not define NaN inputs. fake_npu agrees with ONNX Runtime if that is consistent: in arithmetic,"
    yield "activations, Max, Min, MaxPool with `Indices`, ArgMax and ArgMin (NaN is ignored unless it comes first)."
    yield "In MaxPool without `Indices`, GlobalMaxPool, ReduceMax, ReduceMin, TopK and Hardmax, ONNX Runtime's result"
    yield "depends on positions and on the processor. fake_npu returns NaN if an element is NaN; TopK and Hardmax treat"
    yield "NaN as the largest value."
    yield ""


def _listed(versions: tuple[int, ...]) -> str:
    return ", ".join(map(str, versions))


def _known_ops() -> set[str]:
    """Ops that are there in some opset since the oldest: their newest version counts."""
    schemas = [schema for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""]
    newest: dict[str, onnx.defs.OpSchema] = {}
    for schema in schemas:
        known = newest.get(schema.name)
        if known is None or schema.since_version > known.since_version:
            newest[schema.name] = schema
    return {name for name, schema in newest.items() if not (schema.deprecated and schema.since_version <= OLDEST_OPSET)}


def table() -> str:
    """Return the module that says which ONNX ops were seen to become an operation."""
    ops: dict[str, set[str]] = {}
    for each in (_operations_by_op(), _further_operations()):
        for (domain, op_type), types in each.items():
            for type_ in types:
                ops.setdefault(type_, set()).add(f"{domain}::{op_type}" if domain else op_type)
    rows = (f"{type_}: {' '.join(sorted(ops[type_]))}" for type_ in SCHEMAS if type_ in ops)
    lines = textwrap.fill("; ".join(rows), 118, break_long_words=False, break_on_hyphens=False)
    head, _, rest = TABLE.read_text().partition('"""\\\n')
    return head + '"""\\\n' + lines + '\n"""' + rest.partition('\n"""')[2]


def _further_operations() -> Mapping[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for text in _FURTHER:
        model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 22, "com.microsoft" : 1]> g {text}')
        specialized = specialize(prepare(model), {"x": (_MANY,)} if "[n]" in text else {})
        graph = specialized.graph
        conversion = convert_graph(specialized.nodes, graph.values, specialized.constants, graph.outputs)
        node = model.graph.node[-1]
        types = {operation.type for operation in conversion.model.operations}
        found.setdefault((node.domain, node.op_type), set()).update(types)
    return found


@cache
def _operations_by_op() -> Mapping[tuple[str, str], set[str]]:
    """Return, by ONNX op, the operations that onnx's tests of it are converted to."""
    found: dict[tuple[str, str], set[str]] = {}
    for model, inputs in _tests():
        (node,) = model.graph.node
        for conversion in filter(None, (_convert(model), _convert(_with_constants(model, inputs)))):
            types = {operation.type for operation in conversion.model.operations}
            found.setdefault((node.domain, node.op_type), set()).update(types)
    return found


def _tests() -> Iterator[tuple[onnx.ModelProto, Sequence[Any]]]:
    """The tests of one node that has a converter, with the first set of inputs of each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests  # slow: it computes every result

        for case in load_model_tests(kind="node"):
            model, data = case.model, case.data_sets
            if model is None or data is None or len(model.graph.node) != 1:
                continue
            if ("", model.graph.node[0].op_type) in converted():
                yield model, data[0][0]


def _convert(given: onnx.ModelProto) -> Conversion | None:
    """The conversion for the first output alone: others, such as LayerNormalization's, are seldom asked for."""
    model = onnx.ModelProto()
    model.CopyFrom(given)
    if model.graph.node[0].op_type not in _SEVERAL_OUTPUTS:
        del model.graph.output[1:]
    try:
        specialized = specialize(prepare(model), {})
    except InvalidModelError:
        return None
    graph = specialized.graph
    return convert_graph(specialized.nodes, graph.values, specialized.constants, graph.outputs)


def _with_constants(model: onnx.ModelProto, inputs: Sequence[Any]) -> onnx.ModelProto:
    """The model with every input but the first known, as converters of shapes and axes need it."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for value, contents in list(zip(model.graph.input, inputs, strict=True))[1:]:
        if isinstance(contents, np.ndarray | np.generic):
            changed.graph.initializer.append(numpy_helper.from_array(np.asarray(contents), value.name))
            changed.graph.input.remove(value)
    return changed


assert nnadapter.converters, "importing the package registers the converters"

if __name__ == "__main__":
    PAGE.write_text(page())
    TABLE.write_text(table())
