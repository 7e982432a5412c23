"""From a prepared model to a plan: verdicts, constraints, placement and admitted segments.

setting          opened devices of a session, and the constraints of its options
judgment         verdicts of every device on every atom, and what a placement needs to know
settling         placement by the session's policy, cut into segments that their devices admit
pricing          cost of a plan
planner          judgments and partitionings of one model, with what they share at different shapes
dynamic_shapes   partitioning with dynamic shapes; `bounds` are the sizes at which it holds
plan_files       a placement as a file, and its match with a model
borders          transfers, casts and changes of layout between segments
overlap          steps that run at the same time, if that pays
indices          checks of indices that enter segments
absent           devices that could not be opened
"""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".bounds": "Bounds nearby",
        ".dynamic_shapes": "growing_inputs is_full partition_dynamic with_sizes_in_order",
        ".judgment": "Judgment Support",
        ".overlap": "HostWait enqueued_of needs_of waiting",
        ".plan_files": "PlanEntry PlanFile UnmatchedEntry bind_plan plan_entries plan_text read_plan write_plan",
        ".planner": "Planner prepare_for",
        ".setting": "Setting open_setting",
        ".settling": "Drafts PLACERS draft place settle",
    },
)
