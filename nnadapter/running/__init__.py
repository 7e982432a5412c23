"""From a plan to results: programs, and what runs them.

compilation  plan -> programs, bound to slots
measuring    candidates, compiled and timed
executor     runs a compiled plan
repeating    a run like the one before
plans        compiled plans per set of input shapes: bounded, counted
planned      a model on devices
host         a model on ONNX Runtime alone
engine       which of the two
"""
