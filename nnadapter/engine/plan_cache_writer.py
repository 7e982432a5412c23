"""Writer of a session's plans to its cache."""

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
from nnadapter.engine.execution_pool import driver_program
from nnadapter.engine.messages import CONSTANT, MESSAGES, PROGRAM
from nnadapter.engine.observed import NO_PLAN_KEPT
from nnadapter.engine.plan_entries import FACTS, MOST_PLANS, LinkedContainer, LinkingWriter, Place, facts, read_facts
from nnadapter.engine.plan_source import OriginalModelShapes
from nnadapter.engine.saving import ReportMaker, Target, add_message, message_of
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
    """Add plans to a cache entry; return the reason if that fails."""
    previous, started = place.open_file(), time.perf_counter()

    def fill(writer: ContainerWriter) -> None:
        linking = LinkingWriter(writer)
        devices = [device.name for device in source.setting.devices if not device.is_spare]
        linking.add(FACTS, facts(devices, _merged_shapes(previous, source)))
        target = Target(
            linking, make_report, lambda bound: _linked(place, bound, source.setting, linking), stands_alone=False
        )
        message = message_of(plans, source, target)
        if isinstance(previous, CompiledFile):
            _carry(previous, message, linking)
        add_message(message, linking)
        linking.finish()

    return place.folder.keep_parts(place.key, fill, time.perf_counter() - started)


def _linked(place: Place, bound: BoundStep, setting: Setting, writer: LinkingWriter) -> int | None:
    cache = setting.by_name[bound.step.device].cache
    key = None if cache is None else cache.entry(driver_program(bound.pool.program))
    entry = None if key is None else place.folder.named(key.name)
    return writer.link(PROGRAM, key.name, entry) if key is not None and isinstance(entry, Entry) else None


def _merged_shapes(previous: CompiledFile | str, source: ModelPlanSource) -> OriginalModelShapes:
    merged = dict(source.original_model_shapes)
    previous_shapes = read_facts(previous.container)[1] if isinstance(previous, CompiledFile) else {}
    for truths, shapes in previous_shapes.items():
        current = merged.get(truths, frozenset())
        if len(merged) < _MOST_LEFT or truths in merged:
            merged[truths] = None if shapes is None or current is None else frozenset([*current, *shapes][:_MOST_LEFT])
    return merged


def _carry(previous: CompiledFile, message: Message, writer: LinkingWriter) -> None:
    """Add to a message the previous entry's plans that it lacks, up to the limit."""
    written = {_identity(plan) for plan in message.plans}
    forks = _with_room(previous.message, {tuple(fork.truths) for fork in message.forks})
    for fork in forks:
        message.forks.add().CopyFrom(_copied_message(fork, previous.container, writer))
    conditions = {tuple(fork.truths): len(fork.conditions) for fork in message.forks}
    for plan in previous.message.plans:
        is_new = _identity(plan) not in written and _is_led_to(plan, conditions)
        if len(message.plans) < MOST_PLANS and is_new:
            with suppress(CompiledModelError):
                copied = _copied_message(plan, previous.container, writer)
                message.plans.add().CopyFrom(copied)
                _add_devices(previous.message, copied, message)


def _with_room(previous: Message, written: set[Truths]) -> list[Message]:
    """Return the forks of `previous` that are not `written`, up to the limit. Forks that lead to a plan come first."""
    led_to = [tuple(plan.truths) for plan in previous.plans]

    def leads_nowhere(fork: Message) -> bool:
        fork_truths = tuple(fork.truths)
        return not any(truths[: len(fork_truths)] == fork_truths and truths != fork_truths for truths in led_to)

    # the sort is stable, and a fork leads to plans if its successor does
    forks = sorted((fork for fork in previous.forks if tuple(fork.truths) not in written), key=leads_nowhere)
    return forks[: max(MOST_FORKS - len(written), 0)]


def _is_led_to(plan: Message, conditions: Mapping[Truths, int]) -> bool:
    truths, position = tuple(plan.truths), 0
    while position < len(truths) and truths[:position] in conditions:
        position += conditions[truths[:position]]
    return position == len(truths)


