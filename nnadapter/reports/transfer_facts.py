"""What a report says of what the last run copied."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.drivers.copies import HOST, Transfer
from nnadapter.reports.facts import TransferFacts


def transfer_facts(transfers: Sequence[Transfer] | None) -> TransferFacts | None:
    """Return what a run copied; None for a run that could not."""
    if transfers is None:
        return None
    into = [transfer for transfer in transfers if transfer.target != HOST]
    out = [transfer for transfer in transfers if transfer.target == HOST]
    made_on = {(transfer.value, transfer.source) for transfer in out}
    return TransferFacts(
        into=len(into),
        bytes_into=sum(transfer.nbytes for transfer in into),
        out=len(out),
        bytes_out=sum(transfer.nbytes for transfer in out),
        seconds=sum(transfer.seconds for transfer in transfers),
        returned=sum((transfer.value, transfer.target) in made_on for transfer in into),
    )
