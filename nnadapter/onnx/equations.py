"""Equations of Einsum, read before anything else reads them: some texts hang onnx's inference or crash ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operations.equation import terms_of
from nnadapter.onnx.graphs import FunctionKey, key_of, with_nested

_Place = tuple[FunctionKey, str]
"""An op or a function, and the attribute of it that is an equation."""
_EINSUM: _Place = (("", "Einsum", ""), "equation")


def check_equations(model: onnx.ModelProto) -> None:
    """Raise InvalidModelError for an Einsum, in inner graphs and functions too, whose equation is none.

    An equation that a function takes from its caller is read at every call, and where the function has a default.
    """
    nodes_by_function = {key_of(function): [*with_nested(function.node)] for function in model.functions}
    stating = filter(attrgetter("attribute"), model.graph.node)  # others hold no equation, and no graph
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
    """The same by path or contents. Nothing else is checked of them."""
    model = onnx.ModelProto()
    with suppress(DecodeError, UnicodeDecodeError):
        model.ParseFromString(source if isinstance(source, bytes) else Path(source).read_bytes())
        check_equations(model)


def _places(nodes_by_function: dict[FunctionKey, list[onnx.NodeProto]]) -> set[_Place]:
    """Where equations stand: at Einsum, and at functions that hand an attribute on to such a place."""
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
