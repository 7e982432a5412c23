"""Results in the data types that ATen says.

PyTorch's exporter makes promotions of types explicit, and some of its operators then give a wider type than ATen's:
sums, running sums and products of 16-bit numbers come as float32. Such a result is rounded to what ATen says. Any
other difference means that the operator is another one: it stays in PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.onnx._internal.exporter import _core

if TYPE_CHECKING:
    import onnx


class WrongType(Exception):  # noqa: N818  it says why, and is always caught
    """A result has a data type that rounding does not mend."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


def keep_type(graph: onnx.GraphProto, output: onnx.ValueInfoProto, like: Any) -> None:
    """Let an output of `graph` have the data type of `like`: a tensor, or a number that is a size.

    Raises:
        WrongType: it has one that is no wider floating-point type.
    """
    expected_type = _core.torch_dtype_to_onnx_dtype(like.dtype if isinstance(like, torch.Tensor) else torch.int64)
    actual_type = type(expected_type)(output.type.tensor_type.elem_type)
    if actual_type == expected_type:
        return
    if not (
        actual_type.is_floating_point()
        and expected_type.is_floating_point()
        and actual_type.bitwidth > expected_type.bitwidth
    ):
        raise WrongType(f"PyTorch's exporter gives {actual_type.name.lower()} in place of {expected_type.name.lower()}")
    _round(graph, output, int(expected_type))


def _round(graph: onnx.GraphProto, output: onnx.ValueInfoProto, element_type: int) -> None:
    """Put a Cast before an output, which keeps its name."""
    wide = f"{output.name}.wide"
    for node in graph.node:
        node.input[:] = [wide if name == output.name else name for name in node.input]
        node.output[:] = [wide if name == output.name else name for name in node.output]
    for value in (*graph.initializer, *graph.value_info):
        value.name = wide if value.name == output.name else value.name
    cast = graph.node.add(op_type="Cast", name=f"{output.name}.rounded", input=[wide], output=[output.name])
    cast.attribute.add(name="to", type=_INT, i=element_type)
    output.type.tensor_type.elem_type = element_type


_INT = 2
"""`AttributeProto.INT`."""
