"""Operators of what never changes: numpy's, but `x += y` gives the name `x` to a new tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nnadapter.eager.dtypes import contents
from nnadapter.eager.placed import Placed
from nnadapter.errors import InvalidInputError
from nnadapter.ir.operand import freeze


class TensorOperators(Placed, NDArrayOperatorsMixin):
    """Python's operators by numpy's ufuncs. Source: numpy's `NDArrayOperatorsMixin`."""

    __hash__ = None  # type: ignore[assignment]
    __slots__ = ()

    __iadd__ = NDArrayOperatorsMixin.__add__
    __isub__ = NDArrayOperatorsMixin.__sub__
    __imul__ = NDArrayOperatorsMixin.__mul__
    __imatmul__ = NDArrayOperatorsMixin.__matmul__
    __itruediv__ = NDArrayOperatorsMixin.__truediv__
    __ifloordiv__ = NDArrayOperatorsMixin.__floordiv__
    __imod__ = NDArrayOperatorsMixin.__mod__
    __ipow__ = NDArrayOperatorsMixin.__pow__
    __ilshift__ = NDArrayOperatorsMixin.__lshift__
    __irshift__ = NDArrayOperatorsMixin.__rshift__
    __iand__ = NDArrayOperatorsMixin.__and__
    __ixor__ = NDArrayOperatorsMixin.__xor__
    __ior__ = NDArrayOperatorsMixin.__or__

    def __eq__(self, other: object) -> Any:
        return super().__eq__(other) if _is_comparable(other) else self._unlike(self._array == other)

    def __ne__(self, other: object) -> Any:
        return super().__ne__(other) if _is_comparable(other) else self._unlike(self._array != other)

    def __round__(self, digits: int | None = None) -> Any:
        return round(self._array.item(), digits)

    def __format__(self, spec: str) -> str:
        return format(self._array.item(), spec) if spec else str(self)

    def _unlike(self, comparison: Any) -> Any:
        """What numpy says of something that no tensor holds."""
        return self.made(freeze(np.asarray(comparison)))


def _is_comparable(other: object) -> bool:
    """Whether a tensor can be made of it, or it is one."""
    if isinstance(other, (Placed, bool, int, float)):
        return True
    try:
        contents(other)
    except InvalidInputError:
        return False
    return True
