"""Parts of a model with typed inputs, and checks of Einsum equations."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from math import prod
from operator import attrgetter
from typing import NamedTuple

import onnx
from onnx import TensorProto, checker
from onnx.shape_inference import infer_shapes

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operations.equation import terms_of
from nnadapter.onnx.construction import model_of, tensor_info, unnamed_bytes, with_inputs_for
from nnadapter.onnx.graphs import (
    FunctionKey,
    captured_names,
    check_in,
    holds_graph,
    key_of,
    opsets_of,
    values_of,
    with_nested,
)
from nnadapter.onnx.propagation import FAILURES, infer, with_stand_ins, without_crashes
from nnadapter.onnx.references import bytes_of, with_contents
from partition.graph import Value

_Place = tuple[FunctionKey, str]
"""Op or function, and the attribute with an equation."""
_EINSUM: _Place = (("", "Einsum", ""), "equation")


def check_equations(model: onnx.ModelProto) -> None:
    """Raise InvalidModelError for a malformed Einsum equation.

    Equations in subgraphs, functions, function calls and default attributes are also checked.
    """
    nodes_by_function = {key_of(function): [*with_nested(function.node)] for function in model.functions}
    # nodes without attributes have neither equations nor subgraphs
    stating = filter(attrgetter("attribute"), model.graph.node)
    nodes = [*with_nested(stating), *(node for inside in nodes_by_function.values() for node in inside)]
    places = _places(nodes_by_function)
    stated = [
        (attribute, _described(node))
        for node in nodes
        for attribute in node.attribute
        if not attribute.ref_attr_name and (key_of(node), attribute.name) in places
    ]
    stated.extend(
        (attribute, f"the Einsum in function {function.name!r}")
        for function in model.functions
        for attribute in function.attribute_proto
        if (key_of(function), attribute.name) in places
    )
    for attribute, label in stated:
        _check(attribute, label)


def check_equations_in(source: str | os.PathLike[str] | bytes) -> None:
    """Apply `check_equations` to a path or contents; unparsable ones pass."""
    check_in(source, check_equations)


def _places(nodes_by_function: dict[FunctionKey, list[onnx.NodeProto]]) -> set[_Place]:
    handed_on: dict[_Place, list[_Place]] = {}
    for function, inside in nodes_by_function.items():
        for place, attribute_name in _references(inside):
            handed_on.setdefault(place, []).append((function, attribute_name))
    places = {_EINSUM}
    waiting = [_EINSUM]
    while waiting:
        fresh = [place for place in handed_on.get(waiting.pop(), ()) if place not in places]
        places.update(fresh)
        waiting.extend(fresh)
    return places


def _references(nodes: list[onnx.NodeProto]) -> Iterator[tuple[_Place, str]]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                yield (key_of(node), attribute.name), attribute.ref_attr_name


def _described(node: onnx.NodeProto) -> str:
    label = "Einsum" if node.op_type == "Einsum" else f"Einsum inside of {node.op_type}"
    output_name = next(filter(None, node.output), None)
    if node.name or output_name is None:
        return f"{label} {node.name!r}"
    return f"the {label} that makes {output_name!r}"


def _check(attribute: onnx.AttributeProto, label: str) -> None:
    try:
        terms_of(attribute.s.decode("utf-8", "replace"))
    except InvalidModelError as error:
        raise InvalidModelError(f"{label} cannot be computed: {error}; export the model again") from error


_SMALL_BYTES = 1 << 12
"""Maximum bytes of constants that are embedded; larger ones become inputs."""
_DECIDING_ELEMENTS = 64
"""Maximum elements of floating-point constants that may be limits, scales or probabilities.

