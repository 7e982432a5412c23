"""From a plan to results: programs, and what runs them.

built        compiled segments, and which can share a program
compilation  plan -> programs, bound to slots
measuring    candidates, compiled and timed
fallback     what is said or refused where nodes are left
executor     runs a compiled plan
repeating    a run like the one before
plans        compiled plans per set of input shapes: bounded, counted
planned      a model on devices
host         a model on ONNX Runtime alone
engine       what a session asks of either
choosing     which of the two
deviation    how far one value is from another
"""

from __future__ import annotations
