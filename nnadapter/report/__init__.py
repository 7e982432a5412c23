"""Reports: what a plan does, as facts and as text, and what missing features of a device would be worth."""

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
