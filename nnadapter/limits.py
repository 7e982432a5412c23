"""Upper bounds on untrusted input, checked before memory or time is spent (docs/security.md, "Bounds").

Common models stay far below them.
"""

from __future__ import annotations

MESSAGE_BYTES = (1 << 31) - 1
"""Model message without external weights: protobuf's own limit."""
UNLOOKED_BYTES = 1 << 16
"""ONNX message up to this size that is parsed without counting its fields first; it has at most half as many fields."""
NODES = 1 << 18
"""Nodes of a graph; also its initializers, inputs and outputs. Unrolled language models have about 50,000."""
VALUES_OF_NODE = 1 << 16
"""Inputs or outputs of a node. ONNX Runtime and onnx traverse them repeatedly."""
ATTRIBUTES = 1 << 10
"""Attributes of a node. Tree ensembles have the most, about twenty."""
DIMENSIONS = 1 << 10
"""Dimensions of a type or tensor as read; numpy supports 64."""
RANK = 64
"""Rank of an array: numpy's limit."""
NAME_BYTES = 1 << 16
"""Name of a value; plans, reports and error messages repeat it."""
FIELDS = 1 << 20
"""Fields of one kind in a message, unless another limit applies: each costs memory beyond its bytes. Numbers and
strings in attributes and tensors are exempt: tree ensembles have millions.
"""
MESSAGES = 1 << 22
"""Possible small sub-messages in a model, about 400 MB once parsed. A language model has about a million."""
EXPANDED_NODES = 1 << 13
"""Nodes after function expansion, for any model. onnx and ONNX Runtime expand functions in quadratic time."""
EXPANSION = 64
"""Beyond `EXPANDED_NODES`, nodes per written node. Exporters' functions have about ten nodes and few nested calls."""
ELEMENTS = (1 << 31) - 1
"""Elements of a node's result, if its size is known: 8 GiB of floats. Weights stored in the file may have more."""
COUNTED_ELEMENTS = 1 << 26
"""Elements of a result computed only from counts in a feed (Range): more take seconds to compute."""
RESIZED_ELEMENTS = 1 << 28
"""Elements of a result that repeats elements as a feed asks (Tile): more take a second to fill."""
SPARSE_BYTES = 1 << 30
"""Sparse weights of a model, converted to dense tensors."""
FOLDED_BYTES = 1 << 30
"""Constants folded once per model."""
FREELY_FOLDED_BYTES = 1 << 26
"""Folded constants allowed for any model; beyond it, `FOLDING_GROWTH` times the bytes of its own constants."""
FOLDING_GROWTH = 4
"""Growth by folding. Folding mostly changes layouts and types; a larger expansion is left to the run."""
FOLDED_BYTES_PER_SHAPE = 1 << 26
"""Constants folded for each set of shapes."""
TABLE_ELEMENTS = 1 << 24
"""Elements of a table that a converter computes (Fourier transforms)."""
PLAN_BYTES = 1 << 24
"""Plans of a compiled model, without weights and programs. A plan of a 600-node network takes 30 KB."""
CONTAINER_BYTES = 1 << 22
"""Table of a compiled model's parts, enough for more than 60,000. Parsing multiplies its size about a hundredfold."""
TEXT_BYTES = 1 << 26
"""JSON text: a plan file, a report or a calibration."""
RULES_BYTES = 1 << 18
"""Rules: room for thousands. The standard library parses TOML tables in quadratic time."""
RULES_LINE = 1 << 14
"""Characters in a line of rules, which bound the parts of a dotted key."""
SHAPE_ELEMENTS = 1 << 40
"""Elements of an input shape on the command line."""
PADDLE_STRUCTURE_BYTES = 1 << 28
"""Paddle model without parameters; about a hundred bytes per operation."""
PADDLE_CONVERSION_S = 600.0
"""Seconds for the process that converts a Paddle model. It starts in three, and converts 100 MB in one."""
