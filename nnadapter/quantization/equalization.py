"""Cross-layer equalization of convolutions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from nnadapter.ir.operand import Array
from nnadapter.onnx.construction import copied, initializer_of
from nnadapter.quantization.products import FloatModel, Product, along, flattened

_HOMOGENEOUS = frozenset({"Relu", "LeakyRelu", "Identity", "Dropout", "MaxPool", "AveragePool", "GlobalAveragePool"})
_ROUNDS = 8


def equalized(model: FloatModel) -> FloatModel:
    """Return an equivalent model with similar weight ranges per channel in consecutive convolutions.

    Only positively homogeneous ops may be between them. Source: Nagel et al., Data-Free Quantization Through Weight
    Equalization and Bias Correction, 2019, section 4.1.
    """
    pairs = list(_pairs(model))
    if not pairs:
        return model
    names = {name for pair in pairs for name in (pair[0].weight, pair[0].bias, pair[1].weight) if name}
    arrays = {name: model.array(name).astype(np.float64) for name in names}
    for _ in range(_ROUNDS):
        for first, second in pairs:
            _equalize(arrays, first, second)
    changed = copied(model.model)
    for tensor in changed.graph.initializer:
        if tensor.name in arrays:
            tensor.CopyFrom(initializer_of(tensor.name, arrays[tensor.name].astype(np.float32)))
    return FloatModel(changed)


def _pairs(model: FloatModel) -> Iterator[tuple[Product, Product]]:
    """Yield pairs of consecutive convolutions without other readers of the values between them."""
    products = {product.node: product for product in model.products}
    outputs = {value.name for value in model.model.graph.output}
    for node in model.model.graph.node:
        first = products.get(node.name)
        if first is None or first.op_type != "Conv":
            continue
        if any(len(model.readers[name]) > 1 for name in (first.weight, first.bias) if name):
            continue
        second = _following(model, node, products, outputs)
        if second is not None and len(model.readers[second.weight]) == 1 and _fits(model, first, second):
            yield first, second


def _following(
    model: FloatModel, node: onnx.NodeProto, products: dict[str, Product], outputs: set[str]
) -> Product | None:
    while True:
        name = node.output[0]
        readers = model.readers.get(name, [])
        if len(readers) != 1 or name in outputs:
            return None
        node = readers[0]
        if node.name in products:
            second = products[node.name]
            return second if second.op_type == "Conv" and node.input[0] == name else None
        if node.op_type not in _HOMOGENEOUS or node.input[0] != name:
            return None


def _fits(model: FloatModel, first: Product, second: Product) -> bool:
    channels, weight = model.array(first.weight).shape[0], model.array(second.weight)
    return channels in (_inputs_of(weight).shape[0], weight.shape[0])


def _inputs_of(weight: Array) -> Array:
    """Return a filter as a matrix with one row per input channel of the convolution."""
    return flattened(weight, 0 if weight.shape[1] == 1 else 1)


def _equalize(arrays: dict[str, Array], first: Product, second: Product) -> None:
    before, after = arrays[first.weight], arrays[second.weight]
    heights = np.abs(flattened(before, 0)).max(axis=1)
    others = np.abs(_inputs_of(after)).max(axis=1)
    if len(heights) != len(others):
        return
    used = (heights > 0) & (others > 0)
    factors = np.ones(len(heights))
    factors[used] = np.clip(np.sqrt(heights[used] / others[used]), 1e-3, 1e3)
    before /= along(factors, 0, before.ndim)
    if first.bias:
        arrays[first.bias] = arrays[first.bias] / factors
    after *= along(factors, 0 if after.shape[1] == 1 else 1, after.ndim)
