"""One call of a kernel: arguments as it states them, results as the model says, and whose fault it is if not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnadapter.drivers.border import check_results, read_only
from nnadapter.drivers.kernel import Kernel, KernelType
from nnadapter.errors import FAILURES, CancelledError, ExecutionError, describe
from nnadapter.ir.operand import Array, Layout, OperandType
from nnadapter.ir.operations.custom import CustomCall
from nnadapter.kernels.choosing import Choice, complete, turns

_TO_NHWC = (0, 2, 3, 1)
_TO_NCHW = (0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class KernelCall:
    """A kernel bound to one operation."""

    kernel: Kernel
    call: CustomCall
    types: tuple[OperandType | None, ...]
    """Of the node's inputs; None where absent."""
    names: tuple[str, ...]
    """Of the operation's outputs."""
    attributes: Mapping[str, Any]

    @classmethod
    def of(
        cls, choice: Choice, call: CustomCall, types: Sequence[OperandType | None], names: Sequence[str]
    ) -> KernelCall:
        """The chosen kernel, ready to be called."""
        return cls(choice.kernel, call, tuple(types), tuple(names), complete(choice.kernel, call.attributes))

    def compute(self, inputs: Sequence[Array]) -> list[Array]:
        """Call the kernel.

        Args:
            inputs: read-only arrays, by the operation's inputs.

        Raises:
            ExecutionError: the kernel raised, or gave something else than the model says. Names the kernel.
        """
        arguments = [
            None if array is None else _argument(array, kernel_type, type_)
            for array, kernel_type, type_ in zip(
                self.call.spread(inputs), _padded(self.kernel.inputs, len(self.types)), self.types, strict=True
            )
        ]
        try:
            kernel_result = self.kernel.function(*arguments, **self.attributes)
        except CancelledError:
            raise
        except FAILURES as error:
            raise self._failed(f"raised {_told(error)}", "correct it") from error
        try:
            return self._checked(kernel_result, inputs)
        except Exception as error:
            text = describe(error).replace("the driver gave", "gave")
            raise self._failed(text, "correct it, or its infer") from error

    def _checked(self, kernel_result: object, inputs: Sequence[Array]) -> list[Array]:
        results = list(kernel_result) if isinstance(kernel_result, (tuple, list)) else [kernel_result]
        # A function that reduces to a scalar gives numpy's number, not an array.
        results = [np.asarray(result) if isinstance(result, np.generic) else result for result in results]
        if len(results) == len(self.call.outputs):
            kernel_types = _padded(self.kernel.outputs, len(results))
            results = [_turned_back(*triple) for triple in zip(results, kernel_types, self.call.outputs, strict=True)]
        expected = [(type_.dimensions, type_.dtype.array_type) for type_ in self.call.outputs]
        return [_own(array, inputs) for array in check_results(results, self.names, expected)]

    def _failed(self, problem: str, advice: str) -> ExecutionError:
        return ExecutionError(f"kernel {self.kernel.name!r} of {self.call.display_name} {problem}; {advice}")


def _told(error: BaseException) -> str:
    text = describe(error)
    if isinstance(error, ValueError) and "read-only" in text:
        return f"{text} (it may not write to its inputs)"
    return text


def _padded(stated: Sequence[KernelType], count: int) -> list[KernelType | None]:
    return [*stated[:count], *[None] * (count - len(stated))]


def _argument(array: Array, kernel_type: KernelType | None, type_: OperandType | None) -> Array:
    if kernel_type is not None and turns(kernel_type, type_):
        array = array.transpose(_TO_NHWC if kernel_type.layout is Layout.NHWC else _TO_NCHW)
    return read_only(array)


def _turned_back(result: object, kernel_type: KernelType | None, type_: OperandType) -> object:
    if (
        kernel_type is None
        or not turns(kernel_type, type_)
        or type(result) is not np.ndarray
        or result.ndim != type_.rank
    ):
        return result
    return np.ascontiguousarray(result.transpose(_TO_NCHW if kernel_type.layout is Layout.NHWC else _TO_NHWC))


def _own(result: Array, inputs: Sequence[Array]) -> Array:
    """A result that nobody else holds: a kernel may well give back what it was given."""
    is_shared = not result.flags.writeable or any(np.may_share_memory(result, array) for array in inputs)
    return result.copy() if is_shared else result