def _copied_message(message: Message, container: Container, writer: LinkingWriter) -> Message:
    assert isinstance(container, LinkedContainer), "entries of plans are read so"
    copied = MESSAGES.new(message.DESCRIPTOR.name)
    copied.CopyFrom(message)
    for submessage in _messages(copied):
        name = submessage.DESCRIPTOR.name
        for field in _PARTS.get(name, ()):
            setattr(submessage, field, container.copy_part(getattr(submessage, field), writer))
        if name == "Segment" and submessage.form == ModelForm.IR.value:  # its constants are referenced by hash
            for number, part in enumerate(container.parts):
                if part.kind == CONSTANT:
                    container.copy_part(number, writer)
    return copied


def _add_devices(previous: Message, plan: Message, message: Message) -> None:
    named, used_devices = {device.name for device in message.devices}, {step.device for step in plan.steps}
    for device in previous.devices:
        if device.name in used_devices - named:
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
    """Writer of a plan source's new plans to the session's cache. Thread-safe.

    `is_unchanged` returns whether model and options still have the entry's key. `reason` is why the session uses no
    cached plan. With `verifies`, only plans with checked results are written.
    """

    def __init__(
        self,
        place: Place,
        is_unchanged: Callable[[], bool],
        reason: str,
        make_report: ReportMaker,
        *,
        verifies: bool,
    ) -> None:
        self._place, self._is_unchanged, self._make_report = place, is_unchanged, make_report
        self._verifies = verifies
        self.note = f"{NO_PLAN_KEPT}: {reason}"
        self._looked_at, self._writes = _BEGINNING, 0
        self._written: WeakKeyDictionary[Compiled, Bounds | None] = WeakKeyDictionary()
        self._writing = new_lock()

    def begin(self, source: ModelPlanSource) -> None:
        """Write the plans of a new source, unless external packages convert its operators."""
        nodes = source.prepared.nodes
        if any(is_external(node.domain, node.op_type, node.since_version) for node in nodes):
            self.note += "; plans of a model with operators of external packages are not cached"
            self._writes = _MOST_WRITES  # another version of the package may convert differently
        self.write_new(source)

    def write_new(self, source: ModelPlanSource) -> None:
        """Write the plans made since the last call, unless a thread is writing."""
        while _changes(source) != self._looked_at and self._writing.acquire(blocking=False):
            self._write(source)

    def _is_checked(self, source: ModelPlanSource, plan: Compiled) -> bool:
        return not self._verifies or (source.checks is not None and source.checks.is_checked(plan))

    def _write(self, source: ModelPlanSource) -> None:
        """Write new plans, then release the lock, which the caller has acquired."""
        try:
            self._looked_at = _changes(source)
            cached = [plan for plan in source.plans_kept if _is_as_planned(plan)]
            plans = {plan: _bounds_of(plan) for plan in cached if self._is_checked(source, plan)}
            if all(plan in self._written and self._written[plan] is bounds for plan, bounds in plans.items()):
                return
            if self._writes >= _MOST_WRITES or len(plans) > MOST_PLANS:
                return
            self._written.update(plans)
            self._writes += 1
            is_still = self._is_unchanged()
            reason = write_plans(self._place, list(plans), source, self._make_report) if is_still else _CHANGED
        except Exception as error:  # noqa: BLE001  the cache never fails a session; the reason is reported
            reason = describe(error)
        finally:
            self._writing.release()
        if reason:
            self.note += f"; its plan is not cached: {reason}"
            warn_unwritten(reason)


def _bounds_of(compiled: Compiled) -> Bounds | None:
    return None if compiled.shapes is None else compiled.shapes.bounds


def _changes(source: ModelPlanSource) -> int:
    """Return a number that changes when a plan is made or checked, or serves more shapes."""
    checked = 0 if source.checks is None else source.checks.count
    return source.plans.made_count + source.widened + checked


def _is_as_planned(compiled: Compiled) -> bool:
    """Return True if a plan compiled and ran without failures, and was not chosen by measurement."""
    steps = compiled.plan.steps if compiled.programs is None else compiled.programs.shared.values()
    is_measured = len(compiled.timed) > 1
    return not (compiled.notes or is_measured or any(bound.failures for bound in steps))
