"""Values whose shape the contents of a tensor decide: no inference tells it, and no other input shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from partition.graph import Graph, Node, Value

_SHAPED_BY_DATA = frozenset(
    [
        "AffineGrid",
        "BlackmanWindow",
        "CenterCropPad",
        "Col2Im",
        "Compress",
        "ConcatFromSequence",
        "ConstantOfShape",
        "DFT",
        "Expand",
        "HammingWindow",
        "HannWindow",
        "If",
        "Loop",
        "MaxUnpool",
        "MelWeightMatrix",
        "NonMaxSuppression",
        "NonZero",
        "OneHot",
        "OptionalGetElement",
        "Pad",
        "Range",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "Reshape",
        "Resize",
        "STFT",
        "Scan",
        "SequenceAt",
        "Slice",
        "Split",
        "SplitToSequence",
        "Squeeze",
        "StringSplit",
        "Tile",
        "TopK",
        "Unique",
        "Unsqueeze",
        "Upsample",
    ]
)
"""Ops whose results may have a shape that the contents of an input decide. Any other has none because it is not known,
or because the model contradicts itself."""


def marked(graph: Graph, positions: Sequence[int], values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return the values, those whose shape depends on data marked: results without one, of nodes with known inputs.

    Args:
        graph: the model's own.
        positions: positions of the nodes that are left to run, ascending.
        values: what is known of values.
    """
    if all(Value("", shape=shape).static_shape is not None for shape in {value.shape for value in values.values()}):
        return values
    marked_values = dict(values)
    for index in positions:
        node = graph.nodes[index]
        for name in filter(None, node.outputs):
            value = marked_values.get(name, Value(name))
            if value.static_shape is None and value.dtype is not None:
                marked_values[name] = replace(value, data_dependent=_data_decides(node, marked_values))
    return marked_values


def _data_decides(node: Node, values: Mapping[str, Value]) -> bool:
    if any(name in values and values[name].data_dependent for name in node.reads):
        return True
    return node.op_type in _SHAPED_BY_DATA and all(
        name not in values or values[name].static_shape is not None for name in node.reads
    )
