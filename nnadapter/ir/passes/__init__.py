"""Passes: named transformations of adapter IR models, which drivers list."""

from __future__ import annotations

from nnadapter.ir.passes.reduce_rank import reduce_rank
from nnadapter.ir.passes.run import PASSES, TOLERANCES, Observer, Pass, all_of, check_numbers, dump_to, run_passes
from nnadapter.ir.passes.simplification import Evaluator, fold_constants
from nnadapter.process.lazily import lazily

__all__ = [
    "PASSES",
    "TOLERANCES",
    "Evaluator",
    "Observer",
    "Pass",
    "all_of",
    "check_numbers",
    "dump_to",
    "fold_constants",
    "reduce_rank",
    "run_passes",
]

__getattr__ = lazily(
    __name__,
    {
        ".layout": "FROM_NCHW View",
        ".producer_fusion": "FUSABLE",
    },
)
