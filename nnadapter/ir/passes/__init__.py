"""Passes: transformations of adapter IR models that a driver lists by name."""

from nnadapter.ir.passes.run import PASSES, Observer, Pass, run_passes

__all__ = ["PASSES", "Observer", "Pass", "run_passes"]
