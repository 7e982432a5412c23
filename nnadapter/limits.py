"""What is read from strangers, at most: one table, each limit with its reason (docs/security.md, "Bounds").

Each holds before memory or time is taken for what it bounds. Ordinary models stay far below; the largest known ones are
named where that is not plain.
"""

from __future__ import annotations

MESSAGE_BYTES = (1 << 31) - 1
"""A message without its large weights: protobuf's own limit."""
UNLOOKED_BYTES = 1 << 16
"""A message of ONNX's up to here is not walked through before it is parsed: it has at most half as many fields."""
NODES = 1 << 18
"""In a graph. Models of language with every layer written down have 50,000. Also initializers, inputs, outputs."""
VALUES_OF_NODE = 1 << 16
"""Inputs or outputs of a node: ONNX Runtime and onnx look at all of them again and again."""
ATTRIBUTES = 1 << 10
"""Of a node. The ops with most attributes, ensembles of trees, have some twenty."""
DIMENSIONS = 1 << 10
"""Of a type or a tensor, before anything is made of them: numpy takes 64."""
RANK = 64
"""Of an array, numpy's limit."""
NAME_BYTES = 1 << 16
"""A name is repeated wherever its value is read, in plans, reports and messages of errors."""
FIELDS = 1 << 20
"""Of one kind in a message, where nothing else is said: what they hold takes memory beside its bytes. Numbers and texts
in attributes and tensors are left out, of which ensembles of trees have millions."""
MESSAGES = 1 << 22
"""What can be messages of a few bytes in a model, some 400 MB once they are parsed: a model of language has a
million."""
EXPANDED_NODES = 1 << 13
"""Nodes that calls of a model's functions come to, of any model; onnx and ONNX Runtime expand them in a time that grows
with their square."""
EXPANSION = 64
"""Beyond that, nodes that one written node may come to: exporters' functions have some ten nodes, and each calls few
others."""
ELEMENTS = (1 << 31) - 1
"""Of what a node makes, where its size is known: 8 GiB of floats. Weights may have more, as they are in the file."""
COUNTED_ELEMENTS = 1 << 26
"""Of a result that is computed from counts in a feed alone, as that of Range: more takes seconds to compute."""
RESIZED_ELEMENTS = 1 << 28
"""Of a result that copies elements as often as a feed says, as that of Tile: more takes a second to fill."""
SPARSE_BYTES = 1 << 30
"""Sparse weights as ordinary ones, all together."""
FOLDED_BYTES = 1 << 30
"""Constants that are folded once per model, at most."""
FREELY_FOLDED_BYTES = 1 << 26
"""Those that any model may have folded; beyond them `FOLDING_GROWTH` times what its own constants hold."""
FOLDING_GROWTH = 4
"""Folding changes layouts and types, and repeats little: what makes a gigabyte of a kilobyte does so in the run."""
FOLDED_BYTES_PER_SHAPE = 1 << 26
"""Those that are folded for each set of shapes."""
TABLE_ELEMENTS = 1 << 24
"""Of a table that a converter computes, as those of Fourier transforms."""
PLAN_BYTES = 1 << 24
"""The message of a compiled model: a plan of a network of 600 nodes takes 30 KB. Weights and programs are parts beside
it."""
CONTAINER_BYTES = 1 << 22
"""The table of a compiled model's parts, which has room for more than 60,000: rows that hold nothing take a hundred
times their bytes in memory."""
TEXT_BYTES = 1 << 26
"""Of a plan file, a report or a calibration: JSON."""
RULES_BYTES = 1 << 18
"""Of rules: some thousand. The standard library reads TOML in a time that grows with the square of its tables."""
RULES_LINE = 1 << 14
"""Characters in a line of rules, for a key may have as many parts as a line has room for."""
SHAPE_ELEMENTS = 1 << 40
"""Of an input as the command line names it."""
PADDLE_STRUCTURE_BYTES = 1 << 28
"""Of a Paddle model without its parameters: some hundred bytes for an operation."""
PADDLE_CONVERSION_S = 600.0
"""Seconds that the process may take that converts a Paddle model: it starts in three, and converts 100 MB in one."""
