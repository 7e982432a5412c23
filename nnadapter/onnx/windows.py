"""Windows of convolutions and pooling that are larger than what they move over, padding included.

Of a pooling that counts such windows up ONNX says one result (`ceil_mode`); of others there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nnadapter.onnx.node import OnnxNode

_Shape = Sequence[int]


def _own(node: OnnxNode, inputs: Sequence[_Shape]) -> _Shape:
    return node.integers("kernel_shape") or ()


def _of_filter(node: OnnxNode, inputs: Sequence[_Shape]) -> _Shape:
    return inputs[1][2:]


_KERNELS: Mapping[str, Callable[[OnnxNode, Sequence[_Shape]], _Shape]] = {
    "AveragePool": _own,
    "Conv": _of_filter,
    "LpPool": _own,
    "MaxPool": _own,
}
"""How large a window is, by op type."""


def moves_windows(node: OnnxNode) -> bool:
    """Whether a node moves windows that have to fit."""
    return node.op_type in _KERNELS and not node.domain and not node.contradiction


def fits_windows(node: OnnxNode, inputs: Sequence[_Shape]) -> bool:
    """Whether the window of a node is no larger than what it moves over.

    Args:
        node: one that moves windows.
        inputs: the shapes of its inputs.
    """
    if node.text("auto_pad", "NOTSET").startswith("SAME"):
        return True
    sizes, kernel = inputs[0][2:], _KERNELS[node.op_type](node, inputs)
    dilations = node.integers("dilations") or (1,) * len(sizes)
    pads = node.integers("pads") or (0,) * (2 * len(sizes))
    if not len(sizes) == len(kernel) == len(dilations) == len(pads) // 2:
        return False
    axes = zip(sizes, kernel, dilations, pads[: len(sizes)], pads[len(sizes) :], strict=True)
    return all((window - 1) * dilation < size + begin + end for size, window, dilation, begin, end in axes)
