"""The operation reference: what every operation means, in words, in a formula, in code and by an example.

A file here holds what the rows of a family in `nnadapter.ir.operations` do not say. An operation from outside says it
with its row (`OperationSchema.doc`). It is read where somebody asks, and not before: `entry` joins what is known,
`plain` tells it.
"""
