"""One operation on arrays of one place: on its device, or on the host where that does not take it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnadapter.eager.dtypes import Dtype
from nnadapter.eager.fallback import fall_back
from nnadapter.eager.place import Place
from nnadapter.eager.programs import PROGRAMS, OperationCall
from nnadapter.errors import ExecutionError, OutOfMemoryError, describe
from nnadapter.ir.operand import Array, freeze
from nnadapter.ir.schema import AttributeValue

OnHost = Callable[..., Any]
"""Numpy's own function for an operation, of the same arrays."""


def apply(
    place: Place,
    type_: str,
    inputs: Sequence[Array],
    on_host: OnHost,
    attributes: dict[str, AttributeValue] | None = None,
    op_type: str = "",
) -> Array:
    """Return the one result of an operation, read-only.

    Args:
        place: where it is computed.
        type_: a row of the schema table.
        inputs: of the data types that the operation takes.
        on_host: what numpy computes in its place, from the same arrays.
        attributes: of the operation.
        op_type: the ONNX op that custom kernels for it are registered for.

    Raises:
        NotDelegatedError: the device does not take it, and fallback is forbidden.
    """
    if place.is_host:
        return _host(on_host, inputs)
    call = OperationCall(type_, tuple(map(freeze, inputs)), attributes or {}, op_type)
    try:
        outcome = PROGRAMS.compute(place.device, call)
    except (ExecutionError, OutOfMemoryError) as error:
        outcome = describe(error)
    if not isinstance(outcome, str):
        return freeze(outcome[0])
    fall_back(place.device, str(call), outcome)
    return _host(on_host, inputs)


def _host(on_host: OnHost, inputs: Sequence[Array]) -> Array:
    # What numpy warns of (division by zero, overflow) are results like any other on a device.
    with np.errstate(all="ignore"):
        return freeze(np.asarray(on_host(*inputs)))


def cast(place: Place, array: Array, dtype: Dtype) -> Array:
    """Return an array in another data type, cast where it lives."""
    if array.dtype == dtype:
        return array
    return apply(place, "CAST", [array], lambda operand: operand.astype(dtype), {"to": dtype.name}, "")
