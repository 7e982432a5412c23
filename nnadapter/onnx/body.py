"""Op bodies: what one node computes, written in ONNX's ops, and the registry of ops that have one.

Ops that onnx has no schema of, described as functions of ONNX's own ops.

One description serves everybody. Types and shapes, of open sizes too, are what ONNX's inference says of the body;
converters convert the body, at the newest opset; devices that take ONNX are offered it, at the model's own; FLOPs and
reports follow from its operations. ONNX Runtime goes on getting the node as it is.

A body is written for one node: by its attributes, by which inputs it has, by their ranks and data types, by their sizes
where these are numbers. So no op needs a second description of its shapes, nor one per device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper

from nnadapter.ir import Array, SymbolicNumber
from nnadapter.ir.structure import SymbolicArray
from nnadapter.onnx.construction import array_info, info_of, initializer_of
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.propagation import infer
from nnadapter.onnx.schemas import MICROSOFT, Refusal, add_schema, further_schema, since_version
from partition.graph import ELEMENT_TYPE_OF_DTYPE, Reason, Value


def invalid_node(node: OnnxNode, problem: str) -> Refusal:
    """The refusal of a node that means nothing; the sentence begins with its op type."""
    return Refusal(Reason.INVALID_NODE, f"{node.op_type} {problem}")


class NodeInputs:
    """What is known of the inputs of one node, by position.

    Args:
        node: the node.
        values: their types, None where one is absent; a size that is not a number is open.
        constants: contents of those that are known.
        integers: contents of one that follow from sizes, traced where those are; None of any other.
    """

    def __init__(
        self,
        node: OnnxNode,
        values: Sequence[Value | None],
        constants: Mapping[int, Array],
        integers: Callable[[int], tuple[int, ...] | None],
    ) -> None:
        self._node, self._values, self._contents, self._integers = node, values, constants, integers

    def value(self, position: int) -> Value:
        """What is known of an input that is there.

        Raises:
            Refusal: it is absent, or not even its rank and data type are known.
        """
        value = self._values[position] if position < len(self._values) else None
        if value is None:
            raise invalid_node(self._node, f"lacks its input {position}")
        if value.shape is None or value.dtype is None:
            raise Refusal(Reason.DYNAMIC_SHAPE, f"input {position} of {self._node.op_type} has an unknown rank or type")
        return value

    def shape(self, position: int) -> tuple[int | None, ...]:
        """The dimensions of an input that is there, None for open ones."""
        return tuple(size if type(size) is int else None for size in self.value(position).shape or ())

    def size(self, position: int, axis: int) -> int | None:
        """One dimension of an input: a number, traced where it is open but known at each run; None if unknown."""
        shape = self.value(position).shape or ()
        if not -len(shape) <= axis < len(shape):
            raise invalid_node(self._node, f"has an input {position} of rank {len(shape)}, and reads its axis {axis}")
        size = shape[axis]
        return None if size is None or isinstance(size, str) else size

    def width(self, position: int, axis: int = -1) -> int | None:
        """One dimension of an input where it is a plain number; None where it is open."""
        size = self.size(position, axis)
        return size if type(size) is int else None

    def integers(self, position: int) -> tuple[int, ...]:
        """The contents of an input, traced where they follow from sizes.

        Raises:
            Refusal: they are known only when the model runs.
        """
        items = self._integers(position)
        return tuple(self.contents(position).reshape(-1).tolist()) if items is None else items

    def rank(self, position: int) -> int:
        """The number of dimensions of an input that is there."""
        return len(self.shape(position))

    def dtype(self, position: int | None = None) -> str:
        """The name of the data type of an input that is there; of the first that is of reals, if none is named."""
        if position is not None:
            return str(self.value(position).dtype)
        names = (str(value.dtype) for value in self._values if value is not None)
        return next((name for name in names if "float" in name), None) or self.dtype(0)

    def contents(self, position: int) -> Array:
        """The contents of an input.

        Raises:
            Refusal: they are known only when the model runs.
        """
        if position not in self._contents:
            raise Refusal(
                Reason.NOT_CONSTANT,
                f"input {position} of {self._node.op_type} is known only when the model runs; expected an initializer "
                "or what follows from shapes",
            )
        return self._contents[position]

    def knows(self, position: int) -> bool:
        """Whether the contents of an input are known."""
        return position in self._contents


NEWEST_OPSET = 24
"""Bodies are written at this opset where no model demands another."""
OLDEST_OPSET = 13
"""Before it, Softmax and many others mean something else; bodies without these may be written in older ones."""
_SMALL_ELEMENTS = 1024
"""Constants of at most so many elements are given to inference with their contents."""


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """What one node computes."""

    inputs: tuple[str, ...]
    """By position of the node's inputs, the name inside; empty where absent."""
    outputs: tuple[str, ...]
    """By position of the node's outputs, the name inside; empty where nobody wants one."""
    nodes: tuple[OnnxNode, ...]
    """Of ONNX's own ops, in a topological order."""
    constants: Mapping[str, Array | SymbolicArray]
    """What the nodes read beside the inputs, by name; traced where a size is."""
    opset: int

    def function(self, node: OnnxNode) -> onnx.FunctionProto:
        """The same as ONNX has functions; constants are nodes of it."""
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
        """What ONNX's inference says of the outputs that are wanted, under their names inside; see `known_types`."""
        symbols = {size for value in inputs if value is not None for size in value.shape or ()}
        types = self.known_types(inputs, constants)
        return (_without_new_symbols(types[name], symbols) for name in self.outputs if name and name in types)

    def known_types(
        self, inputs: Sequence[Value | None], constants: Mapping[int, Array]
    ) -> dict[str, onnx.ValueInfoProto]:
        """What ONNX's inference says of values inside, by their names; not of all constants.

        Args:
            inputs: what is known of the node's inputs; None where one is absent.
            constants: contents of inputs that are known, by position.
        """
        graph = onnx.GraphProto(name="body")
        input_arrays = {name: array for position, array in constants.items() if (name := self.inputs[position])}
        for name, array in (input_arrays | self.plain_constants()).items():
            if array.size <= _SMALL_ELEMENTS and array.dtype != object:
                graph.initializer.append(initializer_of(name, array))
            else:
                graph.input.append(array_info(name, array))
        input_values = {
            name: value for name, value in zip(self.inputs, inputs, strict=True) if name and name not in input_arrays
        }
        graph.input.extend(info_of(_named(value, name)) for name, value in input_values.items() if value is not None)
        graph.node.extend(self._protos())
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        return dict(infer(model))

    def plain_constants(self) -> dict[str, Array]:
        """The constants as arrays."""
        return {
            name: constant.plain() if isinstance(constant, SymbolicArray) else constant
            for name, constant in self.constants.items()
        }

    def _protos(self) -> Iterator[onnx.NodeProto]:
        for node in self.nodes:
            proto = helper.make_node(node.op_type, node.inputs, node.outputs)
            proto.attribute.extend(starmap(helper.make_attribute, node.attributes.items()))
            yield proto


