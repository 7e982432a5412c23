"""What the inputs of a run choose of a model: which branches of those `If` that they decide (`preparation.decisions`).

A run looks at the few bytes that decide, and finds what they chose before. For new bytes, ONNX Runtime computes
the conditions. What is chosen is known by the branches taken: however many values come, there are few choices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from nnadapter.drivers.tensor_copies import on_host
from nnadapter.errors import FAILURES
from nnadapter.onnx.preparation.branch_decisions import Conditions, Truths
from nnadapter.process.cache import Cache
from nnadapter.process.forking import new_lock

if TYPE_CHECKING:
    from nnadapter.drivers.onnxruntime.sessions import SessionExecution

_MOST_REMEMBERED = 256
"""Contents of deciding inputs of which it is remembered what they chose, and what conditions choose."""
Chosen = TypeVar("Chosen")


class Fork(Generic[Chosen]):
    """Where inputs choose among branches; usable from many threads.

    Args:
        conditions: that decide.
        make: what comes where the conditions are so: one of few other forks, or what is chosen; asked once for each of
            the first 256, and again where others come back, which is to cost little and give the same.
        otherwise: what is chosen where they cannot be told, because of an error.
    """

    def __init__(
        self,
        conditions: Conditions,
        make: Callable[[Truths], Fork[Chosen] | Chosen],
        otherwise: Callable[[BaseException], Chosen],
    ) -> None:
        self._conditions, self._make, self._otherwise = conditions, make, otherwise
        self._inputs, self._shapes = conditions.inputs, conditions.shapes
        self._behind: dict[Truths, Fork[Chosen] | Chosen] = {}
        self._known: Cache[object, Fork[Chosen] | Chosen] = Cache("choices of inputs", _MOST_REMEMBERED)
        self._making, self._loading = new_lock(), new_lock()
        self._execution: SessionExecution | None = None

    @property
    def count(self) -> int:
        """How many conditions decide."""
        return len(self._conditions.results)

    def chosen(self, feed: Mapping[str, Any]) -> Chosen:
        """What a feed chooses, which was checked."""
        key = self._key(feed)
        known = self._known.get(key)
        if known is None:
            known = self._known.put(key, self._decided(feed))
        return known.chosen(feed) if isinstance(known, Fork) else known

    def behind(self, truths: Truths) -> Fork[Chosen] | Chosen:
        """What comes where the conditions are so."""
        with self._making:
            behind = self._behind.get(truths)
            if behind is None:
                behind = self._make(truths)
                if isinstance(behind, Fork) or len(self._behind) < _MOST_REMEMBERED:
                    self._behind[truths] = behind
            return behind

    def _key(self, feed: Mapping[str, Any]) -> object:
        """What decides, as a key."""
        contents = tuple([_bytes_of(feed[name]) for name in self._inputs])
        return (contents, *[feed[name].shape for name in self._shapes]) if self._shapes else contents

    def _decided(self, feed: Mapping[str, Any]) -> Fork[Chosen] | Chosen:
        try:
            truths = self._truths(feed)
        except FAILURES as error:
            return self._otherwise(error)
        return self.behind(truths)

    def _truths(self, feed: Mapping[str, Any]) -> Truths:
        values = {name: _native(feed[name]) for name in self._inputs}
        if self._conditions.contents:
            sizes = [np.array(feed[name].shape, np.int64) for name in self._shapes]
            execution = self._loaded()
            values |= zip(execution.output_names, execution.compute([*values.values(), *sizes]), strict=True)
        return tuple(bool(values[name].reshape(-1)[0]) for name in self._conditions.results)

    def _loaded(self) -> SessionExecution:
        """What computes conditions: a session in the caller's thread."""
        with self._loading:
            if self._execution is None:
                from nnadapter.drivers.onnxruntime.sessions import Loadable, open_session, session_execution

                model = Loadable(self._conditions.contents)
                session = open_session(model, None, has_pool=False, spins=False)
                self._execution = session_execution(session, "the conditions of branches", None)
            return self._execution


def _bytes_of(value: Any) -> bytes:
    contents: bytes = _native(value).tobytes()
    return contents


def _native(value: Any) -> Any:
    """An array in the byte order of this machine: ONNX Runtime takes any other for this one."""
    array = on_host(value)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
