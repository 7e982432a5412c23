"""Passes: transformations of adapter IR models that a driver lists by name."""

from nnadapter.ir.passes.checks import TOLERANCES, check_numbers, dump_to
from nnadapter.ir.passes.fold_constants import Evaluator, fold_constants
from nnadapter.ir.passes.reduce_rank import reduce_rank
from nnadapter.ir.passes.run import PASSES, Observer, Pass, all_of, run_passes

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