def _named(value: Value, name: str) -> Value:
    return Value(name, value.dtype, value.shape, value.itemsize)


def _without_new_symbols(info: onnx.ValueInfoProto, symbols: set[Any]) -> onnx.ValueInfoProto:
    """Names that inference made up are those of other sizes in the next body."""
    for dimension in info.type.tensor_type.shape.dim:
        if dimension.dim_param and dimension.dim_param not in symbols:
            dimension.Clear()
    return info


def _objects(items: Sequence[Any]) -> Array:
    array = np.empty(len(items), object)
    array[:] = items
    return array


class BodyBuilder:
    """Writes the body of one node.

    Args:
        node: the node.
        inputs: what is known of its inputs, None where one is absent; a size that is not a number is open.
        constants: contents of inputs that are known, by position.
        opset: the operator set to write in.
        integers: contents of an input that follow from sizes, traced where those are; None of any other.
        oldest: the oldest operator set that the body can be written in.
    """

    def __init__(
        self,
        node: OnnxNode,
        inputs: Sequence[Value | None],
        constants: Mapping[int, Array] = MappingProxyType({}),
        opset: int = NEWEST_OPSET,
        integers: Callable[[int], tuple[int, ...] | None] = lambda position: None,
        oldest: int = OLDEST_OPSET,
    ) -> None:
        if opset < oldest:
            raise Refusal(Reason.UNSUPPORTED_VERSION, f"bodies of {node.op_type} need opset {oldest} or newer")
        self.node, self.opset = node, opset
        self.inputs = NodeInputs(node, inputs, constants, integers)
        self._names = tuple("" if value is None else f"input{position}" for position, value in enumerate(inputs))
        self._nodes: list[OnnxNode] = []
        self._constants: dict[str, Array | SymbolicArray] = {}

    def input(self, position: int) -> str:
        """The name of an input inside, empty where it is absent."""
        return self._names[position] if position < len(self._names) else ""

    def wants(self, position: int) -> bool:
        """Whether the node's output at a position is asked for."""
        return bool(self.node.output(position))

    def constant_of(self, name: str) -> Array | None:
        """The contents of a constant of the body; None for any other name."""
        contents = self._constants.get(name)
        return contents.plain() if isinstance(contents, SymbolicArray) else contents

    def invalid(self, problem: str) -> Refusal:
        """The refusal of a node that means nothing; the sentence begins with its op type."""
        return invalid_node(self.node, problem)

    def unsupported(self, attribute: str, problem: str) -> Refusal:
        """The refusal of a node for one of its attributes."""
        return Refusal(Reason.UNSUPPORTED_ATTRIBUTE, f"attribute {attribute!r} of {self.node.op_type} {problem}")

    def constant(self, contents: Any, dtype: str = "int64") -> str:
        """Add a constant of a data type, by its name; returns the constant's name. Its integers may be traced."""
        name = f"constant{len(self._constants)}"
        if isinstance(contents, SymbolicNumber):
            self._constants[name] = SymbolicArray(_objects((contents,)).reshape(()), np.dtype(dtype))
            return name
        if isinstance(contents, (list, tuple)) and any(isinstance(item, SymbolicNumber) for item in contents):
            self._constants[name] = SymbolicArray(_objects(contents), np.dtype(dtype))
            return name
        array = np.asarray(contents, helper.tensor_dtype_to_np_dtype(ELEMENT_TYPE_OF_DTYPE[dtype]))
        array.flags.writeable = False
        self._constants[name] = array
        return name

    def add(self, op_type: str, *inputs: str, **attributes: object) -> str:
        """Add a node with one output, and return that output's name; absent inputs at the end are left out."""
        return self.add_several(op_type, inputs, 1, **attributes)[0]

    def add_several(self, op_type: str, inputs: Sequence[str], outputs: int, **attributes: object) -> tuple[str, ...]:
        """Add a node with several outputs, and return their names."""
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

    def cast(self, x: str, dtype: str) -> str:
        """Add a Cast to a data type, by its name."""
        return self.add("Cast", x, to=ELEMENT_TYPE_OF_DTYPE[dtype])

    def unsqueeze(self, x: str, *axes: int) -> str:
        """Add an Unsqueeze."""
        return self.add("Unsqueeze", x, self.constant(axes))

    def reshape(self, x: str, *sizes: int) -> str:
        """Add a Reshape: 0 keeps a size, -1 is what is left."""
        return self.add("Reshape", x, self.constant(sizes))

    def finish(self, outputs: Sequence[str]) -> Body:
        """Return the body; an output that no node of its own makes is copied."""
        output_names = [name if self.wants(position) else "" for position, name in enumerate(outputs)]
        defined_names: set[str] = set(self._names) | self._constants.keys()
        for position, name in enumerate(output_names):
            if name and name in defined_names:
                output_names[position] = self.add("Identity", name)
            defined_names.add(output_names[position])
        return Body(self._names, tuple(output_names), tuple(self._nodes), self._constants, self.opset)


