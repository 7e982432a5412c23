"""What a driver said of a model, as bytes and back: verdicts, and admissions."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from nnadapter.drivers.interface import Admission
from partition.verdict import SUPPORTED, Reason, Unsupported, Verdict

_TOKEN = re.compile(r"[^\s'\"(),;:]+")


def write_verdicts(verdicts: Sequence[Verdict]) -> bytes:
    """Return verdicts as bytes."""
    return json.dumps([_plain(verdict) for verdict in verdicts]).encode()


def read_verdicts(data: memoryview) -> Sequence[Verdict]:
    """Return what `write_verdicts` wrote; raises ValueError, KeyError or TypeError for anything else."""
    return [_verdict(plain) for plain in json.loads(bytes(data))]


def write_admission(admission: Admission) -> bytes:
    """Return an admission as bytes; raises TypeError where a fact of it has no form in them."""
    verdict, facts = _plain(admission.verdict), dict(admission.facts)
    return json.dumps({"verdict": verdict, "runs_as": list(admission.runs_as), "facts": facts}).encode()


def read_admission(data: memoryview) -> Admission:
    """Return what `write_admission` wrote; raises ValueError, KeyError or TypeError for anything else."""
    told = json.loads(bytes(data))
    return Admission(verdict=_verdict(told["verdict"]), runs_as=tuple(told["runs_as"]), facts=told["facts"])


def mentions(verdicts: Sequence[Verdict], names: set[str]) -> bool:
    """Whether a refusal speaks of one of some names, so that it says nothing of a model with others."""
    details = {verdict.detail for verdict in verdicts if isinstance(verdict, Unsupported)}
    return any(not names.isdisjoint(_TOKEN.findall(detail)) for detail in details)


def _plain(verdict: Verdict) -> Any:
    return [verdict.reason.value, verdict.detail] if isinstance(verdict, Unsupported) else None


def _verdict(plain: Any) -> Verdict:
    if plain is None:
        return SUPPORTED
    reason, detail = plain
    return Unsupported(Reason(reason), str(detail))
