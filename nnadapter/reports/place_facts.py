"""What a report says of the borders of a plan."""

from __future__ import annotations

from nnadapter.planning.border_steps import Borders
from nnadapter.planning.borders import borders_of
from nnadapter.planning.settling import Partitioning


def border_facts(partitioning: Partitioning) -> Borders:
    """Return what happens at the borders of a plan."""
    setting = partitioning.setting
    return borders_of(partitioning.plan, setting.costs, setting.host.name)
