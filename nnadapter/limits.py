"""Upper bounds on untrusted input, checked before memory or time is spent (docs/security.md, "Bounds")."""

from __future__ import annotations

MESSAGE_BYTES = (1 << 31) - 1
"""Model message without external weights: protobuf's own limit."""
UNLOOKED_BYTES = 1 << 16
"""Messages up to this size are parsed without counting fields first."""
NODES = 1 << 18
"""Nodes of a graph. Large language models have about 50,000."""
VALUES_OF_NODE = 1 << 16
"""Inputs or outputs of a node."""
ATTRIBUTES = 1 << 10
"""Attributes of a node. Tree ensembles have about twenty."""
DIMENSIONS = 1 << 10
"""Dimensions of a type or tensor in a file, before its rank is checked."""
RANK = 64
"""Rank of an array: numpy's limit."""
NAME_BYTES = 1 << 16
"""Name of a value, which plans, reports and messages repeat."""
FIELDS = 1 << 20
"""Fields of one kind in a message; numbers and strings are exempt."""
MESSAGES = 1 << 22
"""Small sub-messages in a model, about 400 MB once parsed."""
EXPANDED_NODES = 1 << 13
"""Nodes after function expansion, allowed for any model. Expansion takes quadratic time."""
EXPANSION = 64
"""Nodes after function expansion per node before it, for results above `EXPANDED_NODES`."""
ELEMENTS = (1 << 31) - 1
"""Elements of a node's result; weights may have more."""
COUNTED_ELEMENTS = 1 << 26
"""Elements of a result with a size from a feed (Range)."""
RESIZED_ELEMENTS = 1 << 28
"""Elements of a result that repeats elements as often as a feed asks (Tile)."""
SPARSE_BYTES = 1 << 30
"""Sparse weights of a model as dense tensors."""
FOLDED_BYTES = 1 << 30
"""Folded constants of a model that do not depend on input shapes."""
FREELY_FOLDED_BYTES = 1 << 26
"""Folded constants of any model, in addition to `FOLDING_GROWTH` times its own constants."""
FOLDING_GROWTH = 4
"""Folded bytes per byte of a model's constants; larger expansions happen in the run."""
FOLDED_BYTES_PER_SHAPE = 1 << 26
"""Constants folded per set of shapes."""
TABLE_ELEMENTS = 1 << 24
"""Elements of a table that a converter computes (Fourier transforms)."""
PLAN_BYTES = 1 << 24
"""Plans of a compiled model, without weights and programs."""
CONTAINER_BYTES = 1 << 22
"""Table of contents of a compiled model. Parsing takes a hundred times its size."""
TEXT_BYTES = 1 << 26
"""JSON text: a plan file, a report or a calibration."""
RULES_BYTES = 1 << 18
"""Rules: the standard library parses TOML tables in quadratic time."""
RULES_LINE = 1 << 14
"""Characters in a line of rules, which bound the parts of a dotted key."""
SHAPE_ELEMENTS = 1 << 40
"""Elements of an input shape on the command line."""
PADDLE_STRUCTURE_BYTES = 1 << 28
"""Paddle model without parameters."""
PADDLE_CONVERSION_S = 600.0
"""Seconds for converting a Paddle model."""
