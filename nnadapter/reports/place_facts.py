"""What a report says of the borders of a plan."""

from __future__ import annotations

from dataclasses import replace

from nnadapter.planning.alongside import overlap_of
from nnadapter.planning.border_steps import Borders
from nnadapter.planning.borders import borders_of
from nnadapter.planning.settling import Partitioning


def boundary_facts(partitioning: Partitioning) -> Borders:
    """Return what happens at the borders of a plan, and what is under way at once."""
    setting, overlap = partitioning.setting, overlap_of(partitioning, {})
    return replace(
        borders_of(partitioning.plan, setting.costs, setting.host.name),
        waits=overlap.waits,
        enqueued=tuple(sorted(overlap.enqueued)),
        alongside=tuple(sorted(overlap.alongside)),
    )
