"""Specialization of a plan for concrete sizes, for devices that compile static shapes.

Judging, converting and cutting happen once, with symbolic sizes. For new sizes, the symbolic sizes become constants,
and the device admits and compiles each segment. Equal segments share a program, even across sizes or layers.
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
    """Segment to compile at some sizes, with the numbers that it depends on."""

    step: Step
    part: Part
    numbers: tuple[Any, ...]


Build = Callable[[Sequence[SegmentRequest]], Iterable[tuple[Program, float]]]
"""Compiles the segments of one plan; yields programs and compile times in order."""
_Key = tuple[int, tuple[Any, ...]]
"""Position of a step, and the numbers that its specialized segment depends on."""
_SHARED: _Key = (-1, ())
_BYTES_PER_PROGRAM = 7 << 10
"""Estimated bytes of a program and its step, in addition to the bytes that the driver reports."""


class SpecializationRefusedError(NNAdapterError):
    """A device refuses a segment at some sizes. Internal to this package."""


class _NoRoomError(SpecializationRefusedError):
    pass


_Plan = ref[Any]
"""Weak reference to the holder of programs: a plan, or the `SpecializedPrograms` itself."""


class _Holder(NamedTuple):
    plan: _Plan
    """The same object as the dict key, since a dead weakref equals only itself."""
    keys: tuple[_Key, ...]


_NO_HOLDER = _Holder(ref(SpecializationRefusedError), ())


class _Release(NamedTuple):
    """Unfinished update: the plan to remove from the holders, if any, and the programs' new holder counts."""

    plan: _Plan | None
    holders: Mapping[_Key, int]


class _ProgramSteps(NamedTuple):
    steps: tuple[BoundStep, ...]
    """The first one closes the program."""
    seconds: float


SpecializedPlan = TypeVar("SpecializedPlan")


