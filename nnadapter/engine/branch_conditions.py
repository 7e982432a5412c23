"""Conditions of `If` nodes that inputs decide, computed by ONNX Runtime and cached by contents of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from nnadapter.drivers.capability import ModelForm
from nnadapter.drivers.tensor_copies import on_host
from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.engine.messages import ONNX
from nnadapter.errors import FAILURES, NNAdapterError, describe
from nnadapter.files.messages import Message
from nnadapter.onnx.preparation.branch_decisions import BranchDecision, Conditions, Truths, decisions_text
from nnadapter.process.resources import Cache, new_lock
from nnadapter.store.container import ContainerWriter

if TYPE_CHECKING:
    from nnadapter.drivers.onnxruntime.sessions import SessionExecution


_MOST_REMEMBERED = 256
Selection = TypeVar("Selection")


class Fork(Generic[Selection]):
    """Node of a decision tree: conditions of `If` nodes that are computed together from inputs. Thread-safe.

    `make` returns the next fork or the final selection for the conditions' values. It may be called again for the same
    values. `otherwise` returns the selection if conditions cannot be computed.
    """

    def __init__(
        self,
        conditions: Conditions,
        make: Callable[[Truths], Fork[Selection] | Selection],
        otherwise: Callable[[BaseException], Selection],
    ) -> None:
        self._conditions, self._make, self._otherwise = conditions, make, otherwise
        self._inputs, self._shapes = conditions.inputs, conditions.shapes
        self._successors: dict[Truths, Fork[Selection] | Selection] = {}
        self._known: Cache[object, Fork[Selection] | Selection] = Cache("choices of inputs", _MOST_REMEMBERED)
        self._making, self._loading = new_lock(), new_lock()
        self._execution: SessionExecution | None = None

    @property
    def count(self) -> int:
        return len(self._conditions.results)

    def select(self, feed: Mapping[str, Any]) -> Selection:
        key = self._key(feed)
        cached = self._known.get(key)
        if cached is None:
            cached = self._known.put(key, self._decided(feed))
        return cached.select(feed) if isinstance(cached, Fork) else cached

    def successor(self, truths: Truths) -> Fork[Selection] | Selection:
        with self._making:
            successor = self._successors.get(truths)
            if successor is None:
                successor = self._make(truths)
                if isinstance(successor, Fork) or len(self._successors) < _MOST_REMEMBERED:
                    self._successors[truths] = successor
            return successor

    def _key(self, feed: Mapping[str, Any]) -> object:
        contents = tuple([_bytes_of(feed[name]) for name in self._inputs])
        return (contents, *[feed[name].shape for name in self._shapes]) if self._shapes else contents

    def _decided(self, feed: Mapping[str, Any]) -> Fork[Selection] | Selection:
        try:
            truths = self._truths(feed)
        except FAILURES as error:
            return self._otherwise(error)
        return self.successor(truths)

    def _truths(self, feed: Mapping[str, Any]) -> Truths:
        values = {name: _native(feed[name]) for name in self._inputs}
        if self._conditions.contents:
            sizes = [np.array(feed[name].shape, np.int64) for name in self._shapes]
            execution = self._loaded()
            values |= zip(execution.output_names, execution.compute([*values.values(), *sizes]), strict=True)
        return tuple(bool(values[name].reshape(-1)[0]) for name in self._conditions.results)

    def _loaded(self) -> SessionExecution:
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
    """Convert to native byte order, which ONNX Runtime assumes."""
    array = on_host(value)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def write_fork(
    message: Message, truths: Truths, conditions: Conditions, texts: Sequence[str], writer: ContainerWriter
) -> None:
    """Fill a Fork message; `truths` are the values of the conditions of earlier forks."""
    message.truths.extend(truths)
    message.inputs.extend(conditions.inputs)
    message.shapes.extend(conditions.shapes)
    for name, text in zip(conditions.results, texts, strict=True):
        row = message.conditions.add()
        row.name, row.text = name, text
    if conditions.contents:
        message.model.form = ModelForm.ONNX.value
        message.model.inputs.extend((*conditions.inputs, *conditions.shapes))
        message.model.part = writer.add(ONNX, conditions.contents)


def fork_of(file: CompiledFile) -> Fork[Truths] | None:
    """Return the first fork of a compiled file, if inputs select branches."""
    forks = {tuple(row.truths): row for row in file.message.forks}
    return _fork(file, (), forks) if () in forks else None


def choice_in_words(file: CompiledFile, truths: Sequence[bool]) -> str:
    """Return the value of each condition in a selection of branches, as text."""
    forks, decisions = {tuple(row.truths): row for row in file.message.forks}, list[BranchDecision]()
    while len(decisions) < len(truths):
        row = forks[tuple(truths[: len(decisions)])]
        holds = truths[len(decisions) : len(decisions) + len(row.conditions)]
        decisions.extend(
            BranchDecision(condition.text, truth, ()) for condition, truth in zip(row.conditions, holds, strict=True)
        )
    return decisions_text(decisions)


def _fork(file: CompiledFile, prior: Truths, forks: Mapping[Truths, Message]) -> Fork[Truths]:
    row = forks[prior]
    contents = bytes(file.container.contents(row.model.part, ONNX)) if row.HasField("model") else b""
    names = tuple(condition.name for condition in row.conditions)
    conditions = Conditions(tuple(row.inputs), tuple(row.shapes), names, contents)

    def successor(truths: Truths) -> Fork[Truths] | Truths:
        extended = (*prior, *truths)
        return _fork(file, extended, forks) if extended in forks else extended

    def fail(error: BaseException) -> Truths:
        if isinstance(error, NNAdapterError):
            raise error
        raise file.container.damaged(f"branch conditions cannot be computed: {describe(error)}") from error

    return Fork(conditions, successor, fail)
