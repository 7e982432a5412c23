"""Random forms of an op: a node with everything that may affect its computation.

The op's schema determines attributes, optional inputs and data types; `attributes.py` has values of attributes,
`recipes.py` compatible shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np
import onnx
from onnx import helper, numpy_helper

from nnadapter.drivers.openvino import OPERATORS
from tests.drivers.openvino.sweep.attributes import Shape, choice_of
from tests.drivers.openvino.sweep.values import array_of

_OPSETS = range(7, onnx.defs.onnx_opset_version() + 1)
_WRITTEN = (np.int64, np.int32)
"""Types with their values in the text, because shapes may depend on them."""


@dataclass(frozen=True, eq=False, slots=True)
class Form:
    node: onnx.NodeProto
    opset: int
    arrays: tuple[np.ndarray | None, ...]
    constants: frozenset[int]

    @property
    def text(self) -> str:
        """Description; forms with the same text differ at most in numbers."""
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in self.node.attribute}
        inputs = (
            "none"
            if array is None
            else f"{array.dtype}{list(array.shape)}{'=' if at in self.constants else ''}{_contents(array)}"
            for at, array in enumerate(self.arrays)
        )
        return f"{self.node.op_type}-{self.opset}({', '.join(inputs)}) -> {len(self.node.output)} {attributes}"

    @property
    def steps(self) -> int:
        """Allowed difference of integers."""
        return int(self.node.op_type == "QuantizeLinear")

    @property
    def feed(self) -> dict[str, np.ndarray]:
        return {
            name: array
            for at, (name, array) in enumerate(zip(self.node.input, self.arrays, strict=True))
            if array is not None and at not in self.constants
        }


def model_of(forms: Sequence[Form]) -> onnx.ModelProto:
    """Return a model with the nodes of several forms of one opset."""
    nodes, inputs, constants = [], [], []
    for number, form in enumerate(forms):
        node = onnx.NodeProto()
        node.CopyFrom(form.node)
        for field in (node.input, node.output):
            field[:] = [f"{name}{number}" if name else "" for name in field]
        nodes.append(node)
        for at, (name, array) in enumerate(zip(node.input, form.arrays, strict=True)):
            if array is not None and at in form.constants:
                constants.append(numpy_helper.from_array(array, name))
            elif array is not None:
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
    outputs = [onnx.ValueInfoProto(name=name) for node in nodes for name in node.output]
    graph = helper.make_graph(nodes, "forms", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", forms[0].opset)], ir_version=10)


class Draft:
    """Form under construction: a recipe sets shapes and integers, the schema determines the rest."""

    def __init__(self, op_type: str, random: Random) -> None:
        self.op_type, self.random = op_type, random
        self.opset, self.schema = random.choice(_versions(op_type))
        self.attributes: dict[str, object] = {}
        self.shapes: list[Shape | None] = []
        self.arrays: dict[int, np.ndarray] = {}
        """Inputs set by a recipe, mostly constants."""
        self.drawn: dict[int, np.ndarray] = {}
        """Inputs of `shapes` with values from a recipe."""
        self.outputs = 1
        self.kinds = ("normal", "steps")

    def has_input(self, position: int) -> bool:
        return position < len(self.schema.inputs)

    def draw_attributes(self, shape: Shape) -> None:
        """Draw the attributes that the schema requires, and some of the others."""
        for name, attribute in self.schema.attributes.items():
            if name not in self.attributes and (attribute.required or self.random.random() < 0.5):
                self.attributes[name] = choice_of(self.op_type, name)(self.random, shape)

    def form(self) -> Form:
        dtypes = _dtypes(self)
        count = max(len(self.shapes), *(position + 1 for position in self.arrays), 1)
        shapes = [*self.shapes, *[None] * (count - len(self.shapes))]
        arrays = [
            self.arrays.get(at) if shape is None else self._array(at, shape, dtypes[at])
            for at, shape in enumerate(shapes)
        ]
        while arrays[-1] is None:
            arrays.pop()
        constants = {at for at in range(len(arrays)) if self.random.random() < (0.9 if at in self.arrays else 0.3)}
        present = [at for at, array in enumerate(arrays) if array is not None]
        if constants.issuperset(present):
            constants.remove(present[0])
        node = helper.make_node(
            self.op_type,
            ["" if array is None else f"i{at}_" for at, array in enumerate(arrays)],
            [f"o{at}_" for at in range(self.outputs)],
        )
        for name, value in self.attributes.items():
            kind = onnx.AttributeProto.AttributeType.Value(self.schema.attributes[name].type.name)
            node.attribute.append(helper.make_attribute(name, value, attr_type=kind))
        return Form(node, self.opset, tuple(arrays), frozenset(constants))

    def _array(self, at: int, shape: Shape, dtype: np.dtype) -> np.ndarray:
        return self.drawn[at] if at in self.drawn else array_of(self.random, shape, dtype, self.kinds)


@cache
def _versions(op_type: str) -> tuple[tuple[int, onnx.defs.OpSchema], ...]:
    """Return every schema of an op at its first and last opset."""
    schemas = {}
    for opset in _OPSETS:
        try:
            schema = onnx.defs.get_schema(op_type, opset)
        except onnx.defs.SchemaError:
            continue
        if not schema.deprecated:
            schemas.setdefault(schema.since_version, []).append((opset, schema))
    return tuple(
        pair for same in schemas.values() for pair in {version[0]: version for version in (same[0], same[-1])}.values()
    )


def _dtypes(draft: Draft) -> list[np.dtype]:
    """Draw a data type per type variable that both the schema and the driver's row allow."""
    row, bound, dtypes = OPERATORS[draft.op_type], {}, []
    allowed = {
        constraint.type_param_str: set(constraint.allowed_type_strs) for constraint in draft.schema.type_constraints
    }
    for at in range(len(draft.shapes)):
        formal = draft.schema.inputs[min(at, len(draft.schema.inputs) - 1)]
        supported = {f"tensor({dtype.value})".replace("float32", "float") for dtype in row.inputs.get(at, row.dtypes)}
        choices = sorted((allowed.get(formal.type_str) or {formal.type_str}) & supported)
        if not choices:
            dtypes.append(np.dtype(np.float32))
            continue
        dtypes.append(_array_type(bound.setdefault(formal.type_str, draft.random.choice(choices))))
    return dtypes


def _array_type(text: str) -> np.dtype:
    name = text.removeprefix("tensor(").removesuffix(")")
    return np.dtype("float32" if name == "float" else name)


def _contents(array: np.ndarray) -> str:
    return str(array.tolist()) if array.ndim < 2 and array.size <= 16 and array.dtype in _WRITTEN else ""
