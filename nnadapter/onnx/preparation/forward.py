"""Shapes and constants once forward through the nodes that are left, one node at a time.

Inference over a whole graph stops where a shape must be computed first by what it cannot follow (`Shape` -> `Div` ->
`Reshape`), and must then be begun again: once for every level of such shapes. Here every node is looked at once:

1. `Shape` and `Size` of a known shape are taken as constants.
2. A result of unknown shape is inferred from what is now known of the inputs of its node alone: by what is said of the
   op where onnx does not know it, else by onnx.
3. A node whose inputs are known waits to be evaluated; all that wait are evaluated in one go, as soon as a shape
   hangs on the contents of one of them.
"""

from __future__ import annotations

from nnadapter.onnx.inference import Inference, InitialFacts
from nnadapter.onnx.model import OnnxModel
from nnadapter.onnx.preparation.foldable import Folding, is_known
from nnadapter.onnx.values import value_of, values_of


class Forward:
    """One way forward through one graph; `budget` is the most bytes that the arrays made on it may hold.

    With `open_sizes` a result is known as soon as its rank is: the sizes of inputs are not.
    """

    def __init__(
        self, read: OnnxModel, inference: Inference, facts: InitialFacts, budget: float, *, open_sizes: bool = False
    ) -> None:
        self._open_sizes = open_sizes
        self._graph = read.graph
        self._inference = inference
        self._nodes = facts.nodes
        self._folding = Folding(read, facts.constants, budget)
        self._types = inference.types(facts)
        self._values = values_of(self._types.values())
        self.stated = dict(facts.stated)
        """What is said of values without onnx, which inference over the whole graph is told from then on."""

    def go(self) -> Folding:
        """Return what becomes known on the way.

        Raises:
            InvalidModelError: types contradict each other.
        """
        for index in self._nodes:
            self._visit(index)
        self._folding.evaluate()
        return self._folding

    def _visit(self, index: int) -> None:
        if self._folding.measure(index, self._values):
            return
        self._infer(index)
        if not self._is_known(index) and self._folding.is_awaited(index):
            self._folding.evaluate()
            self._infer(index)
        self._folding.await_evaluation(index, self._values)

    def _is_known(self, index: int) -> bool:
        if self._open_sizes:
            outputs = self._graph.nodes[index].outputs
            return all(name in self._values and self._values[name].shape is not None for name in outputs if name)
        return is_known(self._graph, index, self._values)

    def _infer(self, index: int) -> None:
        if self._is_known(index):
            return
        constants = self._folding.known
        infos = self._inference.stated_of_one(index, self._values, constants, open_sizes=self._open_sizes)
        if infos:
            self.stated.update(infos)
            self._types.update(infos)
            self._values.update((name, value_of(info)) for name, info in infos.items())
            return
        for name, info in self._inference.types_of_one(index, self._types, constants).items():
            value, previous_value = value_of(info), self._values.get(name)
            # Inference over the whole may have known more: it follows contents that are known in part.
            if value.static_shape is not None or previous_value is None or previous_value.shape is None:
                self._types[name], self._values[name] = info, value
