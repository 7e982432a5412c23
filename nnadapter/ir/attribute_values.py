"""Values that people give for attributes, as the plain Python values that models hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real

import numpy as np

from nnadapter.ir.schema import AttributeKind, AttributeValue
from nnadapter.ir.tracing import Traced


def normalized(kind: AttributeKind, value: object) -> AttributeValue:
    """Return `value` as a Python value of that kind: numpy numbers become Python's, lists and vectors tuples.

    Raises:
        TypeError: it is of another kind; a bool is not an int, and no int is a bool.
    """
    return _NORMALIZE[kind](value)


def _boolean(value: object) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise TypeError


def _integer(value: object) -> int:
    if type(value) is int or isinstance(value, Traced):
        return value  # type: ignore[return-value]
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise TypeError


def _real(value: object) -> float:
    if type(value) is float or isinstance(value, Traced):
        return value  # type: ignore[return-value]
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    raise TypeError


def _string(value: object) -> str:
    if isinstance(value, str):
        return str(value)
    raise TypeError


def _integers(value: object) -> tuple[int, ...]:
    return tuple(map(_integer, _items(value)))


def _reals(value: object) -> tuple[float, ...]:
    return tuple(map(_real, _items(value)))


def _items(value: object) -> Sequence[object]:
    if isinstance(value, (tuple, list)):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return value.tolist()  # type: ignore[no-any-return]
    raise TypeError


_NORMALIZE: Mapping[AttributeKind, Callable[[object], AttributeValue]] = {
    AttributeKind.BOOL: _boolean,
    AttributeKind.INT: _integer,
    AttributeKind.FLOAT: _real,
    AttributeKind.STRING: _string,
    AttributeKind.INTS: _integers,
    AttributeKind.FLOATS: _reals,
}
