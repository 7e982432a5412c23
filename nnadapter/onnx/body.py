"""Op bodies: nodes without a schema in onnx, as functions of ONNX ops.

Inference over a body yields types and shapes, converters convert the body, and devices that take ONNX get the body at
the model's opset. ONNX Runtime still gets the original node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import starmap
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper

from nnadapter.ir import Array, SymbolicNumber
from nnadapter.ir.structure import SymbolicArray
from nnadapter.onnx.construction import add_constants, info_of, initializer_of
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.propagation import infer
from nnadapter.onnx.schemas import MICROSOFT, Refusal, add_schema, further_schema, since_version
from nnadapter.records import dataclass, replace
from partition.graph import ELEMENT_TYPE_OF_DTYPE, Reason, Value

NEWEST_OPSET = 24
OLDEST_OPSET = 13
"""Oldest opset of bodies; Softmax and other ops have another meaning before it."""


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """Computation of one node as ONNX nodes."""

    inputs: tuple[str, ...]
    """Names of the node's inputs inside the body, empty if absent."""
    outputs: tuple[str, ...]
    """Names of the node's outputs inside the body, empty if unused."""
    nodes: tuple[OnnxNode, ...]
    constants: Mapping[str, Array | SymbolicArray]
    """Constants that the nodes read, symbolic if they contain a dynamic size."""
    opset: int

    def function(self, node: OnnxNode) -> onnx.FunctionProto:
        """Return the body as a function for `node`'s op, with constants as nodes."""
        constants = [
            helper.make_node("Constant", [], [name], value=initializer_of(name, array))
            for name, array in self.plain_constants().items()
        ]
        formal = [name or f"absent{position}" for position, name in enumerate(self.inputs)]
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_function(
            node.domain, node.op_type, formal, self.outputs, [*constants, *self._protos()], opsets
        )

    def types(self, inputs: Sequence[Value | None], constants: Mapping[int, Array]) -> Iterator[onnx.ValueInfoProto]:
        symbols = {size for value in inputs if value is not None for size in value.shape or ()}
        types = self.known_types(inputs, constants)
        return (_without_new_symbols(types[name], symbols) for name in self.outputs if name and name in types)

    def known_types(
        self, inputs: Sequence[Value | None], constants: Mapping[int, Array]
    ) -> dict[str, onnx.ValueInfoProto]:
        """Infer the types of the body's values by name, ignoring contents of large constants."""
        graph = onnx.GraphProto(name="body")
        input_arrays = {name: array for position, array in constants.items() if (name := self.inputs[position])}
        add_constants(graph, input_arrays | self.plain_constants())
        input_values = {
            name: value for name, value in zip(self.inputs, inputs, strict=True) if name and name not in input_arrays
        }
        graph.input.extend(
            info_of(replace(value, name=name)) for name, value in input_values.items() if value is not None
        )
        graph.node.extend(self._protos())
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        return dict(infer(model))

    def plain_constants(self) -> dict[str, Array]:
        return {
            name: constant.plain() if isinstance(constant, SymbolicArray) else constant
            for name, constant in self.constants.items()
        }

    def _protos(self) -> Iterator[onnx.NodeProto]:
        for node in self.nodes:
            proto = helper.make_node(node.op_type, node.inputs, node.outputs)
            proto.attribute.extend(starmap(helper.make_attribute, node.attributes.items()))
            yield proto


def _without_new_symbols(info: onnx.ValueInfoProto, symbols: set[Any]) -> onnx.ValueInfoProto:
    """Clear symbols invented by inference: other bodies may reuse the names."""
    for dimension in info.type.tensor_type.shape.dim:
        if dimension.dim_param and dimension.dim_param not in symbols:
            dimension.Clear()
    return info


