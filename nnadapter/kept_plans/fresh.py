"""A session that writes what it plans, for the next one. It plans as any other (`nnadapter.running.planned`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from nnadapter.caching.outcome import warn_unwritten
from nnadapter.errors import describe
from nnadapter.kept_plans.place import MOST_PLANS, Place
from nnadapter.kept_plans.writing import write_plans
from nnadapter.onnx.schemas import is_brought
from nnadapter.onnx.signature import Shapes
from nnadapter.options import Options
from nnadapter.planning.bounds import Bounds
from nnadapter.planning.setting import Setting
from nnadapter.process.forking import new_lock
from nnadapter.running.compiled import Compiled
from nnadapter.running.control import RunControl
from nnadapter.running.filled import SpecializedPlans
from nnadapter.running.observed import NO_PLAN_KEPT, Observed
from nnadapter.running.outputs import Kept
from nnadapter.running.planned import PlannedEngine
from nnadapter.running.provenance import Provenance
from partition.verdict import Unsupported

if TYPE_CHECKING:
    import onnx
    import onnxruntime


_MOST_WRITES = 16
"""Of a session: one whose shapes never come back is not to write for ever."""
_CHANGED = "what it was made of was changed meanwhile"
_BEGINNING = -1
"""In place of the plans that were made when it was looked last: they are looked at when the engine is made."""


class KeepingEngine(PlannedEngine):
    """Runs a model by plans, and keeps those that it made first. Usable from many threads at once.

    Args:
        place: where they are kept.
        is_unchanged: whether the model, and what else decides, is still what the key of that place says.
        why: nothing that was kept is used, for the report.
        others: see `PlannedEngine`.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        setting: Setting,
        options: Options,
        session_options: onnxruntime.SessionOptions | None = None,
        refused_by_host: Mapping[int, Unsupported] | None = None,
        *,
        place: Place,
        is_unchanged: Callable[[], bool],
        why: str,
    ) -> None:
        self._place, self._is_unchanged = place, is_unchanged
        self._verifies = options.verify is not None
        self._note = f"{NO_PLAN_KEPT}: {why}"
        self._looked_at, self._writes = _BEGINNING, 0
        self._written: WeakKeyDictionary[Compiled, Bounds | None] = WeakKeyDictionary()
        self._writing = new_lock()
        super().__init__(model, setting, options, session_options, refused_by_host)
        if any(is_brought(node.domain, node.op_type, node.since_version) for node in self.prepared.nodes):
            self._note += "; none is kept either of a model with ops that packages bring"
            self._writes = _MOST_WRITES  # another version of a package may convert in another way
        self._keep()

    def run(
        self,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        options: Any = None,
        control: RunControl | None = None,
        kept: Kept | None = None,
    ) -> tuple[list[Any], Provenance]:
        """See `Engine.run`; plans that it made are kept."""
        done = super().run(names, feed, options, control, kept)
        if self._changes != self._looked_at:
            self._keep()
        return done

    def prepare(self, shapes: Shapes) -> None:
        """See `Engine.prepare`; plans that it made are kept."""
        super().prepare(shapes)
        if self._looked_at != _BEGINNING:
            self._keep()

    def observed(self) -> Observed:
        """See `Engine.observed`."""
        seen = super().observed()
        return replace(seen, notes=(*seen.notes, self._note))

    @property
    def _changes(self) -> int:
        """Grows where plans are made, or come to hold for more."""
        checked = 0 if self.checks is None else self.checks.count
        return self._plans.made + self.widened + checked

    def _is_checked(self, plan: Compiled) -> bool:
        """Whether it was checked, where plans are: who finds it does not check it again."""
        return not self._verifies or (self.checks is not None and self.checks.is_checked(plan))

    def _keep(self) -> None:
        """Write the plans where there are new ones, for as long as they are few; one thread does it, others go on.

        What others made meanwhile is looked at behind it: whoever found somebody writing leaves it to that one.
        """
        while self._changes != self._looked_at and self._writing.acquire(blocking=False):
            self._write_new()

    def _write_new(self) -> None:
        """Write the plans where there are new ones, and let go of what the caller has taken."""
        try:
            self._looked_at = self._changes
            kept = [(plan, bounds) for plan, bounds in self.plans_kept if _is_as_planned(plan)]
            plans = [(plan, bounds) for plan, bounds in kept if self._is_checked(plan)]
            if all(plan in self._written and self._written[plan] is bounds for plan, bounds in plans):
                return
            if self._writes >= _MOST_WRITES or len(plans) > MOST_PLANS:
                return
            self._written.update(plans)
            self._writes += 1
            is_still = self._is_unchanged()
            why = write_plans(self._place, plans, self, self._setting) if is_still else _CHANGED
        except Exception as error:  # noqa: BLE001  nothing of a cache fails a session; what it is, is said
            why = describe(error)
        finally:
            self._writing.release()
        if why:
            self._note += f"; its plan is not kept: {why}"
            warn_unwritten(why)


def _is_as_planned(compiled: Compiled) -> bool:
    """Whether all went as planned, and nothing that was found out here is lost."""
    steps = compiled.filling.shared.values() if isinstance(compiled, SpecializedPlans) else compiled.plan.steps
    is_measured = len(compiled.timed) > 1  # what of that is kept, `past_choices` keeps
    return not (compiled.notes or is_measured or any(bound.failures for bound in steps))
