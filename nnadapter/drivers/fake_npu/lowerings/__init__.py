"""How each IR operation becomes instructions: one family per file, one function per operation or per kind of it.

A lowering is called as `lower(emitter, operation)` and sets a tensor for each of the operation's outputs.
"""
