"""Plans of a session -> an entry, with those that were in it before.

A plan is not kept where something went otherwise than planned: a device failed to compile, or failed in a run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from nnadapter.caching.entry import Entry
from nnadapter.compiled_models.messages import MESSAGES, Message
from nnadapter.compiled_models.parts import CONSTANT, PROGRAM
from nnadapter.compiled_models.reading import CompiledFile
from nnadapter.compiled_models.saving import add_message, message_of
from nnadapter.compiled_models.target import Target
from nnadapter.drivers.capability import ModelForm
from nnadapter.errors import CompiledModelError
from nnadapter.files.container.reading import Container
from nnadapter.files.container.writing import ContainerWriter
from nnadapter.kept_plans.links import LinkedContainer, LinkingWriter
from nnadapter.kept_plans.place import FACTS, MOST_PLANS, Place, facts, facts_of
from nnadapter.onnx.preparation.choice import MOST_FORKS, Truths
from nnadapter.planning.bounds import Bounds
from nnadapter.planning.setting import Setting
from nnadapter.running.bound_step import BoundStep
from nnadapter.running.by_plans import Left
from nnadapter.running.compiled import Compiled
from nnadapter.running.planned import PlannedEngine
from nnadapter.running.traced_programs import driver_program

Plans = Sequence[tuple[Compiled, Bounds | None]]
_PARTS = {"Contents": ("part",), "Segment": ("part",), "Program": ("part",), "Plan": ("report",)}
"""Fields of messages that are positions of parts."""
_MOST_LEFT = 64
"""Choices that gained nothing, and shapes of each, that are carried on."""


def write_plans(place: Place, plans: Plans, engine: PlannedEngine, setting: Setting) -> str:
    """Keep plans of an engine, and return why they are not kept; empty if they are.

    Args:
        place: where they are kept.
        plans: and where those hold that are looked through.
        engine: which made them.
        setting: of the engine.

    Raises:
        CompiledModelError: something has no form in files.
    """
    before, started = place.opened(), time.perf_counter()

    def fill(writer: ContainerWriter) -> None:
        linking = LinkingWriter(writer)
        devices = [device.name for device in setting.devices if not device.is_spare]
        linking.add(FACTS, facts(devices, _all_left(before, engine)))
        target = Target(linking, lambda bound: _kept(place, bound, setting, linking), stands_alone=False)
        message = message_of(plans, engine, setting, target)
        if isinstance(before, CompiledFile):
            _carry(before, message, linking)
        add_message(message, linking)
        linking.finish()

    return place.folder.keep_parts(place.key, fill, time.perf_counter() - started)


def _kept(place: Place, bound: BoundStep, setting: Setting, writer: LinkingWriter) -> int | None:
    """The part that is a program of a segment's entry; None where it has none."""
    cache = setting.by_name[bound.step.device].cache
    key = None if cache is None else cache.entry(driver_program(bound.pool.program))
    entry = None if key is None else place.folder.named(key.name)
    return writer.link(PROGRAM, key.name, entry) if key is not None and isinstance(entry, Entry) else None


def _all_left(old: CompiledFile | str, engine: PlannedEngine) -> Left:
    """The choices that gained nothing, in an engine and before it."""
    left = dict(engine.left)
    before = facts_of(old.container)[1] if isinstance(old, CompiledFile) else {}
    for truths, shapes in before.items():
        now = left.get(truths, frozenset())
        if len(left) < _MOST_LEFT or truths in left:
            left[truths] = None if shapes is None or now is None else frozenset([*now, *shapes][:_MOST_LEFT])
    return left


def _carry(old: CompiledFile, message: Message, writer: LinkingWriter) -> None:
    """Add the plans that were kept before to a message, but for those that are there, as long as there is room."""
    there = {_identity(plan) for plan in message.plans}
    forks = _with_room(old.message, {tuple(fork.truths) for fork in message.forks})
    for fork in forks:
        message.forks.add().CopyFrom(_carried(fork, old.container, writer))
    conditions = {tuple(fork.truths): len(fork.conditions) for fork in message.forks}
    for plan in old.message.plans:
        is_new = _identity(plan) not in there and _is_led_to(plan, conditions)
        if len(message.plans) < MOST_PLANS and is_new:
            with suppress(CompiledModelError):  # what it refers to is gone
                carried = _carried(plan, old.container, writer)
                message.plans.add().CopyFrom(carried)
                _add_devices(old.message, carried, message)


def _with_room(old: Message, there: set[Truths]) -> list[Message]:
    """The forks that are carried, as long as there is room: those that lead to plans first."""
    led_to = [tuple(plan.truths) for plan in old.plans]

    def leads_nowhere(fork: Message) -> bool:
        before = tuple(fork.truths)
        return not any(truths[: len(before)] == before and truths != before for truths in led_to)

    # One before another stays so, and leads where that does: no fork is carried without those that lead to it.
    forks = sorted((fork for fork in old.forks if tuple(fork.truths) not in there), key=leads_nowhere)
    return forks[: max(MOST_FORKS - len(there), 0)]


def _is_led_to(plan: Message, conditions: Mapping[Truths, int]) -> bool:
    """Whether forks, by how many conditions they have, lead to a plan."""
    truths, before = tuple(plan.truths), 0
    while before < len(truths) and truths[:before] in conditions:
        before += conditions[truths[:before]]
    return before == len(truths)


def _carried(message: Message, old: Container, writer: LinkingWriter) -> Message:
    """A message whose parts are brought over, with the positions that they have now."""
    assert isinstance(old, LinkedContainer), "entries of plans are read so"
    carried = MESSAGES.new(message.DESCRIPTOR.name)
    carried.CopyFrom(message)
    for submessage in _messages(carried):
        name = submessage.DESCRIPTOR.name
        for field in _PARTS.get(name, ()):
            setattr(submessage, field, old.brought(getattr(submessage, field), writer))
        if name == "Segment" and submessage.form == ModelForm.IR.value:  # it names its constants by what they hold
            for number, part in enumerate(old.parts):
                if part.kind == CONSTANT:
                    old.brought(number, writer)
    return carried


def _add_devices(old: Message, plan: Message, message: Message) -> None:
    """Name the devices of a plan in a message, where they are not named."""
    named, used = {device.name for device in message.devices}, {step.device for step in plan.steps}
    for device in old.devices:
        if device.name in used - named:
            message.devices.add().CopyFrom(device)


def _identity(plan: Message) -> tuple[bytes, bool, tuple[bool, ...]]:
    """What tells plans of a model apart: what they were made at, whether that is all they serve, and their choice."""
    shapes = b"".join(row.SerializeToString(deterministic=True) for row in plan.shapes)
    return shapes, plan.HasField("open"), tuple(plan.truths)


def _messages(message: Message) -> Iterator[Message]:
    """A message and all inside of it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for submessage in (value,) if hasattr(value, "DESCRIPTOR") else value:
                yield from _messages(submessage)
