"""What a report says of what the last run copied."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.drivers.copies import HOST, Transfer
from nnadapter.reports.facts import TransferFacts


def transfer_facts(transfers: Sequence[Transfer] | None) -> TransferFacts | None:
    """Return what a run copied; None for a run that could not."""
    if transfers is None:
        return None
    into = [each for each in transfers if each.target != HOST]
    out = [each for each in transfers if each.target == HOST]
    made_on = {(each.value, each.source) for each in out}
    return TransferFacts(
        into=len(into),
        bytes_into=sum(each.nbytes for each in into),
        out=len(out),
        bytes_out=sum(each.nbytes for each in out),
        seconds=sum(each.seconds for each in transfers),
        returned=sum((each.value, each.target) in made_on for each in into),
    )