class BodyBuilder:
    """Writer of the body of one node.

    `values` and `constants` are the node's inputs by position; absent `values` are None. `integers` returns the
    contents of a shape-derived input, possibly symbolic, or None. `oldest` is the oldest opset that the body supports;
    see `body_of`.

    Every ONNX op is a method: `body.MatMul(a, b)` adds a node with one output and returns the output's name.
    """

    def __init__(
        self,
        node: OnnxNode,
        values: Sequence[Value | None],
        constants: Mapping[int, Array] = MappingProxyType({}),
        opset: int = NEWEST_OPSET,
        integers: Callable[[int], tuple[int, ...] | None] = lambda position: None,
        oldest: int = OLDEST_OPSET,
    ) -> None:
        if opset < oldest:
            raise Refusal(Reason.UNSUPPORTED_VERSION, f"{node.op_type} needs opset {oldest} to be written in ONNX ops")
        self.node, self.opset = node, opset
        self._values, self._known, self._integers = values, constants, integers
        self._names = tuple("" if value is None else f"input{position}" for position, value in enumerate(values))
        self._nodes: list[OnnxNode] = []
        self._constants: dict[str, Array | SymbolicArray] = {}

    def __getattr__(self, op_type: str) -> Callable[..., str]:
        if not op_type[0].isupper():
            raise AttributeError(f"{op_type!r} is no op of ONNX")
        return partial(self.add, op_type)

    def input(self, position: int) -> str:
        """Return the name of an input inside the body, empty if absent."""
        return self._names[position] if position < len(self._names) else ""

    def value(self, position: int) -> Value:
        """Return a required input.

        Raises:
            Refusal: absent, or of unknown rank or type.
        """
        value = self._values[position] if position < len(self._values) else None
        if value is None:
            raise self.invalid(f"lacks its input {position}")
        if value.shape is None or value.dtype is None:
            raise Refusal(
                Reason.DYNAMIC_SHAPE,
                f"input {position} of {self.node.op_type} has an unknown rank or type; add its value_info to the model",
            )
        return value

    def shape(self, position: int) -> tuple[int | None, ...]:
        return tuple(size if type(size) is int else None for size in self.value(position).shape or ())

    def size(self, position: int, axis: int) -> int | None:
        """Return a dimension of an input: a number or symbolic size."""
        shape = self.value(position).shape or ()
        if not -len(shape) <= axis < len(shape):
            raise self.invalid(f"has an input {position} of rank {len(shape)}; expected one with an axis {axis}")
        size = shape[axis]
        return None if size is None or isinstance(size, str) else size

    def width(self, position: int, axis: int = -1) -> int | None:
        """Return a dimension of an input, None if not static."""
        size = self.size(position, axis)
        return size if type(size) is int else None

    def integers(self, position: int) -> tuple[int, ...]:
        """Return the integers in an input, possibly symbolic; raise Refusal if unknown."""
        items = self._integers(position)
        return tuple(self.contents(position).reshape(-1).tolist()) if items is None else items

    def rank(self, position: int) -> int:
        return len(self.shape(position))

    def dtype(self, position: int | None = None) -> str:
        """Return the data type of an input; the default is the first floating-point input, or input 0 if none is."""
        if position is not None:
            return str(self.value(position).dtype)
        names = (str(value.dtype) for value in self._values if value is not None)
        return next((name for name in names if "float" in name), None) or self.dtype(0)

    def contents(self, position: int) -> Array:
        if position not in self._known:
            raise Refusal(
                Reason.NOT_CONSTANT,
                f"input {position} of {self.node.op_type} is known only when the model runs; expected an initializer "
                "or a value that follows from shapes",
            )
        return self._known[position]

    def knows(self, position: int) -> bool:
        return position in self._known

    def wants(self, position: int) -> bool:
        return bool(self.node.output(position))

    def constant_of(self, name: str) -> Array | None:
        contents = self._constants.get(name)
        return contents.plain() if isinstance(contents, SymbolicArray) else contents

    def invalid(self, problem: str) -> Refusal:
        return Refusal(Reason.INVALID_NODE, f"{self.node.op_type} {problem}")

    def unsupported(self, name: str, problem: str, kind: str = "attribute") -> Refusal:
        return Refusal(Reason.UNSUPPORTED_ATTRIBUTE, f"{kind} {name!r} of {self.node.op_type} {problem}")

    def constant(self, contents: Any, dtype: str = "int64") -> str:
        """Add a constant, possibly with symbolic integers, and return its name."""
        name = f"constant{len(self._constants)}"
        items = contents if isinstance(contents, (list, tuple)) else (contents,)
        if any(isinstance(item, SymbolicNumber) for item in items):
            self._constants[name] = SymbolicArray(np.array(contents, object), np.dtype(dtype))
            return name
        array = np.asarray(contents, helper.tensor_dtype_to_np_dtype(ELEMENT_TYPE_OF_DTYPE[dtype]))
        array.flags.writeable = False
        self._constants[name] = array
        return name

    def add(self, op_type: str, *inputs: str, **attributes: object) -> str:
        return self.add_several(op_type, inputs, 1, **attributes)[0]

    def add_several(self, op_type: str, inputs: Sequence[str], outputs: int, **attributes: object) -> tuple[str, ...]:
        version = since_version("", op_type, self.opset)
        assert version is not None, f"opset {self.opset} has no {op_type}"
        read = list(inputs)
        while read and not read[-1]:
            read.pop()
        number = len(self._nodes)
        output_names = tuple(f"value{number}" if not index else f"value{number}_{index}" for index in range(outputs))
        stated = {name: tuple(value) if isinstance(value, list) else value for name, value in attributes.items()}
        present_attributes = {name: value for name, value in stated.items() if value is not None}
        self._nodes.append(
            OnnxNode(self.node.name, op_type, "", version, tuple(read), output_names, present_attributes)
        )
        return output_names

    def plus(self, x: str, y: str) -> str:
        return self.Add(x, y) if x and y else x or y

    def cast(self, x: str, dtype: str) -> str:
        return self.Cast(x, to=ELEMENT_TYPE_OF_DTYPE[dtype])

    def unsqueeze(self, x: str, *axes: int) -> str:
        return self.Unsqueeze(x, self.constant(axes))

    def reshape(self, x: str, *sizes: int) -> str:
        """Add a Reshape; 0 copies a size, -1 infers one."""
        return self.Reshape(x, self.constant(sizes))

    def finish(self, outputs: Sequence[str]) -> Body:
        """Return the body. Outputs that no inner node computes, or that repeat, are copied by Identity."""
        output_names = [name if self.wants(position) else "" for position, name in enumerate(outputs)]
        defined_names: set[str] = set(self._names) | self._constants.keys()
        for position, name in enumerate(output_names):
            if name and name in defined_names:
                output_names[position] = self.Identity(name)
            defined_names.add(output_names[position])
        return Body(self._names, tuple(output_names), tuple(self._nodes), self._constants, self.opset)


