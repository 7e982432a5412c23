"""Arrays computed from constants, computed once, and traced arrays that record how they were computed.

Arrays that remember how they came about, so that what was compiled for one set of weights holds for others.

What `ir.symbolic_numbers` does for sizes, for the contents of constants. A computation over a model is run once with
traced arrays in the place of its constants. The trace notes every step that makes an array of others, and every answer
on which the computation decided something. `ArrayTrace.replay` does the steps again with other constants, and says no
where an answer would differ.

A traced array is no numpy array, on purpose: whatever looks at its contents must ask for them first, and that is noted
as an answer too: these contents, and no others. What should hold for other contents as well goes through `applied`,
`decided` and `group_key`, or through `ir.derived.derived`. All of them take plain arrays too.

What is computed from constants, computed once: a model is lowered again for every new shape, its weights are not.

Results are known by the contents of the arrays that they were made from, and kept as long as arrays of these contents
live: plans share them, and so do sessions that hold equal weights. So what depends on a model's input shapes does not
belong here: it would pile up. Only arrays that cannot be written to are looked up, since their contents stay what they
were.

Contents are known by a digest, taken once per array, or by what was said of them (`know_contents`). A result that is
handed in again is known by what it was made of; so nothing here keeps itself alive, whatever a function returns.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, TypeVar, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nnadapter.ir.deferred_arrays import Deferral, DeferredArray, contents_of, deferral_of
from nnadapter.ir.operand import Array, digest_of, dtype_name
from nnadapter.ir.symbolic_numbers import guard_value, identity_key

_Answer = TypeVar("_Answer")
_Form = Hashable
"""What a step makes, but for contents: data type and dimensions, or an empty tuple for None, or a tuple of such."""


@dataclass(frozen=True, slots=True, eq=False)
class _TracedStep:
    """One call of a function. What it makes is put behind the arrays that there are, in its order."""

    function: Callable[..., Any]
    arrays: tuple[int | Array | None, ...]
    """Numbers of arrays, and arrays that are the same always."""
    parameters: dict[str, Any]
    form: _Form
    """Of what it made; it has to make the like again. None for a question."""
    deferral: Deferral | None = None
    """Set if it need not be called before somebody asks for the contents."""
    answer: Hashable = None
    """To a question, which makes no array."""


@dataclass(slots=True, eq=False)
class _Comparison:
    """Arrays that were told apart by a key: which of them are the same one."""

    key: Callable[[Array], Hashable]
    arrays: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    """For each of them, the first one with the same key."""
    first_array_by_key: dict[Hashable, int] = field(default_factory=dict)


class ArrayTrace:
    """Steps and answers of one computation over constants. Arrays are numbered: variables, then as they come about."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._values: list[Any] = list(arrays)
        self._variables = [_form(array) for array in arrays]
        self._steps: list[_TracedStep] = []
        self._looked: dict[int, str] = {}
        self._comparisons: dict[Callable[[Array], Hashable], _Comparison] = {}

    def variables(self) -> list[TracedArray]:
        """The constants that a replay is given, in their order."""
        return [self._traced(number) for number in range(len(self._variables))]

    def finish(self) -> list[Any]:
        """Let the contents go, and return them by number, some deferred (`ir.deferred`).

        Nothing can be traced any more; replays are what is left.
        """
        values, self._values = self._values, []
        for comparison in self._comparisons.values():
            comparison.first_array_by_key.clear()
        return values

    def replay(self, arrays: Sequence[Array]) -> list[Any] | None:
        """Every array by its number, made of other constants; None if something would have been decided otherwise."""
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
        """What a function makes of arrays, of which one at least is traced: an array, None, or a tuple of these.

        If it is deferred, it is not called before somebody asks for what it makes.
        """
        result = _apply(function, list(map(self._value, arrays)), parameters, deferral)
        form = _form(result)
        self._steps.append(_TracedStep(function, tuple(map(_array_number, arrays)), parameters, form, deferral))
        parts = result if isinstance(result, tuple) else (result,)
        first = len(self._values)
        self._values.extend(parts)
        traced = [None if part is None else self._traced(first + at) for at, part in enumerate(parts)]
        return tuple(traced) if isinstance(result, tuple) else traced[0]

    def decide(self, function: Callable[..., _Answer], arrays: Sequence[Any], parameters: dict[str, Any]) -> _Answer:
        """What a function says of arrays, on which something is decided from here on."""
        answer = function(*map(self._contents, arrays), **parameters)
        self._steps.append(
            _TracedStep(function, tuple(map(_array_number, arrays)), parameters, None, answer=cast("Hashable", answer))
        )
        return answer

    def read_contents(self, array: TracedArray) -> Array:
        """The contents, which have to be the same ones from here on."""
        contents: Array = contents_of(self._values[array.number])
        if array.number not in self._looked:
            self._looked[array.number] = digest_of(contents)
        return contents

    def group_key(self, array: TracedArray, key: Callable[[Array], Hashable]) -> Hashable:
        """What arrays of this trace have in common that have the same key."""
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
    """An array of a trace. Only arrays of one trace may meet."""

    __slots__ = ("dtype", "number", "shape", "trace")

    def __init__(self, trace: ArrayTrace, number: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.trace = trace
        self.number = number
        self.dtype = dtype
        self.shape = shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the contents."""
        return self.size * int(self.dtype.itemsize)

    __getitem__, __contains__ = _reading(operator.getitem), _reading(operator.contains)
    __len__, __iter__ = _reading(len), _reading(iter)
    __bool__, __int__, __float__, __index__ = _reading(bool), _reading(int), _reading(float), _reading(operator.index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """The contents, for numpy, which are looked at."""
        return np.asarray(self.trace.read_contents(self), dtype)

    def __array_ufunc__(self, function: np.ufunc, method: str, *arrays: Any, **arguments: Any) -> Any:
        """What arithmetic makes of the contents, which are looked at."""
        plain = [self.trace.read_contents(array) if isinstance(array, TracedArray) else array for array in arrays]
        return getattr(function, method)(*plain, **arguments)

    def __getattr__(self, name: str) -> Any:
        """Whatever else an array has looks at the contents."""
        if name.startswith("__"):  # what numpy asks for to learn what this is
            raise AttributeError(name)
        return getattr(self.trace.read_contents(self), name)


def applied(function: Callable[..., Any], *arrays: Any, **parameters: Any) -> Any:
    """What a function makes of arrays, taken as one step if one of them is traced.

    Args:
        function: pure; it makes an array, None, or a tuple of these.
        arrays: plain or traced ones; None stands for itself.
        parameters: what else the result depends on; a size among them that is traced is decided on.
    """
    parameters = {name: guard_value(value) for name, value in parameters.items()}
    trace = trace_of(arrays)
    if trace is None:
        return function(*arrays, **parameters)
    return trace.apply(function, arrays, parameters, deferral_of(function))


def decided(function: Callable[..., _Answer], *arrays: Any, **parameters: Any) -> _Answer:
    """What a function says of arrays; a trace has to be answered the same way for ever.

    Args:
        function: pure; what it says can be compared.
        arrays: plain or traced ones; None stands for itself.
        parameters: what else the answer depends on; a size among them that is traced is decided on.
    """
    parameters = {name: guard_value(value) for name, value in parameters.items()}
    trace = trace_of(arrays)
    return function(*arrays, **parameters) if trace is None else trace.decide(function, arrays, parameters)


def group_key(key: Callable[[Array], Hashable], array: Any) -> Hashable:
    """What arrays have in common that have the same key, for looking up.

    A trace only notes which of its arrays do, not what the key is. Traced arrays and plain ones never do.

    Args:
        key: pure; the same object every time.
        array: plain or traced.
    """
    return array.trace.group_key(array, key) if isinstance(array, TracedArray) else key(array)


def trace_of(arrays: Sequence[Any]) -> ArrayTrace | None:
    """The trace of the first array that is traced, None if none is."""
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
    """An empty tuple for None, so that None itself can stand for what is no array."""
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
    """Return `function(*arrays, **parameters)`, computed now if it was not before. Safe to use from many threads.

    Args:
        function: pure; it must not keep or change its arguments.
        arrays: constants, traced ones too (`ir.traced_arrays`); None stands for itself.
        parameters: what else the result depends on; a size among them that is traced is decided on.
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
    """Say what an array holds, so that no digest need be taken: it is part of a file, say, which is read-only.

    Args:
        array: not to be written to.
        key: arrays with this key have equal contents.
        release: called when something was derived from it: what was made is mostly read in its place from then on.
            It must not keep the array.
    """
    _register(array, key).release = release


class _Contents:
    """What equal arrays hold, for as long as one of them lives."""

    __slots__ = ("__weakref__", "key", "release")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.release: Callable[[], object] | None = None


# Arrays go at any time, in any thread: while a lock is held, or between the steps of anything here. What forgets them
# is a `pop` of a dictionary, called by C with C's own hashes: it needs no lock, and no interrupt comes into it.
_holders: dict[int, tuple[weakref.ref[Array], _Contents]] = {}
"""What arrays hold, by their identity."""
_living: dict[Hashable, weakref.ref[_Contents]] = {}
_results: dict[Hashable, tuple[Any, tuple[weakref.ref[_Contents], ...]]] = {}
"""Results by key, each as long as all the contents that it was made of live."""


def _contents(array: Array) -> _Contents:
    """What the array holds, worked out if it was not before."""
    holder = _holders.get(id(array))
    if holder is not None and holder[0]() is array:
        return holder[1]
    return _register(array, (dtype_name(array.dtype), array.shape, digest_of(array)))


def _register(array: Array, key: Hashable) -> _Contents:
    """Note what the array holds; what was noted before stays."""
    reference = _living.get(key)
    contents = None if reference is None else reference()
    if contents is None:
        contents = _Contents(key)
        _living[key] = weakref.ref(contents, partial(_living.pop, key))
    holder = weakref.ref(array, partial(_holders.pop, id(array)))
    return _holders.setdefault(id(array), (holder, contents))[1]


def _keep(key: Hashable, result: Any, parts: Iterable[_Contents]) -> Any:
    """Keep a result as long as all its parts live; the one that is there, if another thread was first."""
    for place, array in enumerate(result if isinstance(result, tuple) else (result,)):
        if array is not None:
            _register(array, (key, place))
    ends = tuple(weakref.ref(part, partial(_results.pop, key)) for part in parts)
    return _results.setdefault(key, (result, ends))[0]


def _sealed(result: Any, arrays: list[Array]) -> Any:
    """The result with read-only arrays, since they are shared, and no views, which would keep `arrays` alive."""
    if isinstance(result, tuple):
        return tuple(_sealed(element, arrays) for element in result)
    if result is None:
        return None
    result = np.asarray(result)  # numpy makes scalars of arrays without dimensions
    sealed = result.copy() if any(np.may_share_memory(result, array) for array in arrays) else result
    sealed.flags.writeable = False
    return sealed