Larger ones are weights, which never cause a refusal.
"""
_LARGEST_REALS = 1 << 16
"""Bytes above which floating-point constants always become inputs."""
_REALS = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE))
_Shape = tuple[int | str | None, ...] | None
_FEW_ELEMENTS = 8
"""Maximum elements of floating-point constants that may be limits or scales of tensors; others are per channel."""


class SizedCase(NamedTuple):
    """Key of everything that may decide a node's refusal."""

    case: object
    shapes: tuple[_Shape, ...]
    digests: tuple[bytes | None, ...]
    """Digests of constant inputs except weights."""
    few: tuple[bytes | None, ...]
    """Digests of constant inputs except per-channel reals."""

    @property
    def rough(self) -> object:
        """Coarser key without per-channel reals. Of sizes above 1, it records only which equal each other."""
        numbers: dict[int | str | None, str] = {}
        shapes = (
            shape
            and tuple(
                numbers.setdefault(size, f"#{len(numbers)}") if isinstance(size, int) and size > 1 else size
                for size in shape
            )
            for shape in self.shapes
        )
        return self.case, tuple(shapes), self.few


class Parts:
    """Extractor of a model's nodes as models with typed inputs."""

    def __init__(
        self,
        model: onnx.ModelProto,
        constant_bytes: int = _SMALL_BYTES,
        embedded_names: Collection[str] = (),
        types: Mapping[str, onnx.ValueInfoProto] | None = None,
    ) -> None:
        """Infer the types of values, unless passed; raises InvalidModelError for a malformed Einsum.

        Constants up to `constant_bytes`, and constants in `embedded_names`, are embedded; others become inputs.
        """
        self._model = model
        self._types = _inferred(model) if types is None else dict(types)
        self._types.update((tensor.name, tensor_info(tensor)) for tensor in model.graph.initializer)
        self._constant_bytes, self._held = constant_bytes, embedded_names

    @cached_property
    def constants(self) -> dict[str, onnx.TensorProto]:
        return {
            tensor.name: with_contents(tensor) for tensor in self._model.graph.initializer if self._has_contents(tensor)
        }

    def _has_contents(self, tensor: onnx.TensorProto) -> bool:
        largest = min(self._constant_bytes, _LARGEST_REALS) if tensor.data_type in _REALS else self._constant_bytes
        return bytes_of(tensor) <= largest or tensor.name in self._held

    @cached_property
    def readers(self) -> Mapping[str, Sequence[onnx.NodeProto]]:
        readers_by_name: dict[str, list[onnx.NodeProto]] = {}
        for node in self._model.graph.node:
            for name in _reads(node):
                readers_by_name.setdefault(name, []).append(node)
        return readers_by_name

    @cached_property
    def makers(self) -> Mapping[str, onnx.NodeProto]:
        return {name: node for node in self._model.graph.node for name in node.output}

    @cached_property
    def weights(self) -> frozenset[str]:
        return frozenset(tensor.name for tensor in self._model.graph.initializer)

    @cached_property
    def op_types(self) -> frozenset[str]:
        return frozenset(node.op_type for node in self._model.graph.node)

    @property
    def opset(self) -> int:
        return opsets_of(self._model.opset_import).get("", 1)

    @cached_property
    def _values(self) -> Mapping[str, Value]:
        return values_of(self._types.values())

    def value(self, name: str) -> Value | None:
        return self._values.get(name)

    def cases(self, positions: Collection[int] | None = None) -> dict[object, list[int]]:
        """Group positions of nodes by op, attributes and data types, without nodes with untyped inputs."""
        positions_by_case: dict[object, list[int]] = {}
        for position in range(len(self._model.graph.node)) if positions is None else positions:
            node = self._model.graph.node[position]
            if all(name in self._types for name in _reads(node)):
                positions_by_case.setdefault(self._case(node), []).append(position)
        return positions_by_case

    def sized_cases(self, positions: Sequence[int]) -> dict[SizedCase, list[int]]:
        """Group positions like `cases`, and by sizes and constants. Dynamic sizes count by equality within a node."""
        positions_by_case: dict[SizedCase, list[int]] = {}
        for position in positions:
            positions_by_case.setdefault(self._sized_case(self._model.graph.node[position]), []).append(position)
        return positions_by_case

    def _case(self, node: onnx.NodeProto) -> object:
        return (
            node.domain,
            node.op_type,
            tuple(sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)),
            tuple(self._dtype(name) for name in (*node.input, *captured_names(node))),
            tuple(self._dtype(name) for name in node.output),
        )

    def _sized_case(self, node: onnx.NodeProto) -> SizedCase:
        reads = (*node.input, *captured_names(node))
        contents = [self.constants.get(name) for name in reads]
        digests = tuple(None if tensor is None or _is_weight(tensor) else _digest(tensor) for tensor in contents)
        few = tuple(
            None if tensor is None or _has_reals_beyond(tensor, _FEW_ELEMENTS) else digest
            for tensor, digest in zip(contents, digests, strict=True)
        )
        shapes = [self._shape(name) for name in (*reads, *node.output)]
        return SizedCase(self._case(node), tuple(shapes) if holds_graph(node) else _nameless(shapes), digests, few)

    def part(self, positions: Sequence[int]) -> onnx.ModelProto:
        nodes = [self._model.graph.node[position] for position in positions]
        produced_names = dict.fromkeys(name for node in nodes for name in node.output)
        read = dict.fromkeys(name for node in nodes for name in _reads(node) if name not in produced_names)
        return model_of(
            self._model,
            nodes,
            (self._types[name] for name in read if name not in self.constants),
            (self._types.get(name) or onnx.ValueInfoProto(name=name) for name in produced_names if name),
            (self.constants[name] for name in read if name in self.constants),
            functions=self._model.functions,
        )

    def is_valid(self, position: int) -> bool:
        node_model = self.part([position])
        del node_model.graph.output[:]
        infers = without_crashes(node_model) is node_model
        try:
            if all(_has_shape(value) for value in node_model.graph.input):
                checker.check_model(node_model, full_check=infers)
            else:  # `check_model` refuses inputs without shape
                context = checker.C.CheckerContext()
                context.ir_version, context.opset_imports = node_model.ir_version, opsets_of(node_model.opset_import)
                checker.check_node(node_model.graph.node[0], context)
                if infers:
                    infer_shapes(node_model, check_type=True, strict_mode=True)
        except FAILURES:
            return False
        return True

    def _dtype(self, name: str) -> str | None:
        value = self._values.get(name)
        return None if value is None else value.dtype

    def _shape(self, name: str) -> _Shape:
        value = self._values.get(name)
        return None if value is None else value.shape


