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


def job_facts(request: Request, snapshot: JobSnapshot) -> dict[str, Any]:
    """Return the fields of `JobFacts`."""
    totals = snapshot.totals or Totals()
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
        "executions": snapshot.executions,
        "compiles": sum(snapshot.compiles.values()),
        "kinds": tuple(_kind_facts(name, snapshot, totals) for name in _names(snapshot)),
        "machines": _machine_facts(snapshot, totals),
        "slowest_shapes": _slowest(totals),
    }


def _names(snapshot: JobSnapshot) -> list[str]:
    return list(dict.fromkeys((*snapshot.kinds, *(session.kind for session in snapshot.sessions))))


def _kind_facts(name: str, snapshot: JobSnapshot, totals: Totals) -> KindFacts:
    kind, compile_result = snapshot.kinds.get(name), snapshot.made.get(name)
    sessions = [session for session in snapshot.sessions if session.kind == name]
    requested_devices = () if kind is None else tuple(device[0] for device in kind.devices)
    return KindFacts(
        name=name,
        machine={} if kind is None else kind.words,
        devices=sessions[0].devices if sessions else tuple(dict.fromkeys((*requested_devices, CPU))),
        missing={} if kind is None else kind.missing,
        machines=len({session.machine for session in sessions}),
        sessions=len(sessions),
        rows=totals.kinds[name],
        compiles=snapshot.compiles.get(name, 0),
        was_there=compile_result is not None and compile_result.was_there,
        compile_seconds=0.0 if compile_result is None else compile_result.seconds,
        compiled_bytes=0 if compile_result is None else compile_result.nbytes,
        cache_hits=0 if compile_result is None else compile_result.cached,
        segments={} if compile_result is None or not compile_result.report else _segments(compile_result.report),
        notes=() if compile_result is None else compile_result.notes,
    )


def _segments(report: str) -> dict[str, int]:
    devices = [segment["device"] for segment in json.loads(report)["segments"]]
    return {device: devices.count(device) for device in dict.fromkeys(devices)}


def _machine_facts(snapshot: JobSnapshot, totals: Totals) -> tuple[MachineFacts, ...]:
    names = dict.fromkeys((*(session.machine for session in snapshot.sessions), *totals.machines))
    facts = []
    for name in names:
        sessions = [session for session in snapshot.sessions if session.machine == name]
        facts.append(
            MachineFacts(
                machine=name,
                address=sessions[0].address if sessions else "",
                kind=sessions[0].kind if sessions else "",
                sessions=len(sessions),
                session_seconds=sum(session.seconds for session in sessions),
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
