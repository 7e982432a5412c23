"""Nodes that are written, not read: which data types their schemas allow, and models of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.defs
from onnx import helper

from nnadapter.ir.operand import Array, DataType
from nnadapter.onnx.construction import info_of, initializer_of, model_of, tensor_of
from nnadapter.onnx.schemas import since_version
from nnadapter.process.resources import memoize
from partition.graph import ELEMENT_TYPE_OF_DTYPE, Value

_NODE_IR_VERSION = 10
"""The first one with operands of 4 bits."""
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
"""Attributes that say the data type of a result."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WrittenNode:
    """A node as it goes into a model."""

    op_type: str
    inputs: tuple[str, ...]
    """Empty names for what is absent."""
    outputs: tuple[str, ...]
    attributes: Mapping[str, object] = field(default_factory=dict)
    """Numbers, texts, lists of these, data types and arrays."""
    domain: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Types:
    """What a schema says of the data types of one op: names of allowed types, or of a type parameter, per place."""

    inputs: tuple[tuple[str, frozenset[str]], ...]
    """Per input: its type parameter, or its only type, and the allowed types."""
    outputs: tuple[tuple[str, frozenset[str]], ...]
    variadic: bool
    """Whether the last input stands for any number."""


@memoize(1024)
def types_of(op_type: str, opset: int) -> Types:
    """What the schema of one of ONNX's own ops in an opset says of data types."""
    schema = onnx.defs.get_schema(op_type, opset)
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    parameters = {
        constraint.type_param_str: frozenset(constraint.allowed_type_strs) for constraint in schema.type_constraints
    }
    sides = (schema.inputs, schema.outputs)  # `types` of what is in them is a TypeError before onnx 1.21
    inputs, outputs = (
        tuple(
            (parameter.type_str, parameters.get(parameter.type_str) or frozenset([parameter.type_str]))
            for parameter in side
        )
        for side in sides
    )
    return Types(inputs, outputs, bool(schema.inputs) and schema.inputs[-1].option == variadic)


@memoize(1024)
def first_opset(op_type: str, at_least: int) -> int:
    """The oldest opset from `at_least` on that has one of ONNX's own ops."""
    newest = onnx.defs.onnx_opset_version()
    opsets = (opset for opset in range(at_least, newest + 1) if since_version("", op_type, opset) is not None)
    return next(opsets, newest + 1)


@memoize(1024)
def opset_of_version(op_type: str, version: int, at_least: int) -> int | None:
    """The oldest opset from `at_least` on that means this schema version of one of ONNX's own ops; None without one."""
    newest = onnx.defs.onnx_opset_version()
    return next((opset for opset in range(at_least, newest + 1) if since_version("", op_type, opset) == version), None)


def type_text(dtype: DataType) -> str:
    """A data type as schemas write it: `tensor(float)`."""
    name = str(onnx.TensorProto.DataType.Name(ELEMENT_TYPE_OF_DTYPE[dtype.value])).lower()
    return f"tensor({name})"


def result_types(
    node: WrittenNode, types: Types, input_dtypes: Sequence[DataType | None]
) -> list[tuple[str, DataType | None, frozenset[str]]]:
    """Name, data type as far as the schema tells it, and allowed types of each thing that a node makes."""
    bound: dict[str, DataType | None] = {}
    for (parameter, _), dtype in zip(types.inputs, input_dtypes, strict=False):
        if dtype is not None:
            bound.setdefault(parameter, dtype)
    named = next((node.attributes[name] for name in _TYPE_ATTRIBUTES if name in node.attributes), None)
    results = []
    for position, name in enumerate(node.outputs):
        parameter, allowed = types.outputs[min(position, len(types.outputs) - 1)]
        inferred = bound[parameter] if parameter in bound else _only(allowed)
        results.append((name, named if isinstance(named, DataType) else inferred, allowed))
    return results


def _only(allowed: frozenset[str]) -> DataType | None:
    return next((dtype for dtype in DataType if {type_text(dtype)} == allowed), None)


def written_model(
    nodes: Iterable[WrittenNode],
    inputs: Iterable[Value],
    outputs: Iterable[Value],
    values: Iterable[Value],
    weights: Mapping[str, Array],
    constants: Mapping[str, Array],
    opsets: Mapping[str, int],
) -> onnx.ModelProto:
    """Return a model of nodes; it refers to large weights (`nnadapter.onnx.references`), which others keep.

    Args:
        nodes: in an order in which they can run.
        inputs: of the graph.
        outputs: of the graph.
        values: what is known of values between.
        weights: by name.
        constants: by name; nobody keeps them, so the model holds them.
        opsets: by domain.
    """
    like = onnx.ModelProto(ir_version=_NODE_IR_VERSION)
    like.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in opsets.items())
    tensors = [tensor_of(name, value) for name, value in weights.items()]
    tensors += [initializer_of(name, value) for name, value in constants.items()]
    model = model_of(like, map(message_of, nodes), map(info_of, inputs), map(info_of, outputs), tensors)
    model.graph.value_info.extend(map(info_of, values))
    model.producer_name = "nnadapter"
    return model


def message_of(node: WrittenNode) -> onnx.NodeProto:
    """Return a node as models hold it."""
    proto: onnx.NodeProto = helper.make_node(
        node.op_type, node.inputs, node.outputs, node.name or None, domain=node.domain or None
    )
    proto.attribute.extend(_attribute(name, value) for name, value in node.attributes.items())
    return proto


def _attribute(name: str, value: object) -> onnx.AttributeProto:
    if isinstance(value, DataType):
        value = ELEMENT_TYPE_OF_DTYPE[value.value]
    elif isinstance(value, np.ndarray):
        value = onnx.numpy_helper.from_array(value)
    empty = isinstance(value, (tuple, list)) and not value
    attribute: onnx.AttributeProto = helper.make_attribute(
        name, int(value) if isinstance(value, bool) else value, attr_type=onnx.AttributeProto.INTS if empty else None
    )
    return attribute
