"""From a prepared model to a plan: what devices say, what a person demands, where every atom goes, what is admitted.

Values, each made of those before it by functions:

setting      the devices of a session, opened, and what a person demands (`constraints`)
support      the verdict of every device on every atom
judgment     model, support and demands: all that a placement needs to know
placing      a device for every atom, by the session's policy
settling     the placement cut into segments that their devices admit, with the plan
pricing      what a plan costs

`planner` makes them for one model and keeps what shapes share, in the variant of the model that fits its devices
(`variants`).
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
