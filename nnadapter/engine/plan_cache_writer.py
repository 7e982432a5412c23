"""Writer of a session's plans to its cache: new plans, and those of the previous entry."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from nnadapter.drivers.capability import ModelForm
from nnadapter.engine.bound_steps import BoundStep
from nnadapter.engine.compiled import Compiled
from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.engine.messages import CONSTANT, MESSAGES, PROGRAM
from nnadapter.engine.observed import NO_PLAN_KEPT
from nnadapter.engine.plan_entries import FACTS, MOST_PLANS, LinkedContainer, LinkingWriter, Place, facts, facts_of
from nnadapter.engine.plan_source import OriginalModelShapes
from nnadapter.engine.saving import ReportMaker, Target, add_message, message_of
from nnadapter.engine.tracing import driver_program
from nnadapter.errors import CompiledModelError, describe
from nnadapter.files.messages import Message
from nnadapter.onnx.preparation.branch_decisions import MOST_FORKS, Truths
from nnadapter.onnx.schemas import is_external
from nnadapter.planning.bounds import Bounds
from nnadapter.planning.setting import Setting
from nnadapter.process.resources import new_lock
from nnadapter.store.container import Container, ContainerWriter
from nnadapter.store.folder import Entry, warn_unwritten

if TYPE_CHECKING:
    from nnadapter.engine.model_source import ModelPlanSource


Plans = Sequence[Compiled]
_PARTS = {"Contents": ("part",), "Segment": ("part",), "Program": ("part",), "Plan": ("report",)}
_MOST_LEFT = 64


def write_plans(place: Place, plans: Plans, source: ModelPlanSource, make_report: ReportMaker) -> str:
    """Write plans to the cache; return the reason if they cannot be stored."""
    before, started = place.opened(), time.perf_counter()

    def fill(writer: ContainerWriter) -> None:
        linking = LinkingWriter(writer)
        devices = [device.name for device in source.setting.devices if not device.is_spare]
        linking.add(FACTS, facts(devices, _all_left(before, source)))
        target = Target(
            linking, make_report, lambda bound: _kept(place, bound, source.setting, linking), stands_alone=False
        )
        message = message_of(plans, source, target)
        if isinstance(before, CompiledFile):
            _carry(before, message, linking)
        add_message(message, linking)
        linking.finish()

    return place.folder.keep_parts(place.key, fill, time.perf_counter() - started)


def _kept(place: Place, bound: BoundStep, setting: Setting, writer: LinkingWriter) -> int | None:
    cache = setting.by_name[bound.step.device].cache
    key = None if cache is None else cache.entry(driver_program(bound.pool.program))
    entry = None if key is None else place.folder.named(key.name)
    return writer.link(PROGRAM, key.name, entry) if key is not None and isinstance(entry, Entry) else None


def _all_left(old: CompiledFile | str, source: ModelPlanSource) -> OriginalModelShapes:
    """Return the selections without gain, of a source and of the previous entry."""
    left = dict(source.original_model_shapes)
    before = facts_of(old.container)[1] if isinstance(old, CompiledFile) else {}
    for truths, shapes in before.items():
        now = left.get(truths, frozenset())
        if len(left) < _MOST_LEFT or truths in left:
            left[truths] = None if shapes is None or now is None else frozenset([*now, *shapes][:_MOST_LEFT])
    return left


def _carry(old: CompiledFile, message: Message, writer: LinkingWriter) -> None:
    """Add the plans of the previous entry that are not in the message, up to the limit."""
    there = {_identity(plan) for plan in message.plans}
    forks = _with_room(old.message, {tuple(fork.truths) for fork in message.forks})
    for fork in forks:
        message.forks.add().CopyFrom(_carried(fork, old.container, writer))
    conditions = {tuple(fork.truths): len(fork.conditions) for fork in message.forks}
    for plan in old.message.plans:
        is_new = _identity(plan) not in there and _is_led_to(plan, conditions)
        if len(message.plans) < MOST_PLANS and is_new:
            with suppress(CompiledModelError):
                carried = _carried(plan, old.container, writer)
                message.plans.add().CopyFrom(carried)
                _add_devices(old.message, carried, message)


def _with_room(old: Message, there: set[Truths]) -> list[Message]:
    """Return the forks to carry over, up to the limit: those that lead to plans first."""
    led_to = [tuple(plan.truths) for plan in old.plans]

    def leads_nowhere(fork: Message) -> bool:
        before = tuple(fork.truths)
        return not any(truths[: len(before)] == before and truths != before for truths in led_to)

    # the sort is stable, and a fork leads to plans if its successor does
    forks = sorted((fork for fork in old.forks if tuple(fork.truths) not in there), key=leads_nowhere)
    return forks[: max(MOST_FORKS - len(there), 0)]


def _is_led_to(plan: Message, conditions: Mapping[Truths, int]) -> bool:
    truths, before = tuple(plan.truths), 0
    while before < len(truths) and truths[:before] in conditions:
        before += conditions[truths[:before]]
    return before == len(truths)


def _carried(message: Message, old: Container, writer: LinkingWriter) -> Message:
    """Copy a message with its parts, and renumber them."""
    assert isinstance(old, LinkedContainer), "entries of plans are read so"
    carried = MESSAGES.new(message.DESCRIPTOR.name)
    carried.CopyFrom(message)
    for submessage in _messages(carried):
        name = submessage.DESCRIPTOR.name
        for field in _PARTS.get(name, ()):
            setattr(submessage, field, old.brought(getattr(submessage, field), writer))
        if name == "Segment" and submessage.form == ModelForm.IR.value:  # its constants are referenced by hash
            for number, part in enumerate(old.parts):
                if part.kind == CONSTANT:
                    old.brought(number, writer)
    return carried


def _add_devices(old: Message, plan: Message, message: Message) -> None:
    named, used = {device.name for device in message.devices}, {step.device for step in plan.steps}
    for device in old.devices:
        if device.name in used - named:
            message.devices.add().CopyFrom(device)


def _identity(plan: Message) -> tuple[bytes, bool, tuple[bool, ...]]:
    shapes = b"".join(row.SerializeToString(deterministic=True) for row in plan.shapes)
    return shapes, plan.HasField("open"), tuple(plan.truths)


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for submessage in (value,) if hasattr(value, "DESCRIPTOR") else value:
                yield from _messages(submessage)


_MOST_WRITES = 16
_CHANGED = "the model or a file of options changed meanwhile"
_BEGINNING = -1


class PlanCacheWriter:
    """Writer of a source's new plans to the session's cache. Thread-safe.

    `is_unchanged` returns whether model and options still have the key of the entry.
    """

    def __init__(
        self,
        place: Place,
        is_unchanged: Callable[[], bool],
        why: str,
        make_report: ReportMaker,
        *,
        verifies: bool,
    ) -> None:
        self._place, self._is_unchanged, self._make_report = place, is_unchanged, make_report
        self._verifies = verifies
        self.note = f"{NO_PLAN_KEPT}: {why}"
        self._looked_at, self._writes = _BEGINNING, 0
        self._written: WeakKeyDictionary[Compiled, Bounds | None] = WeakKeyDictionary()
        self._writing = new_lock()

    def begin(self, source: ModelPlanSource) -> None:
        """Write the plans of a new source; none if external converters are used for its model."""
        nodes = source.prepared.nodes
        if any(is_external(node.domain, node.op_type, node.since_version) for node in nodes):
            self.note += "; plans of a model with operators of external packages are not cached"
            self._writes = _MOST_WRITES  # another version of the package may convert differently
        self.write_new(source)

    def write_new(self, source: ModelPlanSource) -> None:
        """Write new plans of a source. One thread writes, others continue without waiting."""
        while _changes(source) != self._looked_at and self._writing.acquire(blocking=False):
            self._write(source)

    def _is_checked(self, source: ModelPlanSource, plan: Compiled) -> bool:
        return not self._verifies or (source.checks is not None and source.checks.is_checked(plan))

    def _write(self, source: ModelPlanSource) -> None:
        """Write new plans, then release the lock, which the caller has acquired."""
        try:
            self._looked_at = _changes(source)
            kept = [plan for plan in source.plans_kept if _is_as_planned(plan)]
            plans = {plan: _bounds_of(plan) for plan in kept if self._is_checked(source, plan)}
            if all(plan in self._written and self._written[plan] is bounds for plan, bounds in plans.items()):
                return
            if self._writes >= _MOST_WRITES or len(plans) > MOST_PLANS:
                return
            self._written.update(plans)
            self._writes += 1
            is_still = self._is_unchanged()
            why = write_plans(self._place, list(plans), source, self._make_report) if is_still else _CHANGED
        except Exception as error:  # noqa: BLE001  the cache never fails a session; the reason is reported
            why = describe(error)
        finally:
            self._writing.release()
        if why:
            self.note += f"; its plan is not cached: {why}"
            warn_unwritten(why)


def _bounds_of(compiled: Compiled) -> Bounds | None:
    return None if compiled.shapes is None else compiled.shapes.bounds


def _changes(source: ModelPlanSource) -> int:
    """Return a number that grows when plans are made, checked, or serve more shapes."""
    checked = 0 if source.checks is None else source.checks.count
    return source.plans.made + source.widened + checked


def _is_as_planned(compiled: Compiled) -> bool:
    """Return True if a plan compiled and ran without failures, and was not chosen by measurement."""
    steps = compiled.plan.steps if compiled.programs is None else compiled.programs.shared.values()
    is_measured = len(compiled.timed) > 1
    return not (compiled.notes or is_measured or any(bound.failures for bound in steps))
