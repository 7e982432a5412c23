"""Shares of FLOPs in words: of all, or of those that are known."""

from __future__ import annotations

from nnadapter.reports.facts import ReportFacts


def flops_off_the_cpu(report: ReportFacts) -> str:
    """`97.1% of FLOPs`, `97.1% of known FLOPs`, or that none are known: what is shared out then are nodes."""
    if not report.uncounted:
        return f"{report.coverage.flops:.1%} of FLOPs"
    known = any(node.flops for node in report.nodes)
    return f"{report.coverage.flops:.1%} of known FLOPs" if known else "FLOPs not known"
