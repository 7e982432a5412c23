"""Corrected operators for onnx's reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_loop import Loop as _Loop

EMPTY: list[None] = [None]
"""Representation of an empty optional, since an operator's result cannot be None."""


class Optional(OpRun):
    """Operator that returns its input itself; the evaluator's version wraps it in a list. Source: Optional-15."""

    op_domain = ""

    def _run(self, value: Any = None, type: Any = None) -> tuple[Any]:  # noqa: A002  the attribute's name
        return (EMPTY if value is None else value,)


class OptionalHasElement(OpRun):
    """Test for an optional's contents. Source: OptionalHasElement-18."""

    op_domain = ""

    def _run(self, value: Any = None) -> tuple[Any]:
        return (np.array(value is not None and value is not EMPTY),)


_Base: Any = _Loop


class Loop(_Base):  # type: ignore[misc]
    """Loop that stacks scan outputs along a new leading axis, even without iterations. An absent condition is true.

    Source: Loop-16.
    """

    op_domain = ""

    def __init__(self, onnx_node: Any, run_params: Any) -> None:
        super().__init__(onnx_node, run_params)
        self._run_plain_body: Any = getattr(self, "_run_body")  # noqa: B009  hidden from the type checker
        self._run_body: Any = self._run_with_axis
        self._row_shapes: list[tuple[int, ...]] = []

    def _run_with_axis(self, inputs: dict[str, Any], **kwargs: Any) -> list[Any]:
        outputs = list(self._run_plain_body(inputs, **kwargs))
        rows = [np.asarray(row) for row in outputs[len(outputs) - self.K :]]
        self._row_shapes = [row.shape for row in rows]
        return [*outputs[: len(outputs) - self.K], *(row[np.newaxis] for row in rows)]

    def _run(self, trip_count: Any, condition: Any, *initial: Any, **kwargs: Any) -> tuple[Any, ...]:
        initial_condition = np.array(True) if condition is None else condition
        if not initial_condition or (trip_count is not None and trip_count <= 0):
            return (*initial, *(self._no_rows(output) for output in range(1 + self.N, 1 + self.N + self.K)))
        results = super()._run(trip_count, initial_condition, *initial, **kwargs)
        rows = zip(results[self.N :], self._row_shapes, strict=False)
        return (*results[: self.N], *(scan_output.reshape((len(scan_output), *shape)) for scan_output, shape in rows))

    def _no_rows(self, output: int) -> Any:
        stated = self.body.output_types[output].tensor_type
        return np.empty((0, *(size.dim_value for size in stated.shape.dim)), tensor_dtype_to_np_dtype(stated.elem_type))


OPERATORS: list[Any] = [Optional, OptionalHasElement, Loop]