def channels_first(body: BodyBuilder) -> str:
    """Add a Transpose of the first input from [N, ..., C] to [N, C, ...], or raise Refusal."""
    rank = body.rank(0)
    if rank < 3:
        raise body.invalid(f"has an input of rank {rank}; expected [N, ..., C] of rank 3 or more")
    return body.Transpose(body.input(0), perm=(0, rank - 1, *range(1, rank - 1)))


def channels_last(body: BodyBuilder, x: str) -> str:
    """Add a Transpose of a value of the first input's rank from [N, C, ...] to [N, ..., C]."""
    return body.Transpose(x, perm=(0, *range(2, body.rank(0)), 1))


def sliced(body: BodyBuilder, x: str, axis: int, begin: int, end: int | str) -> str:
    """Add a Slice along one axis; `end` may name a one-element vector."""
    stop = end if isinstance(end, str) else body.constant((end,))
    return body.Slice(x, body.constant((begin,)), stop, body.constant((axis,)))


def parts_along(body: BodyBuilder, x: str, axis: int, sizes: Sequence[int]) -> tuple[str, ...]:
    """Add a Split along `axis` into parts of these sizes."""
    return body.add_several("Split", (x, body.constant(tuple(sizes))), len(sizes), axis=axis)


def length_of(body: BodyBuilder, x: str, axis: int) -> str:
    """Add the size of `x` along `axis`, as a one-element vector."""
    return body.Gather(body.Shape(x), body.constant((axis,)))


def steps_along(body: BodyBuilder, x: str, axis: int, size: int | None) -> str:
    """Add the integers from 0 to `size` - 1; if None, `size` is the size of `x` along `axis`."""
    if type(size) is int:
        return body.constant(np.arange(size))
    scalar = body.Squeeze(length_of(body, x, axis)) if size is None else body.constant(size)
    return range_to(body, scalar)


def range_to(body: BodyBuilder, limit: str, dtype: str = "int64") -> str:
    """Add a Range of the numbers from 0 up to a limit, excluding it."""
    return body.Range(body.constant(0, dtype), limit, body.constant(1, dtype))


BodyRule = Callable[[BodyBuilder], Sequence[str]]
"""Rule that adds the nodes of a body and returns its outputs (empty if unused), or raises Refusal."""

_RULES: dict[tuple[str, str], tuple[BodyRule, int]] = {}
"""(domain, op type) -> rule and newest supported opset."""


def function_op(
    op_type: str,
    inputs: str,
    outputs: str,
    attributes: Mapping[str, object] = MappingProxyType({}),
    *,
    required: Sequence[str] = (),
    domain: str = MICROSOFT,
    newest: int = NEWEST_OPSET,
) -> Callable[[BodyRule], BodyRule]:
    """Return a decorator that registers a rule for an op's body, up to opset `newest`, and the op's schema."""

    def register(rule: BodyRule) -> BodyRule:
        add_schema(op_type, inputs, outputs, attributes, required=required, domain=domain)
        _RULES[domain, op_type] = rule, newest
        return rule

    return register


def has_body(domain: str, op_type: str) -> bool:
    """Return whether an op has a body."""
    return further_schema(domain, op_type) is not None and (domain, op_type) in _RULES


def function_ops() -> Iterator[tuple[str, str, int]]:
    """Yield domain, op type and schema version of ops with a body."""
    further_schema(MICROSOFT, "")
    return ((domain, op_type, 1) for domain, op_type in _RULES)


def body_of(
    node: OnnxNode,
    inputs: Sequence[Value | None],
    constants: Mapping[int, Array] = MappingProxyType({}),
    opset: int | None = None,
    integers: Callable[[int], tuple[int, ...] | None] = lambda position: None,
) -> Body | None:
    """Return the body of a node, or None if its op has none.

    `inputs` are None if absent, `constants` are keyed by position, and `opset` defaults to the newest supported.

    Raises:
        Refusal: the node is invalid or not expressible in ONNX ops, or too little is known.
    """
    schema = further_schema(node.domain, node.op_type)
    if schema is None or not has_body(node.domain, node.op_type):
        return None
    rule, newest = _RULES[node.domain, node.op_type]
    if opset is None:
        opset = min(newest, onnx.defs.onnx_opset_version())
    stated = replace(node, attributes={**schema.defaults, **node.attributes})
    builder = BodyBuilder(stated, inputs, constants, opset, integers)
    return builder.finish(rule(builder))
