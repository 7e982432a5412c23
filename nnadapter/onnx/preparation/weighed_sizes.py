"""Sizes of open dimensions of inputs that weights say, where nodes read both."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nnadapter.ir.operand import Array
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.preparation.caches import Dimension, dimension_at
from partition.graph import Graph, Value


def _of_gemm(node: OnnxNode, weight: Array) -> tuple[int, int]:
    return -2 if node.integer("transA", 0) else -1, weight.shape[-1 if node.integer("transB", 0) else -2]


_WEIGHT_AXES: Mapping[str, tuple[int, Callable[[OnnxNode, Array], tuple[int, int]]]] = {
    "BatchNormalization": (1, lambda node, weight: (1, weight.shape[0])),
    "Conv": (2, lambda node, weight: (1, weight.shape[1] * node.integer("group", 1))),
    "ConvTranspose": (2, lambda node, weight: (1, weight.shape[0])),
    "Gemm": (2, _of_gemm),
    "MatMul": (1, lambda node, weight: (-1, weight.shape[-min(weight.ndim, 2)])),
}
"""Ops, the least rank of their second input, and which axis of the first has which size by it."""


def sizes_of_weights(
    graph: Graph, nodes: tuple[OnnxNode, ...], constants: Mapping[str, Array], inputs: Mapping[str, Value]
) -> dict[Dimension, int]:
    """Return the sizes of open dimensions of `inputs` that go with weights beside which a node reads them."""
    sizes: dict[Dimension, int] = {}
    for name, value in inputs.items():
        for index in graph.consumers.get(name, ()):
            node, shape = nodes[index], value.shape or ()
            if node.domain or node.contradiction or node.op_type not in _WEIGHT_AXES or node.input(0) != name:
                continue
            weight, (rank, size_rule) = constants.get(node.input(1)), _WEIGHT_AXES[node.op_type]
            if weight is None or weight.ndim < rank:
                continue
            axis, size = size_rule(node, weight)
            axis += len(shape) if axis < 0 else 0
            if 0 < axis < len(shape) and not isinstance(shape[axis], int):
                sizes.setdefault(dimension_at(value, axis), size)
    return sizes
