"""Engines of sessions: compiled plans, where they come from, and their runs.

engine          engine of compiled plans, and the interface that sessions use
host            engine of a model on ONNX Runtime alone
plan_source     source of plans; model_source, file_source and cached_plans are its kinds
plan_store      compiled plans of a source, bounded in number and bytes
compilation     partitioning -> programs, bound to slots
executor        run of a compiled plan
saving          plans -> compiled file or cache entry
fallback        incidents, and warnings or errors by the policy of the session
"""
