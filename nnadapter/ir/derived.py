"""Arrays derived from constants: memoized, or traced and replayed with other constants.

Array traces let a program compiled for one set of weights serve others. `ArrayTrace.replay` repeats a computation, and
fails if a recorded decision differs. Reading a traced array's contents guards on them; `applied`, `decided`,
`group_key` and `derived` avoid that.

`derived` memoizes results as long as arrays with the same contents live. It must not depend on input shapes, since
entries would pile up. A digest or `know_contents` identifies contents.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any, TypeVar, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nnadapter.ir.deferred_arrays import Deferral, DeferredArray, contents_of, deferral_of
from nnadapter.ir.operand import Array, digest_of, dtype_name
from nnadapter.ir.symbolic_numbers import guard_value, identity_key
from nnadapter.records import dataclass, field

_Answer = TypeVar("_Answer")
_Form = Hashable
"""Data type and dimensions of an array, () for None, or a tuple of forms."""


@dataclass(frozen=True, slots=True, eq=False)
class _TracedStep:
    function: Callable[..., Any]
    arrays: tuple[int | Array | None, ...]
    parameters: dict[str, Any]
    form: _Form
    """Expected form of the result; None if the result is an answer, see `ArrayTrace.decide`."""
    deferral: Deferral | None = None
    answer: Hashable = None


@dataclass(slots=True, eq=False)
class _Comparison:
    key: Callable[[Array], Hashable]
    arrays: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    """Array -> the first array for which `key` returned the same."""
    first_array_by_key: dict[Hashable, int] = field(default_factory=dict)


class ArrayTrace:
    """Record of a computation over constants: function calls, and answers that must not change in a replay."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._values: list[Any] = list(arrays)
        self._variables = [_form(array) for array in arrays]
        self._steps: list[_TracedStep] = []
        self._looked: dict[int, str] = {}
        self._comparisons: dict[Callable[[Array], Hashable], _Comparison] = {}

    def variables(self) -> list[TracedArray]:
        return [self._traced(number) for number in range(len(self._variables))]

    def finish(self) -> list[Any]:
        """Return the constants and all results, some deferred, and drop the references to them.

        Afterwards only `replay` works.
        """
        values, self._values = self._values, []
        for comparison in self._comparisons.values():
            comparison.first_array_by_key.clear()
        return values

    def replay(self, arrays: Sequence[Array]) -> list[Any] | None:
        """Repeat the computation with other constants; return all computed arrays in the order of `finish`.

        Return None if a guard fails, or a data type or shape differs.
        """
        if [_form(array) for array in arrays] != self._variables:
            return None
        values: list[Any] = list(arrays)
        for step in self._steps:
            arguments = [values[argument] if isinstance(argument, int) else argument for argument in step.arrays]
            result = _apply(step.function, arguments, step.parameters, step.deferral)
            if step.form is None:
                if result != step.answer:
                    return None
            elif _form(result) != step.form:
                return None
            else:
                values.extend(result if isinstance(result, tuple) else (result,))
        if any(digest_of(contents_of(values[number])) != digest for number, digest in self._looked.items()):
            return None
        return values if all(_agrees(comparison, values) for comparison in self._comparisons.values()) else None

    def apply(
        self,
        function: Callable[..., Any],
        arrays: Sequence[Any],
        parameters: dict[str, Any],
        deferral: Deferral | None = None,
    ) -> Any:
        """Record and call a function that returns an array, None or a tuple of these; return traced arrays."""
        result = _apply(function, list(map(self._value, arrays)), parameters, deferral)
        form = _form(result)
        self._steps.append(_TracedStep(function, tuple(map(_array_number, arrays)), parameters, form, deferral))
        parts = result if isinstance(result, tuple) else (result,)
        first = len(self._values)
        self._values.extend(parts)
        traced = [None if part is None else self._traced(first + at) for at, part in enumerate(parts)]
        return tuple(traced) if isinstance(result, tuple) else traced[0]

    def decide(self, function: Callable[..., _Answer], arrays: Sequence[Any], parameters: dict[str, Any]) -> _Answer:
        """Return a function's answer about arrays, and record it as a guard."""
        answer = function(*map(self._contents, arrays), **parameters)
        self._steps.append(
            _TracedStep(function, tuple(map(_array_number, arrays)), parameters, None, answer=cast("Hashable", answer))
        )
        return answer

    def read_contents(self, array: TracedArray) -> Array:
        """Return the contents, and record their digest as a guard."""
        contents: Array = contents_of(self._values[array.number])
        if array.number not in self._looked:
            self._looked[array.number] = digest_of(contents)
        return contents

    def group_key(self, array: TracedArray, key: Callable[[Array], Hashable]) -> Hashable:
        """Return a key to group arrays by `key(array)`, without recording that value as a guard.

        In a replay, keys of two arrays must be equal exactly if they were equal in the trace.
        """
        comparison = self._comparisons.setdefault(key, _Comparison(key))
        first = comparison.first_array_by_key.setdefault(key(contents_of(self._values[array.number])), array.number)
        comparison.arrays.append(array.number)
        comparison.firsts.append(first)
        return ("traced", first)

    def _traced(self, number: int) -> TracedArray:
        value = self._values[number]
        return TracedArray(self, number, value.dtype, value.shape)

    def _value(self, array: Any) -> Any:
        return self._values[array.number] if isinstance(array, TracedArray) else array

    def _contents(self, array: Any) -> Any:
        return contents_of(self._value(array))


