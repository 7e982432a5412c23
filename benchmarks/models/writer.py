"""Writer of ONNX graphs: nodes and seeded weights, named by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


class Writer:
    """Nodes and seeded weights, named by number."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self._generator = np.random.default_rng(seed)

    def node(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node of one output, and return its name."""
        name = output or f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], f"node_{len(self.nodes)}", **attributes))
        return name

    def constant(self, value: Any) -> str:
        """Add a constant."""
        self.tensors.append(numpy_helper.from_array(np.asarray(value), f"constant_{len(self.tensors)}"))
        return self.tensors[-1].name

    def weight(self, *shape: int) -> str:
        """Add weights around 0."""
        return self.constant((self._generator.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32))

    def numbers(self, *shape: int) -> np.ndarray[Any, Any]:
        """Draw weights around 0 that keep sums over all but the first axis near 1."""
        scale = np.prod(shape[1:]) ** -0.5
        return (self._generator.standard_normal(shape) * scale).astype(np.float32)

    def size(self, value: str, axis: int) -> str:
        """Add the nodes that compute one dimension of a value."""
        return self.node("Gather", self.node("Shape", value), self.constant(np.int64(axis)))

    def shape(self, *sizes: str | int) -> str:
        """Add a shape of computed and constant sizes."""
        zero = self.constant(np.array([0]))
        parts = [
            self.constant(np.array([size])) if isinstance(size, int) else self.node("Unsqueeze", size, zero)
            for size in sizes
        ]
        return self.node("Concat", *parts, axis=0)

    def normalized(self, x: str, width: int) -> str:
        """Add a layer normalization."""
        scale, bias = (self.constant(np.full(width, value, np.float32)) for value in (1, 0))
        return self.node("LayerNormalization", x, scale, bias, axis=-1)