def channels_first(body: BodyBuilder, x: str, rank: int) -> str:
    """[N, ..., C] as [N, C, ...].

    Raises:
        Refusal: there is no axis beside these two.
    """
    if rank < 3:
        raise body.invalid(f"has an input of rank {rank}; expected [N, ..., C] of rank 3 or more")
    return body.add("Transpose", x, perm=(0, rank - 1, *range(1, rank - 1)))


def channels_last(body: BodyBuilder, x: str, rank: int) -> str:
    """[N, C, ...] as [N, ..., C]."""
    return body.add("Transpose", x, perm=(0, *range(2, rank), 1))


def sliced(body: BodyBuilder, x: str, axis: int, begin: int, end: int | str) -> str:
    """A part of a value along one axis; the end may be the name of a vector of one element."""
    stop = end if isinstance(end, str) else body.constant((end,))
    return body.add("Slice", x, body.constant((begin,)), stop, body.constant((axis,)))


def parts_along(body: BodyBuilder, x: str, axis: int, sizes: Sequence[int]) -> tuple[str, ...]:
    """A value cut into parts of these sizes."""
    return body.add_several("Split", (x, body.constant(tuple(sizes))), len(sizes), axis=axis)


def length_of(body: BodyBuilder, x: str, axis: int) -> str:
    """One dimension of a value, as a vector of one element."""
    return body.add("Gather", body.add("Shape", x), body.constant((axis,)))


