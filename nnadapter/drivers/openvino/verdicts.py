"""Whether one node is taken: the reviewed tables, before the engine is asked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx

from nnadapter.drivers.openvino.counting import MOVING, counted_names, measured_names
from nnadapter.drivers.openvino.operators import (
    DYNAMIC_FLOAT16_OPS,
    EMPTY_SIZES,
    OPERATORS,
    STATIC_SHAPE_OPS,
    OperatorRow,
)
from nnadapter.drivers.openvino.quantization import QUANTIZING
from nnadapter.drivers.openvino.restrictions import data_restriction, restriction
from nnadapter.ir.operand import DataType
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.parts import Parts
from nnadapter.onnx.references import array_of
from nnadapter.onnx.sizes import MEASURING, has_open_inputs, size_names
from partition.graph import Value
from partition.verdict import SUPPORTED, Reason, Unsupported, Verdict, all_of

_SIZING = frozenset((
    "Shape", "Size", "Gather", "Slice", "Concat", "Squeeze", "Unsqueeze", "Reshape", "Cast", "Add", "Sub", "Mul", "Div",
    "Min", "Max", "Neg", "Floor", "Ceil", "Range", "Expand", "Equal", "Less", "LessOrEqual", "Greater",
    "GreaterOrEqual", "And", "Or", "Not", "Where", "ConstantOfShape", "Identity", "ReduceProd", "Tile", "Transpose",
    "Trilu", "Clip", "Mod", "Abs", "Sign", "Pow", "CumSum", "ReduceSum", "ReduceMax", "ReduceMin", "Split", "GatherND",
    "GatherElements", "ScatterND", "Flatten", "Xor",
))  # fmt: skip
"""Ops that make sizes, and masks and positions of them, in exported models."""
_LEAST = {"Max": 0, "Min": 1, "Clip": 0}
"""What bounds sizes, and by what at least."""
_BOUNDS = {"Max": slice(None), "Min": slice(None), "Clip": slice(1, 2)}
"""Which of their inputs may be that bound."""
_CAP = 2
"""The input of Clip that caps; where it has no other bound it is a Min."""
_REALS = frozenset(("float16", "float32"))


def grouped_filters(model: onnx.ModelProto) -> frozenset[str]:
    """Names of the filters of convolutions in groups: the engine takes these where their filter is a constant."""
    grouped = (
        node
        for node in model.graph.node
        if any(attribute.name == "group" and attribute.i > 1 for attribute in node.attribute)
    )
    return frozenset(name for node in grouped for name in node.input[1:2])


@dataclass(frozen=True, slots=True)
class Whole:
    """What is asked of a model beyond its single nodes."""

    parts: Parts
    sizes: Collection[str] = ()
    """Values that follow from the shapes of others, and not from what they hold; or from constants alone."""
    measured: Collection[str] = ()
    """See `measured_names`."""
    counted: Collection[str] = ()
    """See `counted_names`."""
    is_open: bool = False
    """Its inputs leave sizes open."""

    @staticmethod
    def of(model: onnx.ModelProto, constant_bytes: int) -> Whole:
        """Read a model whose nodes are in order."""
        parts = Parts(model, constant_bytes, grouped_filters(model))
        names = measured_names(model), counted_names(model)
        return Whole(parts, size_names(model), *names, has_open_inputs(model))

    def is_size(self, name: str) -> bool:
        """Whether a value follows from shapes alone, and is no real number, as angles of positions are."""
        value = self.parts.value(name) if name in self.sizes else None
        return name in self.sizes and (value is None or value.dtype not in _REALS)

    def counts(self, node: onnx.NodeProto, name: str) -> bool:
        """Whether a value is int64 that counts, which a node moves."""
        value = self.parts.value(name)
        is_moved = node.op_type in MOVING and node.input[0] in self.counted and name in (node.input[0], *node.output)
        return is_moved and value is not None and value.dtype == "int64"


def judge(node: onnx.NodeProto, analysis: Whole, switched_off: Collection[str] = ()) -> Verdict:
    """Return the verdict of the tables on a node.

    1. Ops of ONNX's own domain that stand in the table, and that nobody switched off.
    2. Every value is a tensor of known shape and of a data type that the row names, and has elements; parts that Concat
       joins need not. Where data decide over sizes, the rank is known, and the op is right with open sizes.
    3. No restriction on its attributes holds.
    """
    if plain_domain(node.domain):
        return Unsupported(Reason.UNSUPPORTED_DOMAIN, f"domain {node.domain!r} is not ONNX's own")
    if node.op_type in switched_off:
        return Unsupported(Reason.SWITCHED_OFF, f"{node.op_type} is switched off (option switched_off)")
    of_sizes = _of_sizes(node, analysis) if any(name in analysis.measured for name in node.output) else None
    if of_sizes is not None:
        return of_sizes
    row = OPERATORS.get(node.op_type)
    if row is None:
        detail = f"{node.op_type} is not among the ops that were found right on OpenVINO"
        return Unsupported(Reason.UNSUPPORTED_OPERATION, detail)
    decided = _of_data(node, analysis) if _is_open(node, analysis.parts) else restriction(node, analysis.parts)
    return all_of((_types(node, row, analysis), decided))


def judge_dynamic(node: onnx.NodeProto, analysis: Whole, halves: Collection[str] = DYNAMIC_FLOAT16_OPS) -> Verdict:
    """Return the verdict of the tables on a node of a model whose sizes are open; some were taken at fixed sizes.

    Ops that make sizes get and make int64, small numbers as they are.

    What has no open size was taken as it is.

    Args:
        node: the node.
        analysis: the model.
        halves: ops that are taken with float16.
    """
    of_sizes = _of_sizes(node, analysis)
    if of_sizes is not None:
        return of_sizes
    is_open, is_known = _is_open(node, analysis.parts), node.op_type in OPERATORS and not plain_domain(node.domain)
    if not is_known or (is_open and node.op_type in STATIC_SHAPE_OPS):
        return Unsupported(Reason.UNSUPPORTED_OPERATION, f"{node.op_type} is taken at fixed sizes alone")
    if not is_open:
        return SUPPORTED
    values = (name for name in (*node.input, *node.output) if name and not analysis.is_size(name))
    open_types = all_of(_open_type(node, name, analysis.parts, halves) for name in values)
    return (
        restriction(node, analysis.parts, analysis.sizes) if open_types else open_types
    )  # they look at what types say


def leaves_open(node: onnx.NodeProto, analysis: Whole) -> bool:
    """Whether a node has values of open sizes, or makes sizes of these."""
    return _is_open(node, analysis.parts) or any(name in analysis.sizes for name in node.output)


def _of_data(node: onnx.NodeProto, analysis: Whole) -> Verdict:
    """The verdict on a node over whose sizes data decide: there may come to be no elements."""
    if node.op_type not in EMPTY_SIZES:
        detail = f"{node.op_type} is not among the ops that were found right where data decide over sizes"
        return Unsupported(Reason.DATA_DEPENDENT_SHAPE, detail)
    verdict = judge_dynamic(node, analysis, ())
    return data_restriction(node, analysis.parts) if verdict else verdict


def _of_sizes(node: onnx.NodeProto, analysis: Whole) -> Verdict | None:
    """The verdict on a node that makes sizes of sizes; None for any other, and for functions of positions."""
    # Constants that are dequantized follow from no data either, and are no sizes.
    if node.op_type in QUANTIZING or not all(name in analysis.sizes for name in node.output if name):
        return None
    is_known = node.op_type in _SIZING and not plain_domain(node.domain)
    if not is_known and not any(analysis.is_size(name) for name in node.output if name):
        return None
    if not is_known:
        detail = f"{node.op_type} is not among the ops that were found right on sizes"
        return Unsupported(Reason.UNSUPPORTED_OPERATION, detail)
    typed = (_is_typed(node, name, analysis.parts) for name in node.input if name)
    return all_of((*typed, _bounded(node, analysis.parts)))


def _bounded(node: onnx.NodeProto, parts: Parts) -> Verdict:
    """The verdict on a bound of sizes: behind one that is negative, dimensions come out wrong."""
    value = parts.value(node.output[0])
    if node.op_type not in _LEAST or value is None or value.static_shape is None:  # positions are no dimensions
        return SUPPORTED
    caps = node.op_type == "Clip" and len(node.input) > _CAP and not node.input[1]
    names, least = (
        (node.input[_CAP:], _LEAST["Min"]) if caps else (node.input[_BOUNDS[node.op_type]], _LEAST[node.op_type])
    )
    bounds = [bound for name in names if name and (bound := _least(parts.constants.get(name))) is not None]
    if min(bounds) >= least if bounds else node.op_type != "Clip":
        return SUPPORTED
    detail = f"{node.op_type} of sizes is taken where it bounds them by what is not negative"
    return Unsupported(Reason.UNSUPPORTED_OPERATION, detail)


def _least(tensor: onnx.TensorProto | None) -> float | None:
    """The least number of a constant."""
    numbers = None if tensor is None else array_of(tensor)
    return None if numbers is None or not numbers.size else float(numbers.min())


def _is_typed(node: onnx.NodeProto, name: str, parts: Parts) -> Verdict:
    value = parts.value(name)
    if name in parts.constants:
        return SUPPORTED
    if value is None:
        return Unsupported(Reason.DYNAMIC_SHAPE, f"the type of {name!r} of {node.op_type} is not known")
    return _ranked(node, name, value) if node.op_type in MEASURING else SUPPORTED


def _is_open(node: onnx.NodeProto, parts: Parts) -> bool:
    """Whether the shape of a value is not known."""
    values = (parts.value(name) for name in (*node.input, *node.output) if name)
    return any(value is None or value.static_shape is None for value in values)


def _open_type(node: onnx.NodeProto, name: str, parts: Parts, halves: Collection[str]) -> Verdict:
    value = parts.value(name)
    ranked = _ranked(node, name, value)
    if not ranked or value is None:
        return ranked
    if value.dtype == "float16" and node.op_type not in halves:
        detail = f"{node.op_type} got float16 for {name!r}, with which the engine may end the process at open sizes"
        return Unsupported(Reason.UNSUPPORTED_DTYPE, detail)
    return SUPPORTED


def _ranked(node: onnx.NodeProto, name: str, value: Value | None) -> Verdict:
    if value is None or value.dtype is None or value.shape is None:
        return Unsupported(Reason.DYNAMIC_SHAPE, f"the rank of {name!r} of {node.op_type} is not known")
    return SUPPORTED


def _types(node: onnx.NodeProto, row: OperatorRow, analysis: Whole) -> Verdict:
    values = (
        *((name, row.inputs.get(position, row.dtypes)) for position, name in enumerate(node.input)),
        *((name, row.outputs.get(position, row.dtypes)) for position, name in enumerate(node.output)),
    )
    return all_of(_type(node, name, accepted, analysis) for name, accepted in values if name)


def _type(node: onnx.NodeProto, name: str, accepted: Collection[DataType], analysis: Whole) -> Verdict:
    value, parts = analysis.parts.value(name), analysis.parts
    if value is None or value.dtype is None:
        return Unsupported(Reason.DYNAMIC_SHAPE, f"the type of {name!r} of {node.op_type} is not known")
    if value.dtype not in accepted and not analysis.counts(node, name):
        expected = ", ".join(sorted(dtype.value for dtype in accepted)) or "nothing there"
        detail = f"{node.op_type} got {value.dtype} for {name!r}, accepted: {expected}"
        is_tensor = "(" not in value.dtype and value.dtype != "string"
        return Unsupported(Reason.UNSUPPORTED_DTYPE if is_tensor else Reason.UNSUPPORTED_TYPE, detail)
    if value.static_shape is None and analysis.is_open:
        return Unsupported(Reason.DYNAMIC_SHAPE, f"the shape of {name!r} of {node.op_type} is not known")
    if value.static_shape is None:  # data decide over it
        return SUPPORTED
    # An empty constant is how Resize has none, and an empty part how a cache begins.
    may_be_empty = name in parts.constants or (node.op_type == "Concat" and name in node.input)
    if 0 in value.static_shape and not may_be_empty:
        detail = f"{name!r} of {node.op_type} has shape {list(value.static_shape)}, accepted: tensors with elements"
        return Unsupported(Reason.UNSUPPORTED_TYPE, detail)
    return SUPPORTED
