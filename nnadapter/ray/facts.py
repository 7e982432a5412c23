"""What is known of a job, as frozen values; `JobReport` renders them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nnadapter.drivers.selection import CPU
from nnadapter.ray.job import JobSnapshot
from nnadapter.ray.request import Request
from nnadapter.ray.totals import Totals

_SLOWEST = 20
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KindFacts:
    """A kind of machine: those on which what is compiled is the same."""

    name: str
    machine: Mapping[str, str]
    """What tells it from others, in words."""
    devices: tuple[str, ...]
    """That sessions have there, the CPU last."""
    missing: Mapping[str, str]
    """Devices that were asked for and are not there, with the reason."""
    machines: int
    """How many of it had sessions."""
    sessions: int
    rows: int
    compiles: int
    """How often the model was compiled for it."""
    was_there: bool
    """The compiled file lay in the folder from a job before."""
    compile_seconds: float
    compiled_bytes: int
    cache_hits: int
    """Segments whose programs were found in a cache when it was compiled."""
    segments: Mapping[str, int]
    """Device -> segments of the plan."""
    notes: tuple[str, ...]
    """What was warned of when it was compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """A machine."""

    machine: str
    """Ray's name of the node."""
    address: str
    kind: str
    sessions: int
    """Made on it, those of actors that were started again as well."""
    session_seconds: float
    """That making them took, together."""
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeFacts:
    """Runs at one set of shapes."""

    shapes: str
    runs: int
    rows: int
    seconds: float
    slowest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """See `nnadapter.ray.report`."""

    model: str
    devices: tuple[str, ...]
    """That were asked for; empty where the compiled file says."""
    rows: int
    """Each once, also where Ray ran a batch again."""
    batches: int
    """That Ray handed to actors; one is several runs where rows are small."""
    runs: int
    seconds: float
    """Of runs, of all actors together."""
    rows_by_device: Mapping[str, int]
    """Where results came from: devices joined by `+` where several took part."""
    rows_fallen_back: int
    """Of runs in which a device did not deliver, so that another one did."""
    incidents: Mapping[str, int]
    """`device: error` -> how often."""
    repeated_batches: int
    """That ran again because a machine or an actor was lost; they count once, where they ran first."""
    repeated_rows: int
    executions: int
    """How often the dataset was consumed; what stands here is of the last time."""
    compiles: int
    kinds: tuple[KindFacts, ...]
    machines: tuple[MachineFacts, ...]
    slowest_shapes: tuple[ShapeFacts, ...]
    """By seconds of all runs."""


def job_facts(request: Request, told: JobSnapshot) -> dict[str, Any]:
    """Return the fields of `JobFacts`."""
    totals = told.totals or Totals()
    return {
        "model": request.name,
        "devices": tuple(request.wanted),
        "rows": totals.rows,
        "batches": totals.batches,
        "runs": totals.runs,
        "seconds": totals.seconds,
        "rows_by_device": dict(totals.where.most_common()),
        "rows_fallen_back": totals.fallen,
        "incidents": dict(totals.incidents.most_common()),
        "repeated_batches": totals.repeated_batches,
        "repeated_rows": totals.repeated_rows,
        "executions": told.executions,
        "compiles": sum(told.compiles.values()),
        "kinds": tuple(_kind(name, told, totals) for name in _names(told)),
        "machines": _machines(told, totals),
        "slowest_shapes": _slowest(totals),
    }


def _names(told: JobSnapshot) -> list[str]:
    return list(dict.fromkeys((*told.kinds, *(each.kind for each in told.sessions))))


def _kind(name: str, told: JobSnapshot, totals: Totals) -> KindFacts:
    kind, made = told.kinds.get(name), told.made.get(name)
    sessions = [each for each in told.sessions if each.kind == name]
    asked = () if kind is None else tuple(each[0] for each in kind.devices)
    return KindFacts(
        name=name,
        machine={} if kind is None else kind.words,
        devices=sessions[0].devices if sessions else tuple(dict.fromkeys((*asked, CPU))),
        missing={} if kind is None else kind.missing,
        machines=len({each.machine for each in sessions}),
        sessions=len(sessions),
        rows=totals.kinds[name],
        compiles=told.compiles.get(name, 0),
        was_there=made is not None and made.was_there,
        compile_seconds=0.0 if made is None else made.seconds,
        compiled_bytes=0 if made is None else made.nbytes,
        cache_hits=0 if made is None else made.cached,
        segments={} if made is None or not made.report else _segments(made.report),
        notes=() if made is None else made.notes,
    )


def _segments(report: str) -> dict[str, int]:
    devices = [segment["device"] for segment in json.loads(report)["segments"]]
    return {device: devices.count(device) for device in dict.fromkeys(devices)}


def _machines(told: JobSnapshot, totals: Totals) -> tuple[MachineFacts, ...]:
    names = dict.fromkeys((*(each.machine for each in told.sessions), *totals.machines))
    facts = []
    for name in names:
        sessions = [each for each in told.sessions if each.machine == name]
        facts.append(
            MachineFacts(
                machine=name,
                address=sessions[0].address if sessions else "",
                kind=sessions[0].kind if sessions else "",
                sessions=len(sessions),
                session_seconds=sum(each.seconds for each in sessions),
                rows=totals.machines[name],
            )
        )
    return tuple(facts)


def _slowest(totals: Totals) -> tuple[ShapeFacts, ...]:
    rows = sorted(totals.shapes.items(), key=lambda row: -row[1][2])[:_SLOWEST]
    return tuple(
        ShapeFacts(shapes=shapes, runs=int(runs), rows=int(count), seconds=seconds, slowest=slowest)
        for shapes, (runs, count, seconds, slowest) in rows
    )
