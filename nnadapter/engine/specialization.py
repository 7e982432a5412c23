"""Specializations of a plan for concrete sizes, for devices that compile fixed shapes.

Judging, converting and cutting are done once, for symbolic sizes (`planning.dynamic_shapes`). For new sizes the trace
is replayed, numbers are filled in, and tables become constants. Then the device is asked about each segment and
compiles it. All sizes at which a segment is the same share its program: of a language model whose cache grows, only
what reads the cache is compiled again. Segments without constants that differ in names alone, as those of equal
layers, share one program. Programs of the host and of devices with dynamic shapes serve all sizes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ref

from nnadapter.candidates.part import Part, SpecializablePart, group_specializations
from nnadapter.drivers import Admission, Context, Program, Unsupported
from nnadapter.drivers.boundary import OutputCheck, ask_admission, ask_supported
from nnadapter.drivers.failures import NamedCalls
from nnadapter.engine.binder import Binder
from nnadapter.engine.bound_steps import BoundStep
from nnadapter.engine.execution_pool import SameProgram
from nnadapter.engine.executor import CompiledPlan
from nnadapter.engine.plan_store import Holding
from nnadapter.errors import FAILURES, NNAdapterError, OutOfMemoryError, describe
from nnadapter.ir.structure import GuardedShapes, InputOutputTypes, SpecializedModel
from nnadapter.onnx.signature import Shapes
from nnadapter.process.resources import close_all, new_lock
from partition.plan import Step


class SegmentRequest(NamedTuple):
    """A segment of a plan in the making."""

    step: Step
    part: Part
    """It, filled."""
    numbers: tuple[Any, ...]
    """What it hangs on."""


Build = Callable[[Sequence[SegmentRequest]], Iterable[tuple[Program, float]]]
"""Segments of one plan -> their programs, one after the other, and what compiling each took; or raises."""
_Key = tuple[int, tuple[Any, ...]]
"""The position of a step, and the numbers that its segment hangs on."""
_SHARED: _Key = (-1, ())
"""Of the steps that serve all sizes."""
_BYTES_PER_PROGRAM = 7 << 10
"""What a program, its execution and its step take beside what the driver tells; measured on 6,500 programs of a driver
in C that tells nothing."""


class SpecializationRefusedError(NNAdapterError):
    """A device does not take a segment at some sizes. Nobody outside of this room sees it."""


class _NoRoomError(SpecializationRefusedError):
    """The device has no room for it now."""


_Plan = ref[Any]
"""A plan, or the class, as what has programs."""


class _Holder(NamedTuple):
    """What has programs."""

    plan: _Plan
    """The very key that it is found by: others are not equal to it any more when the plan is gone."""
    keys: tuple[_Key, ...]


_NOBODY = _Holder(ref(SpecializationRefusedError), ())
"""Whoever has none."""


class _Leaving(NamedTuple):
    """A plan that goes, or did not come to be."""

    plan: _Plan | None
    holders: Mapping[_Key, int]
    """How many have its programs without it."""


class _Made(NamedTuple):
    """The steps that have one program."""

    steps: tuple[BoundStep, ...]
    """The first closes it."""
    seconds: float
    """What compiling took."""


FilledPlan = TypeVar("FilledPlan")


class SpecializedPrograms(Generic[FilledPlan]):
    """The programs of one class of shapes, by sizes; usable from many threads.

    Args:
        steps: of its plan.
        fillable: those that are filled, by position.
        sizes: of the class.
        binder: of its plan.
        shared: the steps that serve all sizes, by position, and what compiling them took.
        build: makes programs.
        wrap: makes a plan of what was bound and of what compiling the segments took.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        fillable: Mapping[int, SpecializablePart],
        sizes: GuardedShapes | None,
        binder: Binder,
        shared: Mapping[int, tuple[BoundStep, float]],
        build: Build,
        wrap: Callable[[CompiledPlan, Mapping[int, float], SpecializedPrograms[FilledPlan]], FilledPlan],
    ) -> None:
        self._steps, self._fillable, self._binder = steps, fillable, binder
        kinds: dict[Hashable, list[int]] = {}
        for position, part in fillable.items():
            kinds.setdefault((steps[position].device, part.model.kind), []).append(position)
        self._same = {first: tuple(others) for first, *others in kinds.values()}
        """Positions of segments that are filled -> those of others that are the same, and have their programs."""
        for device in {steps[position].device for position in self._same}:
            group_specializations([fillable[position] for position in self._same if steps[position].device == device])
        self._build, self._wrap = build, wrap
        self.shared: Mapping[int, BoundStep] = {position: step for position, (step, _) in shared.items()}
        """The steps that serve all sizes, by position."""
        self._shared = (_SHARED,) if shared else ()
        self._made: dict[_Key, _Made] = dict.fromkeys(self._shared, _Made(tuple(self.shared.values()), 0.0))
        self._bound: list[Any] = [self.shared.get(position) for position in range(len(steps))]
        """By position, the steps that serve all sizes; None for the others."""
        self._seconds = {step.segment: 0.0 for step in steps}
        """What compiling took of the plan without those."""
        self._seconds.update({step.step.segment: seconds for step, seconds in shared.values()})
        is_told = sizes is not None and bool(
            sizes.contents.names or any(step.takes_sizes for step, _ in shared.values())
        )
        self._told = sizes if is_told else None
        self._gone = deque[_Plan]()
        """Plans that nobody has any more, without having released them: an interrupt came as they were handed over."""
        self._held: dict[_Plan, _Holder] = {ref(self): _Holder(ref(self), self._shared)}
        """What each plan is made of; and what the class itself holds, as long as it is kept."""
        self._unused = set[_Plan]()
        """Plans that nobody asked yet what they hold: they did not run."""
        self._holders: dict[_Key, int] = dict.fromkeys(self._shared, 1)
        self._leaving: _Leaving | None = None
        """What an interrupt kept from going; whoever comes next lets it go."""
        self._lock = new_lock()

    def at(self, sizes: Sequence[Any], make_room: Callable[[], bool]) -> FilledPlan:
        """The plan at some sizes of the class.

        Args:
            sizes: the sizes.
            make_room: see `PlanDevices`; what it closes may be a plan of this class.

        Raises:
            SpecializationRefusedError: a device does not take its segment at these sizes.
        """
        while True:
            try:
                return self._at(sizes)
            except _NoRoomError:
                if not make_room():
                    raise

    def _at(self, sizes: Sequence[Any]) -> FilledPlan:
        with self._lock:
            self._close_left()
            keys = tuple([(position, self._fillable[position].key(sizes)) for position in self._same])
            own = (*self._shared, *keys)
            before = {key: self._holders.get(key, 0) for key in own}
            self._leaving = _Leaving(None, before)  # first: an interrupt may come at any time
            try:
                self._make([key for key in keys if key not in self._made], sizes)
                steps, seconds = self._bound.copy(), self._seconds.copy()
                for made in map(self._made.__getitem__, keys):
                    seconds[made.steps[0].step.segment] = made.seconds
                    for step in made.steps:
                        steps[step.position] = step
                filled = self._wrap(self._binder.plan(steps, self._told), seconds, self)
                self._hold(filled, own, before)
            except BaseException:
                self._close_left()
                raise
            self._leaving = None
            return filled

    @property
    def made(self) -> tuple[tuple[int, tuple[Any, ...], BoundStep], ...]:
        """The steps that were made for some sizes: their positions, and the numbers that they hang on."""
        with self._lock:
            self._close_left()
            return tuple(
                (step.position, numbers, step)
                for (position, numbers), entry in self._made.items()
                if position in self._fillable
                for step in entry.steps
            )

    def run_sizes(
        self, guards: GuardedShapes | None, sizes: Sequence[Any] | None, shapes: Shapes
    ) -> Sequence[Any] | None:
        """Return the symbolic sizes that programs get in a run; None if none takes them.

        Args:
            guards: that were matched.
            sizes: the symbolic sizes by these guards.
            shapes: of the inputs, from which sizes are computed by other guards: drivers number them on their own.
        """
        if self._told is None or self._told is guards:
            return sizes if self._told is not None else None
        return self._told.sizes(shapes)

    def holding_of(self, holder: object) -> Holding:
        """The memory of the programs of a plan, any of which other plans may have too."""
        # Without the lock, which is held while drivers compile.
        keys = self._held.get(ref(holder), _NOBODY).keys
        every = [entry for entry in map(self._made.get, keys) if entry is not None]
        is_unused = ref(holder) in self._unused
        self._unused.discard(ref(holder))  # as long as it is the newest, its own counts for nothing; then it is asked
        shared: dict[Hashable, int] = {**self._binder.held_between()}
        for entry in every:
            own_bytes = 0
            for step in entry.steps:
                told_bytes, shared_bytes = step.pool.told if is_unused else step.pool.holding
                own_bytes += told_bytes + _BYTES_PER_PROGRAM
                if shared_bytes:
                    shared.update(shared_bytes)
            shared[entry.steps[0].pool] = own_bytes
        return Holding(0, shared)

    def release(self, holder: object) -> None:
        """Close what a plan alone had."""
        with self._lock:
            self._close_left()
            self._let_go(ref(holder))

    def _hold(self, holder: object, keys: tuple[_Key, ...], before: Mapping[_Key, int]) -> None:
        held = ref(holder, self._gone.append)  # of C: it waits for no lock, and no interrupt comes into it
        self._leaving = _Leaving(held, before)
        self._unused.add(held)
        self._held[held] = _Holder(held, keys)
        self._holders.update({key: number + 1 for key, number in before.items()})

    def _let_go(self, holder: _Plan) -> None:
        plan, keys = self._held.get(holder, _NOBODY)
        self._leaving = _Leaving(plan, {key: self._holders[key] - 1 for key in keys})
        self._close_leaving()

    def _close_left(self) -> None:
        """Close what was left by interrupts."""
        self._close_leaving()
        while self._gone:
            self._let_go(self._gone[0])
            self._gone.popleft()

    def _close_leaving(self) -> None:
        """Close the programs that no plan has without the one that goes; done again, it does the rest."""
        if self._leaving is None:
            return
        holder, after = self._leaving
        self._holders.update(after)
        if holder is not None:
            self._unused.discard(holder)
            self._held.pop(holder, None)
        unheld = [key for key, number in after.items() if not number]
        going = [self._made[key] for key in unheld if key in self._made]
        close_all([pool for entry in going for step in reversed(entry.steps) for pool in step.pools])
        for key in unheld:
            self._made.pop(key, None)
            self._holders.pop(key, None)
        self._leaving = None

    def _make(self, keys: Sequence[_Key], sizes: Sequence[Any]) -> None:
        steps, fillable = self._steps, self._fillable
        try:
            wanted = [
                SegmentRequest(steps[position], fillable[position].specialize(sizes), numbers)
                for position, numbers in keys
            ]
            for key, (_, part, _), (program, seconds) in zip(keys, wanted, self._build(wanted), strict=True):
                try:
                    self._made[key] = _Made(tuple(self._steps_with(program, key[0], part)), seconds)
                except BaseException:
                    if key not in self._made:
                        close_all([program])
                    raise
        except SpecializationRefusedError:
            raise
        except FAILURES as error:  # a driver may raise anything; the plan of these shapes' own says what
            kind = _NoRoomError if isinstance(error, OutOfMemoryError) else SpecializationRefusedError
            raise kind(f"a segment is not compiled: {describe(error)}") from error

    def _steps_with(self, program: Program, first: int, part: Part) -> Iterator[BoundStep]:
        """The steps whose segments are this one, or the same but for names."""
        expected = _expected(part.model)
        yield self._binder.step(first, program, part.inputs, expected=expected)
        for position in self._same[first]:
            inputs = self._fillable[position].inputs
            yield self._binder.step(position, SameProgram(program), inputs, expected=expected)


def check_admitted(context: Context, calls: NamedCalls, part: Part) -> None:
    """Ask a device about a segment that was filled.

    Raises:
        SpecializationRefusedError: it does not take it.
    """
    model = part.model
    verdicts = calls["supported"](ask_supported, context, model, model.operation_count)
    admission: Admission = calls["admit"](ask_admission, context, model)
    for verdict in (*verdicts, admission.verdict):
        if isinstance(verdict, Unsupported):
            raise SpecializationRefusedError(f"{calls.device} does not take a segment at these sizes: {verdict.detail}")


def _expected(model: SpecializedModel) -> OutputCheck:
    expected: OutputCheck = model.prepare_signature("expected", _check)
    return expected


def _check(border: InputOutputTypes) -> OutputCheck:
    _, outputs = border
    return [(type_.dimensions, type_.dtype.array_type) for type_ in outputs]
