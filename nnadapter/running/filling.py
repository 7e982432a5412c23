"""Plans of one class of shapes whose devices compile for fixed sizes: at each sizes, segments are filled and compiled.

Judging, converting and cutting are done once for the class (`planning.opening`). What is left for new sizes is to
replay the trace, to fill in numbers, to make tables constants, and what the driver does: it is asked about the segment,
and compiles it. A program is shared by all sizes at which its segment is the same: of a language model whose cache
grows, only what reads the cache is compiled again. Programs of the host and of devices that leave sizes open serve all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Generic, TypeVar

from nnadapter.drivers.border import ask_admission, ask_supported
from nnadapter.drivers.crashes import named_call
from nnadapter.drivers.interface import Admission, Context, Program
from nnadapter.errors import FAILURES, NNAdapterError, describe
from nnadapter.ir.operand import OperandType
from nnadapter.ir.size_class import SizeClass
from nnadapter.offering.filled_parts import FillablePart
from nnadapter.offering.part import Part
from nnadapter.process.closing import close_all
from nnadapter.running.binder import Binder
from nnadapter.running.bound_step import BoundStep
from nnadapter.running.executor import CompiledPlan
from nnadapter.running.plan_memory import Holding
from partition.plan import Step
from partition.verdict import Unsupported

Build = Callable[[Step, FillablePart, Part, tuple[Any, ...]], tuple[Program, float]]
"""A step, its segment, that filled, and the numbers that it hangs on -> its program, and what compiling it took."""
_Key = tuple[int, tuple[Any, ...]]
"""The position of a step, and the numbers that its segment hangs on."""
_SHARED: tuple[Any, ...] = ()


class NotFilledError(NNAdapterError):
    """A device does not take a segment at some sizes. Nobody outside of this room sees it."""


@dataclass(frozen=True, eq=False, slots=True)
class _Made:
    """A step with its program."""

    step: BoundStep
    seconds: float
    """What compiling took."""


FilledPlan = TypeVar("FilledPlan")


class Filling(Generic[FilledPlan]):
    """The programs of one class of shapes, by sizes; usable from many threads.

    Args:
        steps: of its plan.
        fillable: those that are filled, by position.
        sizes: of the class.
        binder: of its plan.
        shared: the steps that serve all sizes, by position, and what compiling them took.
        building: begins to make programs of one plan, and gives what makes each, or raises.
        wrap: makes a plan of what was bound and of what compiling the segments took.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        fillable: Mapping[int, FillablePart],
        sizes: SizeClass | None,
        binder: Binder,
        shared: Mapping[int, tuple[BoundStep, float]],
        building: Callable[[], Build],
        wrap: Callable[[CompiledPlan, Mapping[int, float], Filling[FilledPlan]], FilledPlan],
    ) -> None:
        self._steps, self._fillable, self._binder = steps, fillable, binder
        self._building, self._wrap = building, wrap
        self.shared: Mapping[int, BoundStep] = {position: step for position, (step, _) in shared.items()}
        """The steps that serve all sizes, by position."""
        self._shared = tuple((position, _SHARED) for position in shared)
        self._made: dict[_Key, _Made] = {
            (position, _SHARED): _Made(step, seconds) for position, (step, seconds) in shared.items()
        }
        is_told = sizes is not None and bool(
            sizes.contents.names or any(step.is_told_sizes for step, _ in shared.values())
        )
        self._told = sizes if is_told else None
        self._held: dict[object, tuple[_Key, ...]] = {self: self._shared}
        """What each plan is made of; and what the class itself holds, as long as it is kept."""
        self._holders: dict[_Key, int] = dict.fromkeys(self._shared, 1)
        self._lock = Lock()

    def at(self, sizes: Sequence[Any]) -> FilledPlan:
        """The plan at some sizes of the class.

        Raises:
            NotFilledError: a device does not take its segment at these sizes.
        """
        with self._lock:
            keys = tuple([(position, part.key(sizes)) for position, part in self._fillable.items()])
            try:
                self._make([key for key in keys if key not in self._made], sizes)
            except BaseException:
                self._close_unheld()
                raise
            own = (*self._shared, *keys)
            made = [self._made[key] for key in sorted(own)]
            plan = self._binder.plan([each.step for each in made], self._told)
            filled = self._wrap(plan, {each.step.step.segment: each.seconds for each in made}, self)
            self._hold(filled, own)
            return filled

    @property
    def made(self) -> tuple[tuple[int, tuple[Any, ...], BoundStep], ...]:
        """The steps that were made for some sizes: their positions, and the numbers that they hang on."""
        with self._lock:
            return tuple(
                (position, numbers, each.step)
                for (position, numbers), each in self._made.items()
                if position in self._fillable
            )

    def told(self, sizes: Sequence[Any] | None) -> Sequence[Any] | None:
        """What runs of its plans are told of sizes: nothing where no program leaves them open."""
        return sizes if self._told is not None else None

    def holding_of(self, holder: object) -> Holding:
        """The memory of the programs of a plan, any of which other plans may have too."""
        # Without the lock, which is held while drivers compile.
        shared = dict[Hashable, int]()
        for key in self._held.get(holder, ()):
            made = self._made.get(key)
            if made is not None:
                own_bytes, shared_bytes = made.step.pool.holding
                shared.update({**shared_bytes, (id(self), key): own_bytes})
        return Holding(0, shared)

    def release(self, holder: object) -> None:
        """Close what a plan alone had."""
        with self._lock:
            for key in self._held.pop(holder, ()):
                self._holders[key] -= 1
            self._close_unheld()

    def _hold(self, holder: object, keys: tuple[_Key, ...]) -> None:
        for key in keys:
            self._holders[key] = self._holders.get(key, 0) + 1
        self._held[holder] = keys

    def _close_unheld(self) -> None:
        unheld = [key for key in self._made if not self._holders.get(key)]
        closing = []
        for key in unheld:
            self._holders.pop(key, None)
            closing += self._made.pop(key).step.pools
        close_all(closing)

    def _make(self, keys: Sequence[_Key], sizes: Sequence[Any]) -> None:
        build = self._building()
        for position, numbers in keys:
            step, segment = self._steps[position], self._fillable[position]
            try:
                part = segment.filled(sizes)
                program, seconds = build(step, segment, part, numbers)
            except NotFilledError:
                raise
            except FAILURES as error:  # a driver may raise anything; the plan of these shapes' own says what
                message = f"{step.device} fails to compile segment {step.segment}: {describe(error)}"
                raise NotFilledError(message) from error
            bound = replace(self._binder.step(position, program, part.inputs), expected=_expected(part))
            self._made[position, numbers] = _Made(bound, seconds)


