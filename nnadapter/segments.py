"""A segment of the plan as the model that its device takes: adapter IR, or an ONNX sub-graph."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nnadapter.converters.convert import Conversion
from nnadapter.drivers.capability import ModelForm
from nnadapter.ir.extract import submodel
from nnadapter.ir.model import Model
from nnadapter.preparation.prepare import Specialised
from partition.graph import Graph
from partition.onnx_io import OnnxIndex, extract, initializer_of
from partition.plan import Step

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, eq=False)
class OnnxParts:
    """Takes ONNX sub-graphs out of a specialised model."""

    specialised: Specialised
    index: OnnxIndex

    @property
    def graph(self) -> Graph:
        """The graph that is cut."""
        return self.specialised.graph

    def part(self, step: Step) -> onnx.ModelProto:
        """The nodes of `step` with the constants they read."""
        return self._extract(step.nodes, step.inputs, step.constants, step.outputs)

    def whole(self) -> onnx.ModelProto:
        """Everything that is left to run."""
        graph = self.graph
        read = dict.fromkeys(name for node in graph.nodes for name in node.reads if name in graph.constants)
        made = [name for name in dict.fromkeys(graph.outputs) if name in graph.producer]
        return self._extract(range(len(graph.nodes)), graph.inputs, list(read), made)

    def _extract(
        self, nodes: Sequence[int], inputs: Sequence[str], constants: Sequence[str], outputs: Sequence[str]
    ) -> onnx.ModelProto:
        known = self.specialised.constants
        folded = {
            name: initializer_of(name, known[name])
            for name in constants
            if name in known and name not in self.index.initializers
        }
        return extract(
            replace(self.index, initializers=ChainMap(folded, self.index.initializers)),  # type: ignore[arg-type]
            self.graph,
            nodes=[self.specialised.positions[node] for node in nodes],
            inputs=inputs,
            constants=constants,
            outputs=outputs,
        )


def ir_segment(conversion: Conversion, step: Step) -> Model:
    """The operations of `step` as a model whose inputs and outputs are the step's."""
    operands = conversion.operand_of
    operations = sorted(operation for node in step.nodes for operation in conversion.operations[node])
    return submodel(
        conversion.model,
        operations,
        [operands[name] for name in step.inputs],
        [operands[name] for name in step.outputs],
    )


def segment_model(form: ModelForm, step: Step, conversion: Conversion, parts: OnnxParts) -> Model | onnx.ModelProto:
    """The segment in the form that its device takes."""
    return ir_segment(conversion, step) if form is ModelForm.IR else parts.part(step)
