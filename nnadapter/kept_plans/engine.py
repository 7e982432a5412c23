"""Runs plans that were kept. Where they end, the model itself goes on: at other shapes, and where a device fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from nnadapter.compiled_models.engine import CompiledEngine
from nnadapter.compiled_models.reading import CompiledFile
from nnadapter.drivers.selection import HOSTS
from nnadapter.errors import (
    ClosedError,
    CompilationError,
    CompiledModelError,
    ExecutionError,
    InvalidInputError,
    NNAdapterError,
    OutOfMemoryError,
)
from nnadapter.onnx.signature import Shapes
from nnadapter.options import Options
from nnadapter.process.forking import new_lock
from nnadapter.running.by_plans import InputShapes, Left
from nnadapter.running.outputs import Kept
from nnadapter.running.provenance import Provenance
from nnadapter.traces.trace import SILENT

if TYPE_CHECKING:
    from nnadapter.onnx.preparation.choice import Truths
    from nnadapter.running.control import RunControl
    from nnadapter.running.observed import KeptReport, Observed
    from nnadapter.running.planned import PlannedEngine


class _NotKeptError(InvalidInputError):
    """No plan that was kept is for these shapes. Nobody outside of this module sees it."""


class _PlanFailedError(NNAdapterError):
    """A plan that was kept cannot go on. Nobody outside of this module sees it."""


_ENDS = (_NotKeptError, _PlanFailedError, CompiledModelError, CompilationError, ExecutionError, OutOfMemoryError)
"""Where the model itself goes on."""


class KeptEngine(CompiledEngine):
    """Plans that were kept, ready to run. Usable from many threads at once.

    Args:
        file: with the plans.
        devices: names of the session's.
        left: choices that gained nothing: the plans of no choice are for them, and for no others.
        options: of the session.
        begin: makes what goes on with the model itself.

    Raises:
        NNAdapterError: the plans cannot be used here.
    """

    def __init__(
        self,
        file: CompiledFile,
        devices: Sequence[str],
        left: Left,
        options: Options,
        begin: Callable[[str], PlannedEngine],
    ) -> None:
        self._left = left
        self._begin, self._beginning = begin, new_lock()
        self._planned: PlannedEngine | None = None
        self._begun = self._closed = False
        # What says where nodes go is in the plans; where a device fails, the model itself goes on.
        # They were checked before they were kept.
        plain = replace(
            options, policy="priority", rules=None, plan=None, fallback="forbid", verify=None, background=False
        )
        super().__init__(file, None, plain, SILENT, whole=_leave)
        self._devices, self._begun = tuple(devices), True

    def run(
        self,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        options: Any = None,
        control: RunControl | None = None,
        kept: Kept | None = None,
    ) -> tuple[list[Any], Provenance]:
        """See `Engine.run`."""
        if self._planned is None:
            try:
                return super().run(names, feed, options, control, kept)
            except _ENDS as error:
                self._go_on(error)
        assert self._planned is not None, "it goes on"
        return self._planned.run(names, feed, options, control, kept)

    def prepare(self, shapes: Shapes) -> None:
        """See `Engine.prepare`."""
        if self._planned is None:
            try:
                return super().prepare(shapes)
            except _ENDS as error:
                if not self._begun:
                    raise
                self._go_on(error)
        assert self._planned is not None, "it goes on"
        return self._planned.prepare(shapes)

    def observed(self) -> KeptReport | Observed:
        """See `Engine.observed`."""
        if self._planned is not None:
            return self._planned.observed()
        newest = self._plans.newest
        record = self._file.message.plans[0] if newest is None else newest.record
        cached = {number: step.HasField("program") for number, step in enumerate(record.steps)}
        return replace(self._told(), cached=cached)

    def close(self) -> None:
        """See `Engine.close`."""
        with self._beginning:
            self._closed = True
        with suppress(ClosedError):
            super().close()
        if self._planned is not None:
            self._planned.close()

    def _may_be_any(self, truths: Truths, shapes: InputShapes) -> bool:
        """See `CompiledEngine._may_be_any`: a choice that nobody made yet is to be planned."""
        left = self._left.get(truths, frozenset())
        return left is None or shapes in left

    def _unknown(self, shapes: Sequence[tuple[int, ...] | None]) -> InvalidInputError:
        return _NotKeptError("no plan that was kept is for these shapes")

    def _go_on(self, error: Exception) -> None:
        """Have the model itself run from now on; what was kept stays for runs that are under way."""
        if isinstance(error, ExecutionError) and error.device in HOSTS:
            raise error  # it would be the same
        with self._beginning:
            if self._closed:
                raise ClosedError("the session is closed; make another one")
            if self._planned is None:
                self._planned = self._begin(f"the one that was is not used any more: {error}")


def _leave(error: NNAdapterError) -> NoReturn:
    """Say that steps of a plan failed, on the CPU too: what they were given may be wrong, and is made anew.

    Raises:
        _PlanFailedError: always.
    """
    raise _PlanFailedError(str(error)) from error