class FillsPlans:
    """What holds the programs that serve all plans of a class of shapes: a session's class, or a file's."""

    filling: Filling[Any]

    @property
    def holding(self) -> Holding:
        """The memory of the programs that serve all of its plans."""
        return self.filling.holding_of(self.filling)

    def close(self) -> None:
        """Close what no plan of the class has."""
        self.filling.release(self.filling)


class SharesPrograms:
    """A plan at one set of sizes, whose programs it shares with others of its class: a session's, or a file's."""

    plan: CompiledPlan
    of: Filling[Any]

    @property
    def holding(self) -> Holding:
        """See `Filling.holding_of`."""
        return self.of.holding_of(self)

    def close(self) -> None:
        """Close what no other plan of the class has."""
        self.plan.close_whole()
        self.of.release(self)


def admission_of(context: Context, step: Step, part: Part) -> Admission:
    """What a device says of a segment that was filled.

    Raises:
        NotFilledError: it does not take it.
    """
    model = part.model
    verdicts = named_call(step.device, "supported", step.segment)(ask_supported, context, model, len(model.operations))
    admission: Admission = named_call(step.device, "admit", step.segment)(ask_admission, context, model)
    refused = next((each for each in (*verdicts, admission.verdict) if isinstance(each, Unsupported)), None)
    if refused is not None:
        raise NotFilledError(f"{step.device} does not take segment {step.segment}: {refused.detail}")
    return admission


def _expected(part: Part) -> list[Any]:
    types: list[OperandType] = [part.model.operands[index].type for index in part.model.outputs]
    return [(type_.dimensions, type_.dtype.array_type) for type_ in types]
