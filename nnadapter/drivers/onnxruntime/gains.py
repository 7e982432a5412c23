"""Whether threads gain anything for what the CPU runs between other devices.

Threads that sleep take some 10 us to wake and to wait for. A segment that takes less than some 50 us in one thread is
faster without them, and leaves its pool to others, of which a process has only so many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import TYPE_CHECKING

from nnadapter.onnx.domains import plain_domain

if TYPE_CHECKING:
    import onnx

_ENOUGH = 150_000
"""Elements that nodes make, with the products of their weights: from here on threads gain."""
_PRODUCTS = 32
"""Products that are summed up in the time in which an element is made by some function."""
_OPEN = 128
"""What a dimension counts as that is known only when the model runs."""
_WITHOUT_WEIGHTS = frozenset({"Attention", "Einsum", "Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"})
"""Ops that multiply matrices, also where none of these is a constant."""
_GROWING = frozenset({"ConstantOfShape", "Expand", "EyeLike", "OneHot", "Range", "Resize", "Tile", "Upsample"})
"""Ops that make more than what they read shows."""
_NO_WORK = frozenset({"Constant", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"})


def threads_gain(model: onnx.ModelProto) -> bool:
    """Whether a model is faster with a pool of threads, which sleeps in between, than in the caller's thread.

    What nodes make counts as the largest tensor of the model's inputs and outputs, a weight as a matrix that is
    multiplied with it. Whatever holds graphs or comes from other domains, and what has no tensors at its border, counts
    as enough.
    """
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    border = [value for value in (*model.graph.input, *model.graph.output) if value.name not in weights]
    most = max(map(_elements, border), default=inf)
    work = 0.0
    for node in model.graph.node:
        work += _work(node, most, weights)
        if work >= _ENOUGH:
            return True
    return False


def _elements(value: onnx.ValueInfoProto) -> float:
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        return inf
    dimensions = value.type.tensor_type.shape.dim
    return prod(dimension.dim_value if dimension.HasField("dim_value") else _OPEN for dimension in dimensions)


def _work(node: onnx.NodeProto, most: float, weights: Mapping[str, Sequence[int]]) -> float:
    """Elements that a node makes, products counted as parts of them."""
    if node.op_type in _NO_WORK:
        return 0.0
    if (
        plain_domain(node.domain)
        or node.op_type in _GROWING
        or any(attribute.HasField("g") for attribute in node.attribute)
    ):
        return inf
    matrices = [weights[name] for name in node.input if len(weights.get(name, ())) > 1]
    if not matrices and node.op_type in _WITHOUT_WEIGHTS:
        matrices = [(_OPEN, _OPEN)]
    rows = [most / max(1, min(dimensions[:2])) for dimensions in matrices]
    return most + sum(row_count * prod(matrix) for row_count, matrix in zip(rows, matrices, strict=True)) / _PRODUCTS
