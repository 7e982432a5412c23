"""A model at one set of input shapes, in every form that a device takes it in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnadapter.converters.convert import Conversion
from nnadapter.offering.segments import OnnxParts
from nnadapter.onnx.preparation.prepare import Prepared, Shapes, Specialized
from nnadapter.onnx.preparation.structure import NodeHashes
from partition.graph import Graph


@dataclass(frozen=True, eq=False, slots=True)
class ShapedModel:
    """What is offered to devices, and placed."""

    prepared: Prepared
    """The model whatever its input shapes."""
    shapes: Shapes
    """Of the inputs."""
    specialized: Specialized
    """The model at these shapes."""
    conversion: Conversion
    """The same as adapter IR."""
    parts: OnnxParts
    """The same as ONNX, whole or in parts."""
    apart: frozenset[str] = frozenset()
    """Values that no atom holds inside."""

    @property
    def graph(self) -> Graph:
        """The graph that is cut."""
        return self.specialized.graph

    @property
    def structure(self) -> NodeHashes:
        """Hashes of the model's own nodes, worked out when they are first asked for."""
        return self.prepared.structure

    def hashes(self) -> Sequence[str]:
        """What every node of the graph is, but for where it stands."""
        alone = self.structure.alone
        return [alone[position] for position in self.specialized.positions]