def _reading(convert: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: TracedArray, *arguments: Any) -> Any:
        return convert(self.trace.read_contents(self), *arguments)

    return method


class TracedArray(NDArrayOperatorsMixin):
    """Array of a trace. Reading its contents records them as a guard."""

    __slots__ = ("dtype", "number", "shape", "trace")

    def __init__(self, trace: ArrayTrace, number: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.trace = trace
        self.number = number
        self.dtype = dtype
        self.shape = shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * int(self.dtype.itemsize)

    __getitem__, __contains__ = _reading(operator.getitem), _reading(operator.contains)
    __len__, __iter__ = _reading(len), _reading(iter)
    __bool__, __int__, __float__, __index__ = _reading(bool), _reading(int), _reading(float), _reading(operator.index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.trace.read_contents(self), dtype)

    def __array_ufunc__(self, function: np.ufunc, method: str, *arrays: Any, **arguments: Any) -> Any:
        plain = [self.trace.read_contents(array) if isinstance(array, TracedArray) else array for array in arrays]
        return getattr(function, method)(*plain, **arguments)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # numpy probes dunder names to classify the object
            raise AttributeError(name)
        return getattr(self.trace.read_contents(self), name)


def applied(function: Callable[..., Any], *arrays: Any, **parameters: Any) -> Any:
    """Apply a function to arrays, and record the call if one of them is traced.

    `function` must be pure, and return an array, None, or a tuple of these. Symbolic sizes in `parameters` are guarded.
    """
    parameters = {name: guard_value(value) for name, value in parameters.items()}
    trace = trace_of(arrays)
    if trace is None:
        return function(*arrays, **parameters)
    return trace.apply(function, arrays, parameters, deferral_of(function))


def decided(function: Callable[..., _Answer], *arrays: Any, **parameters: Any) -> _Answer:
    """Return a pure function's answer about arrays, guarded if one of them is traced."""
    parameters = {name: guard_value(value) for name, value in parameters.items()}
    trace = trace_of(arrays)
    return function(*arrays, **parameters) if trace is None else trace.decide(function, arrays, parameters)


def group_key(key: Callable[[Array], Hashable], array: Any) -> Hashable:
    """Return a key to group arrays by `key(array)`. For traced arrays, no guard records the value of `key(array)`.

    `key` must be pure, and the same function object in every call. Keys of traced and plain arrays are never equal.
    """
    return array.trace.group_key(array, key) if isinstance(array, TracedArray) else key(array)


def trace_of(arrays: Sequence[Any]) -> ArrayTrace | None:
    """Return the first traced array's trace, if any."""
    return next((array.trace for array in arrays if isinstance(array, TracedArray)), None)


def _apply(
    function: Callable[..., Any], arrays: Sequence[Any], parameters: dict[str, Any], deferral: Deferral | None
) -> Any:
    if deferral is not None and deferral.applies(arrays):
        return DeferredArray(function, arrays, parameters, deferral.form(*arrays, **parameters))
    return function(*map(contents_of, arrays), **parameters)


def _array_number(array: Any) -> int | Array | None:
    return array.number if isinstance(array, TracedArray) else array


def _form(result: Any) -> _Form:
    if isinstance(result, tuple):
        return tuple(map(_form, result))
    return () if result is None else (dtype_name(result.dtype), result.shape)


def _agrees(comparison: _Comparison, values: Sequence[Any]) -> bool:
    numbers_by_key: dict[Hashable, int] = {}
    return all(
        numbers_by_key.setdefault(comparison.key(contents_of(values[number])), number) == first
        for number, first in zip(comparison.arrays, comparison.firsts, strict=True)
    )


Result = TypeVar("Result")


def derived(function: Callable[..., Result], *arrays: Array | None, **parameters: Hashable) -> Result:
    """Return `function(*arrays, **parameters)`, memoized by contents if all arrays are read-only. Thread-safe.

    `function` must be pure, and neither store nor change its arguments; symbolic sizes in `parameters` are guarded.
    """
    parameters = {name: guard_value(value) for name, value in parameters.items()}
    trace = trace_of(arrays)
    if trace is not None:
        result: Result = trace.apply(partial(derived, function), arrays, parameters, deferral_of(function))
        return result
    present_arrays = [array for array in arrays if array is not None]
    if not present_arrays or any(array.flags.writeable or array.dtype.hasobject for array in present_arrays):
        return function(*arrays, **parameters)
    contents = [None if array is None else _contents(array) for array in arrays]
    exact = tuple((name, identity_key(parameters[name])) for name in sorted(parameters))
    key = (function, tuple(content and content.key for content in contents), exact)
    cache_entry = _results.get(key)
    if cache_entry is not None:
        cached_result: Result = cache_entry[0]
        return cached_result
    sealed_result: Result = _keep(key, _sealed(function(*arrays, **parameters), present_arrays), filter(None, contents))
    for content in contents:
        if content is not None and content.release is not None:
            content.release()
    return sealed_result


def know_contents(array: Array, key: Hashable, release: Callable[[], object] | None = None) -> None:
    """Register `key` as the identity of a read-only array's contents, so that `derived` computes no digest.

    `derived` calls `release` after reading the array, to free memory of weights. It must not reference `array`.
    """
    _register(array, key).release = release


class _Contents:
    """Identity of array contents, which lives as long as an array with them."""

    __slots__ = ("__weakref__", "key", "release")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.release: Callable[[], object] | None = None


# Arrays may be freed at any time, in any thread, even while a lock is held. Entries are removed by `dict.pop`, called
# from C with hashes computed in C: it takes no lock and cannot be interrupted.
_holders: dict[int, tuple[weakref.ref[Array], _Contents]] = {}
_living: dict[Hashable, weakref.ref[_Contents]] = {}
_results: dict[Hashable, tuple[Any, tuple[weakref.ref[_Contents], ...]]] = {}
"""Results by key, which live as long as the contents that they derive from."""


def _contents(array: Array) -> _Contents:
    holder = _holders.get(id(array))
    if holder is not None and holder[0]() is array:
        return holder[1]
    return _register(array, (dtype_name(array.dtype), array.shape, digest_of(array)))


def _register(array: Array, key: Hashable) -> _Contents:
    reference = _living.get(key)
    contents = None if reference is None else reference()
    if contents is None:
        contents = _Contents(key)
        _living[key] = weakref.ref(contents, partial(_living.pop, key))
    holder = weakref.ref(array, partial(_holders.pop, id(array)))
    return _holders.setdefault(id(array), (holder, contents))[1]


def _keep(key: Hashable, result: Any, parts: Iterable[_Contents]) -> Any:
    """Memoize a result until contents in `parts` are freed; return an earlier result, if any."""
    for place, array in enumerate(result if isinstance(result, tuple) else (result,)):
        if array is not None:
            _register(array, (key, place))
    ends = tuple(weakref.ref(part, partial(_results.pop, key)) for part in parts)
    return _results.setdefault(key, (result, ends))[0]


def _sealed(result: Any, arrays: list[Array]) -> Any:
    """Return a read-only result; views, which would keep `arrays` alive, are copied."""
    if isinstance(result, tuple):
        return tuple(_sealed(element, arrays) for element in result)
    if result is None:
        return None
    result = np.asarray(result)  # numpy returns scalars instead of arrays of rank 0
    sealed = result.copy() if any(np.may_share_memory(result, array) for array in arrays) else result
    sealed.flags.writeable = False
    return sealed
