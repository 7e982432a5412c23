"""Stages from a prepared model to a plan: verdicts, constraints, placement and accepted segments."""

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
