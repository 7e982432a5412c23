"""Reports on where each node of a model runs and why, and estimates of what missing device features are worth."""

from __future__ import annotations

from nnadapter.process.lazily import lazily

__getattr__ = lazily(
    __name__,
    {
        ".facts": (
            "CandidateFacts CostFacts Coverage NodeFacts PlanFileFacts RefusalFacts RuleFacts SegmentFacts "
            "TensorFacts WeightFacts"
        ),
        ".missing_features": "situation_of",
        ".report": "FORMATS compare_reports formats_of read_report report_from",
        ".sections": "code count duration quantity table verdict",
    },
)
