"""Ops of ai.onnx that have no converter, and why: the table that refusals and docs/operators.md read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from partition.verdict import Reason

_CONTAINER = Reason.UNSUPPORTED_TYPE, "works on sequences or optionals, and the adapter IR holds dense tensors alone"
_STRINGS = Reason.UNSUPPORTED_TYPE, "works on strings, and the adapter IR holds numbers and booleans alone"
_RANDOM = Reason.UNSUPPORTED_OPERATION, "draws random numbers, and every device would draw others"
_UNKNOWN_SIZE = Reason.DATA_DEPENDENT_SHAPE, "makes as many elements as the contents of a tensor decide"
_FILE = Reason.UNSUPPORTED_OPERATION, "reads compressed pictures, which takes a library of its own"

ANOTHER_GRAPH = Reason.CONTROL_FLOW, "runs another graph, which the adapter IR cannot hold"
"""What is said of any other op with a graph among its attributes, as BeamSearch of com.microsoft."""
NO_CONVERTER = Reason.UNSUPPORTED_OPERATION, "has no converter"
"""What is said of any other op."""

UNCONVERTED: Mapping[str, tuple[Reason, str]] = MappingProxyType(
    {
        op_type: why
        for why, names in {
            ANOTHER_GRAPH: "If Loop Scan SequenceMap",
            _CONTAINER: "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt "
            "SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SplitToSequence",
            _STRINGS: "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
            _RANDOM: "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
            _UNKNOWN_SIZE: "Compress NonMaxSuppression NonZero Unique",
            _FILE: "ImageDecoder",
        }.items()
        for op_type in names.split()
    }
)
"""Op type -> the code and the sentence, which goes on from the op's name."""
