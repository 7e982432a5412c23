"""Bodies whose ops are written down in turn: for devices that have none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nnadapter.ir.operand import Array
from nnadapter.onnx.body import Body
from nnadapter.onnx.building import array_info
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.values import value_of_type
from partition.graph import Value

Writer = Callable[[OnnxNode, Sequence[Value | None], Mapping[int, Array]], Body | None]
"""The body of a node, by what is known of its inputs, and the contents of those that are constants; None if none."""


def written_through(body: Body, inputs: Sequence[Value | None], constants: Mapping[int, Array], write: Writer) -> Body:
    """Return a body with those of its nodes written down that `write` has a body of.

    Args:
        body: of one node.
        inputs: what is known of the node's inputs; None where one is absent.
        constants: contents of inputs that are known, by position.
        write: what writes the nodes.
    """
    value_facts = _Known.of(body, inputs, constants)
    inner_bodies = {node: write(node, *value_facts.of_node(node)) for node in body.nodes}
    nodes = (inner_node for node in body.nodes for inner_node in _in_place(node, inner_bodies[node]))
    more = {
        _inside(node, name): contents
        for node, inner in inner_bodies.items()
        if inner is not None
        for name, contents in inner.constants.items()
    }
    return replace(body, nodes=tuple(nodes), constants={**body.constants, **more})


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of the values of a body, by their names."""

    values: Mapping[str, Value]
    contents: Mapping[str, Array]

    @classmethod
    def of(cls, body: Body, inputs: Sequence[Value | None], constants: Mapping[int, Array]) -> _Known:
        contents = {name: array for position, array in constants.items() if (name := body.inputs[position])}
        contents |= body.plain_constants()
        types = body.known_types(inputs, constants) | {
            name: array_info(name, content) for name, content in contents.items()
        }
        return cls({name: value_of_type(name, info.type) for name, info in types.items()}, contents)

    def of_node(self, node: OnnxNode) -> tuple[list[Value | None], dict[int, Array]]:
        contents = {at: self.contents[name] for at, name in enumerate(node.inputs) if name in self.contents}
        return [self.values.get(name, Value(name)) if name else None for name in node.inputs], contents


def _in_place(node: OnnxNode, inner: Body | None) -> Iterator[OnnxNode]:
    """What stands in the place of a node: itself, or the nodes of its body."""
    if inner is None:
        yield node
        return
    outer = {"": ""} | dict(zip(inner.inputs, node.inputs, strict=True))
    outer |= dict(zip(inner.outputs, node.outputs, strict=False))
    for inner_node in inner.nodes:
        read, outputs = (
            tuple(outer[name] if name in outer else _inside(node, name) for name in names)
            for names in (inner_node.inputs, inner_node.outputs)
        )
        yield replace(inner_node, inputs=read, outputs=outputs)


def _inside(node: OnnxNode, name: str) -> str:
    """A name of a node's body, apart from those around it."""
    return f"{next(filter(None, node.outputs))}/{name}"
