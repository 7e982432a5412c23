"""Parts of a model whose sizes are left open, for devices that need not know them.

The nodes are those of a plan at some shapes. There, what follows from shapes alone was evaluated and left out; it
belongs to every part that reads it again, and is computed there for the sizes that come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter

from nnadapter.offering.part import Part
from nnadapter.offering.segments import OnnxParts, Placed
from nnadapter.onnx.building import info_of
from nnadapter.onnx.preparation.prepare import Prepared
from partition.graph import Graph, Node, Value
from partition.plan import Step


@dataclass(frozen=True, eq=False)
class DynamicParts(OnnxParts):
    """Takes ONNX sub-graphs out of a model, for any sizes of its inputs."""

    prepared: Prepared

    @cached_property
    def open_graph(self) -> Graph:
        """The graph that is cut, with what is known of its values at all sizes: their ranks at least."""
        always, now = {**self.prepared.values, **self.prepared.ranks_found}, self.graph.values
        return self.graph.revalued({name: _open(always.get(name), now, name) for name in now})

    @property
    def sized_outputs(self) -> tuple[str, ...]:
        """Outputs of the model that follow from the shapes of inputs alone: no node of a plan makes them."""
        known, always = self.specialized.constants, self.prepared.constants
        return tuple(name for name in self.graph.outputs if name in known and name not in always)

    def part(self, step: Step) -> Part:
        """The nodes of `step`, those behind the sizes that they read, and the constants that these read."""
        nodes, inputs, constants = self._needed(step)
        made = {name for _, node in nodes for name in node.outputs}
        part = self._extract(nodes, self.open_graph, inputs, constants, step.outputs)
        known = {**self.prepared.ranks_found, **self.open_graph.values}
        inner = made.difference(step.outputs).intersection(known)
        part.graph.value_info.extend(info_of(known[name]) for name in sorted(inner))
        return Part(part, tuple(inputs))

    def nodes(self, step: Step) -> tuple[Node, ...]:
        """The nodes of `part`, in its order."""
        return tuple(node for _, node in self._needed(step)[0])

    def reads(self, step: Step) -> tuple[str, ...]:
        """What `part` reads."""
        return tuple(self._needed(step)[1])

    def _needed(self, step: Step) -> tuple[list[Placed], list[str], list[str]]:
        """Nodes, in their order, inputs and constants of a part."""
        own, always, left = self.specialized.own, self.prepared.constants, frozenset(self.specialized.positions)
        nodes = self._placed(step.nodes)
        made = {name for _, node in nodes for name in node.outputs}
        pending = [*(name for _, node in nodes for name in node.reads), *step.outputs]
        inputs, constants = dict.fromkeys(step.inputs), dict[str, None]()
        while pending:
            name = pending.pop()
            if name in made:
                continue
            position = own.producer.get(name)
            if name in always:
                constants[name] = None
            elif position is None or position in left:
                inputs[name] = None
            else:
                nodes.append((position, own.nodes[position]))
                made.update(own.nodes[position].outputs)
                pending.extend(own.nodes[position].reads)
        # A step that takes adapter IR is given what follows from sizes; here it is made anew.
        return sorted(nodes, key=itemgetter(0)), [name for name in inputs if name not in made], list(constants)


def _open(always: Value | None, now: Mapping[str, Value], name: str) -> Value:
    """What is known of a value at all sizes; the rank that it has now, where no more is: that may be worked out."""
    if always is not None and always.shape is not None:
        return always
    value = now[name]
    return value if value.shape is None else replace(value, shape=(None,) * len(value.shape))
