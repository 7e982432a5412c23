"""Shapes of which onnx's inference says others than ONNX Runtime computes, by a rule for each op.

Windows that are counted up (`ceil_mode`) and would begin in the padding behind a picture are none, which inference
knows from opset 22 on. Where ONNX Runtime finds the padding (`SAME_*`), a pooling's dilations and a transposed
convolution's `output_padding` do not widen what comes out. A GatherND that gives a scalar has no rank for inference.
Where the number of keys is open, inference counts some of those that Attention has a product of, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from nnadapter.onnx.node import OnnxNode

Shape = tuple[int, ...]
OpenShape = tuple[int | str | None, ...]
_PRODUCTS = 3
"""Where Attention has the products of queries and keys, among its outputs."""
_Rule = Callable[[OnnxNode, Sequence[Shape]], Shape | None]


def has_rule(node: OnnxNode) -> bool:
    """Whether inference may be wrong of a node's results."""
    if (node.op_type not in _RULES and node.op_type != "Attention") or node.domain:
        return False
    if not node.since_version or node.contradiction:
        return False
    if node.op_type == "Attention":
        return bool(node.output(_PRODUCTS))
    if node.op_type == "GatherND":
        return True
    same = str(node.attributes.get("auto_pad", "")).startswith("SAME")
    if node.op_type == "ConvTranspose":
        return same and bool(node.attributes.get("output_padding")) and "output_shape" not in node.attributes
    return bool(node.attributes.get("ceil_mode")) or (same and "dilations" in node.attributes)


def true_shapes(
    node: OnnxNode, inputs: Sequence[OpenShape | None], inferred: Mapping[str, OpenShape | None]
) -> Mapping[str, OpenShape]:
    """Return the shapes of results of a node for which `has_rule`, by name; none where nothing better is known.

    Args:
        node: the node.
        inputs: the shapes of its inputs, as far as they are known.
        inferred: what inference says of its results.
    """
    if node.op_type == "Attention":
        products = _attended(node, inputs, inferred.get(node.output(_PRODUCTS)))
        return {node.output(_PRODUCTS): products} if products else {}
    static_shapes = [shape for shape in inputs if shape is not None and all(isinstance(size, int) for size in shape)]
    true = _RULES[node.op_type](node, cast("list[Shape]", static_shapes)) if len(static_shapes) == len(inputs) else None
    return {} if true is None else dict.fromkeys(inferred, true)


def _attended(node: OnnxNode, inputs: Sequence[OpenShape | None], products: OpenShape | None) -> OpenShape | None:
    """The shape of the products of an Attention where the number of keys is open: of new ones, or of those before."""
    key, past = inputs[1], inputs[4] if node.input(4) else (0, 0, 0)
    counts = (shape and shape[-2] for shape in (key, past))
    return (*products[:-1], None) if products and not all(isinstance(count, int) for count in counts) else None


def _pooled(node: OnnxNode, inputs: Sequence[Shape]) -> Shape | None:
    sizes, kernel = inputs[0][2:], node.integers("kernel_shape") or ()
    strides, dilations = (node.integers(name) or (1,) * len(sizes) for name in ("strides", "dilations"))
    pads = node.integers("pads") or (0,) * (2 * len(sizes))
    if not len(sizes) == len(kernel) == len(strides) == len(dilations) == len(pads) // 2 or min(strides) < 1:
        return None
    begins, ends = pads[: len(sizes)], pads[len(sizes) :]
    axes = zip(sizes, kernel, strides, dilations, begins, ends, strict=True)
    return (*inputs[0][:2], *(_windows(node, *axis) for axis in axes))


def _windows(node: OnnxNode, size: int, kernel: int, stride: int, dilation: int, begin: int, end: int) -> int:
    """How many windows there are along an axis. Source: onnxruntime, PoolAttributes::ComputeSizePadDilations."""
    auto_pad = node.text("auto_pad", "NOTSET")
    if auto_pad != "NOTSET":
        total = (-(-size // stride) - 1) * stride + kernel - size if auto_pad.startswith("SAME") else 0
        smaller = total // 2
        begin, end = (smaller, total - smaller) if auto_pad == "SAME_UPPER" else (total - smaller, smaller)
    room = size + begin + end - (kernel - 1) * dilation - 1
    if not node.integer("ceil_mode", 0):
        return int(room / stride) + 1  # towards 0, so that a window wider than everything is one
    count = -(-room // stride) + 1
    return count - 1 if (count - 1) * stride >= size + begin else count


def _transposed(node: OnnxNode, inputs: Sequence[Shape]) -> Shape | None:
    (batch, _, *sizes), (_, channels, *kernel) = inputs[:2]
    lists = (node.integers(name) or (1,) * len(sizes) for name in ("strides", "dilations", "output_padding"))
    strides, dilations, extra = lists
    if not len(sizes) == len(kernel) == len(strides) == len(dilations) == len(extra):
        return None
    axes = zip(sizes, kernel, strides, dilations, extra, strict=True)
    spread = (
        size * stride + min(0, (kernel_size - 1) * dilation + 1 + more - stride)
        for size, kernel_size, stride, dilation, more in axes
    )
    return (batch, channels * node.integer("group", 1), *spread)


def _gathered(node: OnnxNode, inputs: Sequence[Shape]) -> Shape | None:
    data, indices = inputs
    batch = node.integer("batch_dims", 0)
    if not indices or batch < 0 or batch + indices[-1] > len(data) or batch >= len(indices):
        return None
    return (*indices[:-1], *data[batch + indices[-1] :])


_RULES: Mapping[str, _Rule] = {
    "AveragePool": _pooled,
    "ConvTranspose": _transposed,
    "GatherND": _gathered,
    "LpPool": _pooled,
    "MaxPool": _pooled,
}