def steps_along(body: BodyBuilder, x: str, axis: int, size: int | None) -> str:
    """The numbers from 0 to a dimension of a value: a constant where that is a plain number."""
    if type(size) is int:
        return body.constant(np.arange(size))
    scalar = body.add("Squeeze", length_of(body, x, axis)) if size is None else body.constant(size)
    return body.add("Range", body.constant(0), scalar, body.constant(1))


BodyRule = Callable[[BodyBuilder], Sequence[str]]
"""Adds the nodes of a body for one node, and returns the names of its outputs; what nobody wants may be empty.

It may raise Refusal, for a node that means nothing or that ONNX's ops cannot say.
"""

_RULES: dict[tuple[str, str], tuple[BodyRule, int]] = {}
"""By domain and op type, what writes a body, and the newest opset that it knows."""


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
    """Return a decorator for the function that writes an op's body; see `add_schema` for what describes the op.

    Its body is written at opset `newest` where no model demands another, or at the newest that the installed onnx has.
    """

    def register(rule: BodyRule) -> BodyRule:
        add_schema(op_type, inputs, outputs, attributes, required=required, domain=domain)
        _RULES[domain, op_type] = rule, newest
        return rule

    return register


def has_body(domain: str, op_type: str) -> bool:
    """Whether an op is described as a function."""
    return further_schema(domain, op_type) is not None and (domain, op_type) in _RULES


def function_ops() -> Iterator[tuple[str, str, int]]:
    """Domain, op type and schema version of every op that is described as a function."""
    further_schema(MICROSOFT, "")
    return ((domain, op_type, 1) for domain, op_type in _RULES)


def body_of(
    node: OnnxNode,
    inputs: Sequence[Value | None],
    constants: Mapping[int, Array] = MappingProxyType({}),
    opset: int | None = None,
    integers: Callable[[int], tuple[int, ...] | None] = lambda position: None,
) -> Body | None:
    """Return the body of a node; None where its op is no such function.

    What the node does not state of its attributes is what the op's description says.

    Args:
        node: the node.
        inputs: what is known of its inputs, None where one is absent.
        constants: contents of inputs that are known, by position.
        opset: the operator set to write in, None for the newest that the op's description knows.
        integers: see `BodyBuilder`.

    Raises:
        Refusal: the node means nothing, ONNX's ops cannot say it, or too little is known of its inputs.
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
