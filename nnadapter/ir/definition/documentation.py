"""Documentation of operations, parsed from the families' texts.

A family's text has a section for each operation:

    # TYPE: the summary
    | a line of the formula
    name: meaning of an input or an attribute
    -> name: meaning of an output
    - a trap
    FLOPs: the formula in words, if it is not a constant per element
    example: inputs and attributes as arguments of a call

Two leading spaces continue a line. The section `# *` has texts that several operations share.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from nnadapter.errors import InvalidModelError
from nnadapter.ir import Array, DataType, Example, OperationDoc, OperationSchema
from nnadapter.ir.definition.quantization import EXAMPLES
from nnadapter.ir.operations import FAMILIES

_CUSTOM = """\
# CUSTOM: One node of any ONNX op, computed by a registered custom kernel.
| outputs = kernel(domain, op_type, since_version)(inputs, attributes)
inputs: The present inputs of the node, in order.
domain: Domain of the ONNX op; empty for ONNX's own.
op_type: Name of the ONNX op.
since_version: Version of the op's schema; without a schema, of the domain's opset.
attributes: The node's attributes as a JSON object; a tensor is {tensor: [data type, dimensions, base64 of the bytes]}.
present: Positions of the present inputs in the node, ascending.
output_types: Types of the results, such as `float32[1, 3]; int64[]`.
-> outputs: One per type in `output_types`.
- There is no numpy definition: the kernel defines the result.
- Drivers never see it: the host calls the kernel between the driver's programs.
- `CustomCall.of(attributes)` in nnadapter.ir.operations.custom parses the attributes.
FLOPs: 1 per output element: the cost of a kernel is unknown
example: [1.0, 2.0], domain='com.example', op_type='Twice', present=(0,), output_types='float32[2]'
"""
_EVERYWHERE = """\
# *
-> output: Data type, dimensions and layout of `input`.
fuse_code: Activation of the result r, applied before r is rounded to its data type. `none`: r. `relu`: max(r, 0).
  `clip`: min(max(r, min), max). `sigmoid`, `tanh`, `hard_sigmoid`, `hard_swish`, `leaky_relu`: as the operations with
  these names. `swish`: r * sigmoid(r). `gelu`: GELU with erf. `gelu_tanh`: GELU with approximate tanh.
fuse_parameters: Attributes of the activation: (min, max) for `clip`, (alpha, beta) for `hard_sigmoid` and `hard_swish`,
  (alpha,) for `leaky_relu`; none for the others.
to: The data type of the result.
axis: The axis, from 0 to rank - 1. Negative axes are rejected.
"""
_FAMILY_OF = {row.type: family for family, rows in FAMILIES.items() for row in rows}


def family_of(type_: str) -> str:
    """Return the family of an operation; empty for an external one."""
    return _FAMILY_OF.get(type_, "")


def doc_of(schema: OperationSchema) -> OperationDoc | None:
    """Return the documentation of an operation, from its row or from the family's text; None if there is none.

    Raises:
        InvalidModelError: the `doc` of an external row is not an OperationDoc.
    """
    doc = schema.doc
    if doc is not None and not isinstance(doc, OperationDoc):
        raise InvalidModelError(f"{schema.type}: doc is {type(doc).__name__}, expected an nnadapter.ir.OperationDoc")
    if doc is not None or schema.type not in _FAMILY_OF:
        return doc
    family = _FAMILY_OF[schema.type]
    sections = _sections(_CUSTOM if family == "custom" else import_module(f"nnadapter.ir.definition.{family}").DOCS)
    return _read(schema, sections[schema.type], {**_sections(_EVERYWHERE)["*"], **sections.get("*", {})})


@cache
def _sections(text: str) -> Mapping[str, Mapping[str, list[str]]]:
    """Return the texts of each operation, by marker (`|`, `-`) or by the name before the colon."""
    sections: dict[str, dict[str, list[str]]] = {}
    texts: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            texts[-1] += line[1:]
            continue
        mark, _, remainder = line.partition(" ")
        if mark == "#":
            type_, _, summary = remainder.partition(": ")
            section = sections[type_] = {}
            texts = section["summary"] = [summary]
            continue
        name, _, meaning = line.partition(": ")
        key, documented = (mark, remainder) if mark in ("|", "-") else (name, meaning)
        texts = section.setdefault(key, [])
        texts.append(documented)
    return sections


def _read(schema: OperationSchema, section: Mapping[str, list[str]], shared: Mapping[str, list[str]]) -> OperationDoc:
    def text_of(name: str) -> str:
        return (section.get(name) or shared[name])[0]

    return OperationDoc(
        summary=text_of("summary"),
        formula="\n".join(section["|"]),
        inputs={role.name: text_of(role.name) for role in schema.inputs},
        attributes={attribute.name: text_of(attribute.name) for attribute in schema.attributes},
        outputs={name: text_of(f"-> {name}") for name in schema.outputs},
        example=_example(schema.type, text_of("example")),
        traps=tuple(section.get("-", ())),
        flops="".join(section.get("FLOPs", ())),
    )


def _example(type_: str, text: str) -> Example:
    call = ast.parse(f"example({text})", mode="eval").body
    assert isinstance(call, ast.Call), text
    quantizations, results = EXAMPLES.get(type_, ((), ()))
    attributes = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords}
    return Example(tuple(map(_array, call.args)), attributes, quantizations, results)


def _array(node: ast.expr) -> Array | None:
    """Return an argument's array: a list, `dtype(list)`, `counting(*dimensions)`, or None."""
    if not isinstance(node, ast.Call):
        values = ast.literal_eval(node)
        return None if values is None else tensor(values)
    assert isinstance(node.func, ast.Name), "a call by a plain name"
    arguments = [ast.literal_eval(argument) for argument in node.args]
    return counting(*arguments) if node.func.id == "counting" else tensor(arguments[0], node.func.id)


def tensor(values: object, dtype: str | None = None) -> Array:
    """Convert nested lists to an array, by default of float32 or int64."""
    array: np.ndarray[Any, Any] = np.array(values)
    if dtype is None:
        dtype = {"f": "float32", "i": "int64", "b": "bool"}[array.dtype.kind]
    return array.astype(DataType(dtype).array_type)


def counting(*dimensions: int) -> Array:
    """Return 1, 2, 3, … as float32 with these dimensions."""
    return np.arange(1, 1 + int(np.prod(dimensions)), dtype=np.float32).reshape(dimensions)