def _has_shape(value: onnx.ValueInfoProto) -> bool:
    return not value.type.HasField("tensor_type") or value.type.tensor_type.HasField("shape")


def _nameless(shapes: Sequence[_Shape]) -> tuple[_Shape, ...]:
    numbers: dict[str, int] = {}
    return tuple(
        shape and tuple(numbers.setdefault(size, ~len(numbers)) if isinstance(size, str) else size for size in shape)
        for shape in shapes
    )


def _reads(node: onnx.NodeProto) -> tuple[str, ...]:
    return tuple(name for name in (*node.input, *captured_names(node)) if name)


def _is_weight(tensor: onnx.TensorProto) -> bool:
    return _has_reals_beyond(tensor, _DECIDING_ELEMENTS)


def _has_reals_beyond(tensor: onnx.TensorProto, elements: int) -> bool:
    return tensor.data_type in _REALS and prod(tensor.dims) > elements


def _digest(tensor: onnx.TensorProto) -> bytes:
    return sha256(unnamed_bytes(tensor)).digest()


def _inferred(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    check_equations(model)  # malformed equations hang onnx's inference
    large = {tensor.name for tensor in model.graph.initializer if bytes_of(tensor) > _SMALL_BYTES}
    try:
        return infer(with_stand_ins(with_inputs_for(model, large)))
    except FAILURES:
        graph = model.graph
        return {value.name: value for value in (*graph.value_info, *graph.output, *graph.input)}