class SpecializedPrograms(Generic[SpecializedPlan]):
    """Programs of a plan template, specialized for all sizes so far; equal segments share one. Thread-safe.

    Args:
        specializable: segments to specialize, by position.
        shared: steps that serve all sizes, by position, each with its compile time.
        wrap: makes the plan for some sizes from steps and compile times by segment.
    """

    def __init__(
        self,
        specializable: Mapping[int, SpecializablePart],
        sizes: GuardedShapes | None,
        binder: Binder,
        shared: Mapping[int, tuple[BoundStep, float]],
        build: Build,
        wrap: Callable[[CompiledPlan, Mapping[int, float], SpecializedPrograms[SpecializedPlan]], SpecializedPlan],
    ) -> None:
        steps = binder.steps
        self._steps, self._specializable, self._binder = steps, specializable, binder
        kinds: dict[Hashable, list[int]] = {}
        for position, part in specializable.items():
            kinds.setdefault((steps[position].device, part.model.kind), []).append(position)
        self._duplicates = {first: tuple(duplicates) for first, *duplicates in kinds.values()}
        """Positions of segments to compile -> positions of equal segments."""
        for device in {steps[position].device for position in self._duplicates}:
            group_specializations(
                [specializable[position] for position in self._duplicates if steps[position].device == device]
            )
        self._build, self._wrap = build, wrap
        self.shared: Mapping[int, BoundStep] = {position: step for position, (step, _) in shared.items()}
        self._shared_keys = (_SHARED,) if shared else ()
        self._programs: dict[_Key, _ProgramSteps] = dict.fromkeys(
            self._shared_keys, _ProgramSteps(tuple(self.shared.values()), 0.0)
        )
        self._shared_steps: list[Any] = [self.shared.get(position) for position in range(len(steps))]
        self._seconds = {step.segment: 0.0 for step in steps}
        self._seconds.update({step.step.segment: seconds for step, seconds in shared.values()})
        takes_sizes = sizes is not None and bool(
            sizes.contents.names or any(step.takes_sizes for step, _ in shared.values())
        )
        self._run_guards = sizes if takes_sizes else None
        self._dead_plans = deque[_Plan]()
        """Garbage-collected plans, which the next call releases."""
        self._holders: dict[_Plan, _Holder] = {ref(self): _Holder(ref(self), self._shared_keys)}
        self._unused = set[_Plan]()
        self._holder_counts: dict[_Key, int] = dict.fromkeys(self._shared_keys, 1)
        self._release: _Release | None = None
        """Release that an interrupt broke off; the next call completes it."""
        self._lock = new_lock()

    def at(self, sizes: Sequence[Any], make_room: Callable[[], bool]) -> SpecializedPlan:
        """Return the plan for some sizes; it reuses other plans' programs.

        If memory runs out, `make_room` may close plans of this template. Raises SpecializationRefusedError if a device
        refuses a segment.
        """
        while True:
            try:
                return self._at(sizes)
            except _NoRoomError:
                if not make_room():
                    raise

    def _at(self, sizes: Sequence[Any]) -> SpecializedPlan:
        with self._lock:
            self._finish_releases()
            keys = tuple([(position, self._specializable[position].key(sizes)) for position in self._duplicates])
            all_keys = (*self._shared_keys, *keys)
            holder_counts = {key: self._holder_counts.get(key, 0) for key in all_keys}
            self._release = _Release(None, holder_counts)  # set first: an interrupt may come at any time
            try:
                self._make([key for key in keys if key not in self._programs], sizes)
                steps, seconds = self._shared_steps.copy(), self._seconds.copy()
                for compiled in map(self._programs.__getitem__, keys):
                    seconds[compiled.steps[0].step.segment] = compiled.seconds
                    for step in compiled.steps:
                        steps[step.step.segment] = step
                plan = self._wrap(self._binder.plan(steps, self._run_guards), seconds, self)
                self._hold(plan, all_keys, holder_counts)
            except BaseException:
                self._finish_releases()
                raise
            self._release = None
            return plan

    @property
    def compiled_steps(self) -> tuple[tuple[int, tuple[Any, ...], BoundStep], ...]:
        with self._lock:
            self._finish_releases()
            return tuple(
                (step.step.segment, numbers, step)
                for (position, numbers), entry in self._programs.items()
                if position in self._specializable
                for step in entry.steps
            )

    def run_sizes(
        self, guards: GuardedShapes | None, sizes: Sequence[Any] | None, shapes: Shapes
    ) -> Sequence[Any] | None:
        """Return the symbolic sizes that a run passes to programs; None if no program takes them.

        Programs may have guards other than the matched ones. Each set of guards numbers the sizes differently.
        """
        if self._run_guards is None or self._run_guards is guards:
            return sizes if self._run_guards is not None else None
        return self._run_guards.sizes(shapes)

    def holding_of(self, holder: object) -> Holding:
        """Return the memory of a plan's programs. Other plans may share all of them."""
        # without the lock, which is held while drivers compile
        keys = self._holders.get(ref(holder), _NO_HOLDER).keys
        entries = [entry for entry in map(self._programs.get, keys) if entry is not None]
        is_unused = ref(holder) in self._unused
        # while it is the newest plan, its memory is not counted
        self._unused.discard(ref(holder))
        shared: dict[Hashable, int] = {**self._binder.held_between()}
        for entry in entries:
            own_bytes = 0
            for step in entry.steps:
                pool_bytes, shared_bytes = step.pool.last_holding if is_unused else step.pool.holding
                own_bytes += pool_bytes + _BYTES_PER_PROGRAM
                if shared_bytes:
                    shared.update(shared_bytes)
            shared[entry.steps[0].pool] = own_bytes
        return Holding(0, shared)

    def release(self, holder: object) -> None:
        with self._lock:
            self._finish_releases()
            self._release_plan(ref(holder))

    def _hold(self, holder: object, keys: tuple[_Key, ...], holder_counts: Mapping[_Key, int]) -> None:
        holder_ref = ref(holder, self._dead_plans.append)  # a C function: it takes no lock, and no interrupt splits it
        self._release = _Release(holder_ref, holder_counts)
        self._unused.add(holder_ref)
        self._holders[holder_ref] = _Holder(holder_ref, keys)
        self._holder_counts.update({key: number + 1 for key, number in holder_counts.items()})

    def _release_plan(self, holder: _Plan) -> None:
        plan, keys = self._holders.get(holder, _NO_HOLDER)
        self._release = _Release(plan, {key: self._holder_counts[key] - 1 for key in keys})
        self._finish_release()

    def _finish_releases(self) -> None:
        self._finish_release()
        while self._dead_plans:
            self._release_plan(self._dead_plans[0])
            self._dead_plans.popleft()

    def _finish_release(self) -> None:
        """Close programs without holders. Idempotent, so it can be repeated after an interrupt."""
        if self._release is None:
            return
        holder, holder_counts = self._release
        self._holder_counts.update(holder_counts)
        if holder is not None:
            self._unused.discard(holder)
            self._holders.pop(holder, None)
        unheld = [key for key, number in holder_counts.items() if not number]
        unused = [self._programs[key] for key in unheld if key in self._programs]
        close_all([pool for entry in unused for step in reversed(entry.steps) for pool in step.pools])
        for key in unheld:
            self._programs.pop(key, None)
            self._holder_counts.pop(key, None)
        self._release = None

    def _make(self, keys: Sequence[_Key], sizes: Sequence[Any]) -> None:
        steps, specializable = self._steps, self._specializable
        try:
            requests = [
                SegmentRequest(steps[position], specializable[position].specialize(sizes), numbers)
                for position, numbers in keys
            ]
            for key, (_, part, _), (program, seconds) in zip(keys, requests, self._build(requests), strict=True):
                try:
                    self._programs[key] = _ProgramSteps(tuple(self._steps_with(program, key[0], part)), seconds)
                except BaseException:
                    if key not in self._programs:
                        close_all([program])
                    raise
        except SpecializationRefusedError:
            raise
        except FAILURES as error:  # a driver may raise anything; a static plan for these shapes reports the cause
            kind = _NoRoomError if isinstance(error, OutOfMemoryError) else SpecializationRefusedError
            raise kind(f"a segment failed to compile: {describe(error)}") from error

    def _steps_with(self, program: Program, first: int, part: Part) -> Iterator[BoundStep]:
        expected = _expected(part.model)
        yield self._binder.step(first, program, part.inputs, expected=expected)
        for position in self._duplicates[first]:
            inputs = self._specializable[position].inputs
            yield self._binder.step(position, SameProgram(program), inputs, expected=expected)


def check_admitted(context: Context, calls: NamedCalls, part: Part) -> None:
    """Raise SpecializationRefusedError if a device refuses a specialized segment."""
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
