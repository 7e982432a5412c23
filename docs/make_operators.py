"""Write docs/operators.md from the converters' registry and fake_npu's table.

    python docs/make_operators.py

What the code knows is not written by hand. Which operations of the adapter IR an ONNX op becomes is found by converting
the operator tests that the package onnx ships.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.defs
from onnx import numpy_helper

import nnadapter.converters
from nnadapter.converters.convert import Conversion, convert_graph
from nnadapter.converters.registry import converted
from nnadapter.converters.unconverted import NO_CONVERTER, UNCONVERTED
from nnadapter.drivers.fake_npu.limits import LIMITS
from nnadapter.drivers.fake_npu.operations import OPERATIONS
from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import DataType
from nnadapter.ir.operations import SCHEMAS
from nnadapter.offering.preparing import prepare
from nnadapter.onnx.preparation.prepare import specialize

PAGE = Path(__file__).with_name("operators.md")
OLDEST_OPSET = 7
_SEVERAL_OUTPUTS = frozenset(["Split", "TopK"])


def page() -> str:
    """Return the page."""
    return "\n".join([*_head(), *_converted(), *_refused(), *_operations(), *_not_a_number()])


def _head() -> Iterator[str]:
    ops = len(converted())
    versions = sum(map(len, converted().values()))
    yield "# Operators"
    yield ""
    yield "This page is made by `python docs/make_operators.py`. A test fails when it is not what the code does."
    yield ""
    yield f"Made with onnx {onnx.__version__}, which defines opsets up to {onnx.defs.onnx_opset_version()}."
    yield ""
    yield f"{ops} ops of ONNX's domains are converted, in {versions} schema versions, from opset {OLDEST_OPSET} on."
    yield "A node of such an op can still be refused: for an attribute value, a data type, a shape that is not known,"
    yield "or an input that is computed where it must be constant. `nnadapter report` says which and why."
    yield "What is refused runs on the next device that takes it: at last on the CPU, by ONNX Runtime, or on"
    yield "`reference`, onnx's evaluator, where ONNX Runtime has no kernel, opset or data type for it."


def _converted() -> Iterator[str]:
    becomes = _operations_by_op()
    yield ""
    yield "## Converted"
    yield ""
    yield "The third column holds what onnx's own tests of the op became; it is empty where none of them was"
    yield "converted as it stands. The fourth holds the data types that fake_npu takes for all of these operations."
    yield ""
    yield "| ONNX op | schema versions | operations of the adapter IR | data types on fake_npu |"
    yield "|---|---|---|---|"
    for (domain, op_type), versions in sorted(converted().items(), key=lambda item: item[0][::-1]):
        operations = sorted(becomes.get(op_type, ()))
        missing = [name for name in operations if name not in OPERATIONS]
        told = f"without {', '.join(missing)}" if missing else ", ".join(sorted(_common_dtypes(operations)))
        called = f"{domain}::{op_type}" if domain else op_type
        yield f"| {called} | {_listed(versions)} | {', '.join(operations)} | {told} |"


def _common_dtypes(operations: Sequence[str]) -> frozenset[DataType]:
    """What the first input of each may be; nothing where there are no operations."""
    taken = [OPERATIONS[name].other_dtypes.get(0, OPERATIONS[name].dtypes) for name in operations]
    return frozenset.intersection(*taken) if taken else frozenset()


def _refused() -> Iterator[str]:
    yield ""
    yield "## Not converted"
    yield ""
    yield f"Ops of ai.onnx that opset {OLDEST_OPSET} or a later one has, and that have no converter, by reason:"
    yield ""
    yield "| ONNX ops | reason | in words: it |"
    yield "|---|---|---|"
    by_reason: dict[tuple[str, str], list[str]] = {}
    for op_type in sorted(_known_ops() - {op_type for _, op_type in converted()}):
        by_reason.setdefault(UNCONVERTED.get(op_type, NO_CONVERTER), []).append(op_type)
    for (reason, why), names in sorted(by_reason.items()):
        yield f"| {', '.join(names)} | `{reason}` | {why} |"
    yield ""
    yield "Ops of other domains, such as ai.onnx.ml, have none either, but for those above."


def _operations() -> Iterator[str]:
    yield ""
    yield "## What fake_npu takes"
    yield ""
    yield f"{len(OPERATIONS)} of the {len(SCHEMAS)} operations of the adapter IR."
    yield "What each of them computes is said by the definition of the adapter IR, `nnadapter/ir/definition/`."
    yield "`nnadapter ops fake_npu` prints the same."
    yield f"What holds for {LIMITS}."
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
    yield "ONNX says nothing of inputs that are not numbers. Where ONNX Runtime has a rule, fake_npu has the same: in"
    yield "arithmetic, activations, Max and Min, in MaxPool with `Indices`, and in ArgMax and ArgMin, which pass over"
    yield "NaN unless it comes first. In MaxPool without `Indices`, GlobalMaxPool, ReduceMax, ReduceMin, TopK and"
    yield "Hardmax, what ONNX Runtime makes of NaN depends on places and on the processor. There fake_npu gives NaN"
    yield "wherever one is among the elements; TopK and Hardmax take NaN for larger than all else."
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


def _operations_by_op() -> Mapping[str, set[str]]:
    """Per ONNX op, the operations that onnx's own tests of it became."""
    found: dict[str, set[str]] = {}
    for model, inputs in _tests():
        (node,) = model.graph.node
        for conversion in filter(None, (_convert(model), _convert(_with_constants(model, inputs)))):
            types = {operation.type for operation in conversion.model.operations}
            found.setdefault(node.op_type, set()).update(types)
    return found


def _tests() -> Iterator[tuple[onnx.ModelProto, Sequence[Any]]]:
    """The tests of one node that has a converter, with the first set of inputs of each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases  # slow: it computes every result

        for case in collect_testcases(None):
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
