"""Runs a compiled plan: the steps in order, every value in a numbered slot, nothing looked up by name on the way.

What a step does, and what happens where it fails, is in `one_step.py`; what happens where nothing takes its place, in
`whole.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from nnadapter.drivers.copies import Copies, Transfer
from nnadapter.errors import CancelledError, GivenUpError, InputValueError, NNAdapterError, describe
from nnadapter.ir.operand import Array
from nnadapter.process.closing import close_all
from nnadapter.process.forking import new_lock
from nnadapter.running.borders import Borders, Given
from nnadapter.running.bound_step import BoundStep
from nnadapter.running.one_step import after_failure, ask_before, run_step
from nnadapter.running.outputs import NOTHING_KEPT, Kept, output_of, own_value
from nnadapter.running.plan_memory import Holding
from nnadapter.running.pool import ExecutionPool
from nnadapter.running.provenance import Provenance, StepRun
from nnadapter.running.slots import OtherShapeError

if TYPE_CHECKING:
    from nnadapter.ir.size_class import GuardedShapes
    from nnadapter.running.control import RunControl
    from nnadapter.running.one_run import OneRun
    from nnadapter.running.whole import Whole


class Ahead(Protocol):
    """Runs the steps of a plan some of which are begun before others are done."""

    def run(self, steps: Sequence[BoundStep], run: OneRun) -> list[StepRun]:
        """Run every step; all of them are done on return. See `run_step`."""

    def close(self) -> None:
        """Wait for what is under way, and free what runs need."""


class CompiledPlan:
    """A plan whose segments are compiled."""

    def __init__(
        self,
        steps: Sequence[BoundStep],
        slots: Mapping[str, int],
        outputs: Mapping[str, int],
        constants: Mapping[int, Array],
        whole: Callable[[NNAdapterError], Whole] | None = None,
        new_transfers: Callable[[], list[Transfer]] = list,
        size_class: GuardedShapes | None = None,
        borders: Borders | None = None,
        ahead: Ahead | None = None,
        held_between: Callable[[], Mapping[Hashable, int]] = dict,
    ) -> None:
        """Take what was compiled.

        Args:
            steps: in their order.
            slots: of every value, by name.
            outputs: slots of the model's outputs.
            constants: contents of slots that no step fills.
            whole: makes what runs the model as it was, where steps failed and nothing took their place, or raises; None
                where the plan is that already.
            new_transfers: makes what takes the transfers of a run.
            size_class: the sizes for which the plan holds, if its programs are told them; None for any other plan.
            borders: where values between steps lie; None where the steps make all of them new.
            ahead: runs the steps where some are begun before others are done; None where each waits for the last.
            held_between: tells what all plans of the session hold for values between steps, see `Holding.shared_bytes`:
                each tells it, whether it needs some or not, since dropping none frees it.
        """
        self._held_between = held_between
        self._borders = borders
        self._ahead = ahead
        self._size_class = size_class
        self.steps = tuple(steps)
        self.note = ""
        """Why all of the plan has been given up; empty where it was not."""
        self.transfers: tuple[Transfer, ...] | None = None
        """Those of the last run; None where no value could stay on a device in it, and where there was none."""
        self._stays = any(bound.residence is not None and bound.residence.saves for bound in self.steps)
        self._make_whole = whole
        self._new_transfers = new_transfers
        self._whole: Whole | None = None
        self._lock = new_lock()
        self._slots = slots
        self._outputs = outputs
        self._shares = len({bound.step.device for bound in self.steps}) > 1
        """Runs that follow each other take turns on its devices."""
        self._blank: list[Any] = [None] * len(slots)
        for slot, array in constants.items():
            self._blank[slot] = array

    def alone(self, outputs: Sequence[str]) -> tuple[BoundStep, tuple[str, ...], tuple[int, ...]] | None:
        """The step that is all of the plan, if that reads inputs alone, as arrays, and makes all `outputs`.

        Returns:
            The step, the names of the inputs that it reads, and where among its results the outputs are; or None.
        """
        if len(self.steps) != 1 or not set(outputs) <= set(self.steps[0].step.outputs):
            return None
        (bound,) = self.steps
        if any(self._blank[slot] is not None for slot in bound.inputs):
            return None
        more = self._borders or self._ahead or self._size_class or self._stays or bound.planned
        if bound.guarded and more:
            return None
        names = {slot: name for name, slot in self._slots.items()}
        order = tuple(bound.step.outputs.index(name) for name in outputs)
        return bound, tuple(names[slot] for slot in bound.inputs), order

    def check_indices(self, bound: BoundStep, feeds: Mapping[str, Any]) -> None:
        """Check the indices and lengths that a step reads from feeds.

        Raises:
            InputValueError: one is out of its range.
        """
        values = self._blank.copy()
        for name, array in feeds.items():
            slot = self._slots.get(name)
            if slot is not None:
                values[slot] = array
        for index_check in bound.index_checks:
            index_check.check(values)

    def run(
        self,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        control: RunControl | None = None,
        kept: Kept | None = None,
        sizes: Sequence[Any] | None = None,
        failed: BaseException | None = None,
    ) -> tuple[list[Any], Provenance]:
        """Run every step.

        Args:
            feeds: checked arrays, or `Copies`, by input name.
            wanted: names of model outputs.
            control: asked before every step; None where nobody may stop the run.
            kept: outputs that stay, with the devices where they shall lie (empty for where they do): they come as
                `Copies`. None where none stay and no feed is `Copies`.
            sizes: every number of its class of sizes now, if its programs are told them.
            failed: why the only step did not deliver, if that was tried already.

        Raises:
            CancelledError: `control` said so.
            ExecutionError, NotDelegatedError: a step failed and nothing may take its place.
        """
        if self.note and self._whole is not None:
            return self._whole.run(feeds, wanted, self.note, kept, control)
        try:
            # What is under way when somebody stops the run would go on in memory that is given back.
            may_leave_work = control is not None and self._ahead is not None
            if self._borders is None or may_leave_work or sizes is not None:
                return self._run_steps(feeds, wanted, control, kept, sizes, failed=failed)
            with self._borders.lent() as given:
                return self._run_steps(feeds, wanted, control, kept, sizes, given)
        except NNAdapterError as error:
            if isinstance(error, (CancelledError, GivenUpError, InputValueError)) or self._make_whole is None:
                raise
            return self._run_whole(error, feeds, wanted, kept, control)

    def run_held(
        self,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        control: RunControl | None = None,
        kept: Kept | None = None,
        sizes: Sequence[Any] | None = None,
    ) -> tuple[list[Any], Provenance, list[Any]]:
        """As `run`, and hold what every step reads and makes.

        Returns:
            Also the values by slot, arrays or `Copies`; none where the model ran as it was.
        """
        held: list[Any] = []
        feeds = {name: value.given_up(False) if type(value) is Copies else value for name, value in feeds.items()}
        try:
            if self.note and self._whole is not None:
                return *self.run(feeds, wanted, control, kept, sizes), []
            return *self._run_steps(feeds, wanted, control, kept, sizes, held=held), held
        except NNAdapterError as error:
            if isinstance(error, (CancelledError, GivenUpError)) or self._make_whole is None:
                raise
            return *self._run_whole(error, feeds, wanted, kept, control), []

    def _run_whole(
        self,
        error: NNAdapterError,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        kept: Kept | None,
        control: RunControl | None,
    ) -> tuple[list[Any], Provenance]:
        """The model as it was, where steps of the plan failed and nothing took their place; `error` if that fails too.

        Where the plan itself is wrong, the next run does not try it again.
        """
        with self._lock:
            if self._whole is None:
                self._whole = self._make_whole(error) if self._make_whole else None
        assert self._whole is not None and self._whole.say is not None, "somebody made it, or raised"
        try:
            outputs, provenance = self._whole.run(feeds, wanted, describe(error), kept, control)
        except CancelledError:
            raise
        except NNAdapterError:
            raise error from None
        self.transfers = provenance.transfers or None
        run = provenance.steps[0]._replace(incidents=(self._whole.say(error),))
        if isinstance(error, OtherShapeError):
            self.note = describe(error)
        return outputs, provenance._replace(steps=(run,))

    def _run_steps(
        self,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        control: RunControl | None,
        kept: Kept | None,
        sizes: Sequence[Any] | None,
        given: Given | None = None,
        failed: BaseException | None = None,
        held: list[Any] | None = None,
    ) -> tuple[list[Any], Provenance]:
        values = self._blank.copy() if held is None else held
        if held is not None:
            held.extend(self._blank)
        if self._size_class is not None and sizes is not None:
            feeds = {**feeds, **self._size_class.given(sizes)}
        for name, array in feeds.items():
            slot = self._slots.get(name)
            if slot is not None:
                values[slot] = array
        made = self._new_transfers() if self._stays or kept is not None else None
        if self._ahead is not None:
            from nnadapter.running.one_run import OneRun  # most plans wait for every step

            one = OneRun(values, made, kept or NOTHING_KEPT, control, sizes, given, held is not None)
            runs = self._ahead.run(self.steps, one)
        else:
            runs = []
            for bound in self.steps:
                if control is not None:
                    ask_before(control, bound, shared=self._shares)
                told = sizes if bound.is_told_sizes else None
                runs.append(
                    run_step(bound, values, made, kept or NOTHING_KEPT, control, told, given)
                    if failed is None
                    else after_failure(bound, failed, values, control, told, given, time.perf_counter())
                )
                for slot in () if held is not None else bound.released:
                    values[slot] = None
        if made is None:
            self.transfers = None
            return [own_value(values[self._outputs[name]], name in feeds) for name in wanted], Provenance(tuple(runs))
        outputs = [output_of(values[self._outputs[name]], name, feeds, kept, made) for name in wanted]
        self.transfers = tuple(made)
        return outputs, Provenance(tuple(runs), self.transfers)

    @property
    def slots(self) -> Mapping[str, int]:
        """Of every value, by name."""
        return self._slots

    @property
    def holding(self) -> Holding:
        """The memory of the programs and their executions, as far as the drivers say so, and between the steps."""
        holdings = [pool.holding for pool in self._pools()]
        shared = {key: nbytes for holding in holdings for key, nbytes in holding.shared_bytes.items()}
        shared.update(self._held_between())
        return Holding(sum(holding.own_bytes for holding in holdings), shared)

    def close(self) -> None:
        """Free every program, when nothing is under way any more."""
        close_all([*([self._ahead] if self._ahead is not None else []), *self._pools()])

    def close_whole(self) -> None:
        """Free what the steps do not hold, where others have those still."""
        ahead = [self._ahead] if self._ahead is not None else []
        close_all([*ahead, *([self._whole.pool] if self._whole is not None else [])])

    def _pools(self) -> list[ExecutionPool]:
        whole = [self._whole.pool] if self._whole is not None else []
        return [*(pool for bound in self.steps for pool in bound.pools), *whole]
