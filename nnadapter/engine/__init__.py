"""Engines of sessions: compiled plans, their sources, and their runs.

engine          engine of compiled plans, and the interface that sessions use
host            engine of a model on ONNX Runtime alone
plan_source     source of plans; implemented by model_source, file_source and cached_plans
plan_store      compiled plans of a source, bounded in number and bytes
compilation     partitioning -> programs, bound to slots
executor        run of a compiled plan
saving          plans -> compiled file or cache entry
fallback        incidents, and warnings or errors by the policy of the session
"""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".bound_steps": "Substitute",
        ".branch_conditions": "Fork",
        ".cached_plans": "CachedPlanSource cached_session",
        ".compilation": "Compiler",
        ".compiled": "BLOCK BLOCKS Compiled Promise TimedPlacement Watch typical",
        ".compiled_file": "CompiledFile",
        ".concurrent_steps": "Lane",
        ".control": "Deadlines RunControl Turns",
        ".dynamic_plans": "FixedSizesError",
        ".engine": "Repeat",
        ".execution_pool": "ExecutionPool",
        ".executor": "RunState after_failure run_step",
        ".fallback": "Incident Incidents",
        ".intermediate_buffers": "share_regions",
        ".measuring": "MARGIN MOST_AGAIN Measurer PastChoices contest decided is_slower still_in_question twice",
        ".messages": "IR MESSAGES MODEL VERSION",
        ".model_source": "ModelPlanSource",
        ".plan_devices": "FIRST_PAUSE Health IN_A_ROW LONGEST_PAUSE pools_of",
        ".plan_store": "Holding PlanCache PlanCounts PlanMemory",
        ".provenance": "StepRun",
        ".repair": "Budget Culprits NOT_FOUND culprits_of",
        ".tracing": "Watchers",
    },
)
