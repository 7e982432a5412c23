"""Bytes that pass the border of devices with memory of their own in a run that leaves nothing there."""

from __future__ import annotations

from nnadapter.inference.session import InferenceSession
from nnadapter.running.residence import has_memory


def crossing(session: InferenceSession) -> tuple[int, int] | None:
    """Return the bytes that the plan of a session copies to such devices and back; None if sizes are not known.

    Where no step is on such a device, nothing is copied, whatever the session is fed.
    """
    steps = [step for step in session.report().borders.steps if step.kind == "transfer"]
    owning = {name.partition(":")[0] for name in session.devices if has_memory(name)}
    if any(step.nbytes is None for step in steps):
        return None
    into = sum(step.nbytes or 0 for step in steps if step.target.target in owning)
    return into, sum(step.nbytes or 0 for step in steps if step.source.target in owning)
