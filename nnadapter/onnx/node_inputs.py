"""What is known of the inputs of a node before it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nnadapter.ir.operand import Array
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.graph import Value
from partition.verdict import Reason


def invalid_node(node: OnnxNode, problem: str) -> Refusal:
    """The refusal of a node that means nothing; the sentence begins with its op type."""
    return Refusal(Reason.INVALID_NODE, f"{node.op_type} {problem}")


class NodeInputs:
    """What is known of the inputs of one node, by position.

    Args:
        node: the node.
        values: their types, None where one is absent; a size that is not a number is open.
        constants: contents of those that are known.
        integers: contents of one that follow from sizes, traced where those are; None of any other.
    """

    def __init__(
        self,
        node: OnnxNode,
        values: Sequence[Value | None],
        constants: Mapping[int, Array],
        integers: Callable[[int], tuple[int, ...] | None],
    ) -> None:
        self._node, self._values, self._contents, self._integers = node, values, constants, integers

    def value(self, position: int) -> Value:
        """What is known of an input that is there.

        Raises:
            Refusal: it is absent, or not even its rank and data type are known.
        """
        value = self._values[position] if position < len(self._values) else None
        if value is None:
            raise invalid_node(self._node, f"lacks its input {position}")
        if value.shape is None or value.dtype is None:
            raise Refusal(Reason.DYNAMIC_SHAPE, f"input {position} of {self._node.op_type} has an unknown rank or type")
        return value

    def shape(self, position: int) -> tuple[int | None, ...]:
        """The dimensions of an input that is there, None for open ones."""
        return tuple(size if type(size) is int else None for size in self.value(position).shape or ())

    def size(self, position: int, axis: int) -> int | None:
        """One dimension of an input: a number, traced where it is open but known at each run; None if unknown."""
        shape = self.value(position).shape or ()
        if not -len(shape) <= axis < len(shape):
            raise invalid_node(self._node, f"has an input {position} of rank {len(shape)}, and reads its axis {axis}")
        size = shape[axis]
        return None if size is None or isinstance(size, str) else size

    def width(self, position: int, axis: int = -1) -> int | None:
        """One dimension of an input where it is a plain number; None where it is open."""
        size = self.size(position, axis)
        return size if type(size) is int else None

    def integers(self, position: int) -> tuple[int, ...]:
        """The contents of an input, traced where they follow from sizes.

        Raises:
            Refusal: they are known only when the model runs.
        """
        items = self._integers(position)
        return tuple(self.contents(position).reshape(-1).tolist()) if items is None else items

    def rank(self, position: int) -> int:
        """The number of dimensions of an input that is there."""
        return len(self.shape(position))

    def dtype(self, position: int | None = None) -> str:
        """The name of the data type of an input that is there; of the first that is of reals, if none is named."""
        if position is not None:
            return str(self.value(position).dtype)
        names = (str(value.dtype) for value in self._values if value is not None)
        return next((name for name in names if "float" in name), None) or self.dtype(0)

    def contents(self, position: int) -> Array:
        """The contents of an input.

        Raises:
            Refusal: they are known only when the model runs.
        """
        if position not in self._contents:
            raise Refusal(
                Reason.NOT_CONSTANT,
                f"input {position} of {self._node.op_type} is known only when the model runs; expected an initializer "
                "or what follows from shapes",
            )
        return self._contents[position]

    def knows(self, position: int) -> bool:
        """Whether the contents of an input are known."""
        return position in self._contents
