"""What of the ops in the table is refused for its attributes or inputs, and why: found by onnx's operator tests.

Each row is one way in which the engine computes something else than ONNX says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from nnadapter.onnx.parts import Parts
from partition.verdict import SUPPORTED, Reason, Unsupported, Verdict


@dataclass(frozen=True, slots=True)
class _Row:
    ops: frozenset[str]
    holds: Callable[[onnx.NodeProto, Mapping[str, Any], Parts], bool]
    why: str
    reason: Reason = Reason.UNSUPPORTED_ATTRIBUTE


def restriction(node: onnx.NodeProto, parts: Parts) -> Verdict:
    """Return why the attributes or inputs of a node are not taken, or a yes."""
    rows = [row for row in _ROWS if node.op_type in row.ops]
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute} if rows else {}
    found = next((row for row in rows if row.holds(node, attributes, parts)), None)
    return SUPPORTED if found is None else Unsupported(found.reason, f"{node.op_type} {found.why}")


def _given(node: onnx.NodeProto, position: int) -> bool:
    return len(node.input) > position and bool(node.input[position])


def _all_constant(node: onnx.NodeProto, parts: Parts, positions: range) -> bool:
    return all(not _given(node, position) or node.input[position] in parts.constants for position in positions)


_ROWS = (
    _Row(
        frozenset(("Resize",)),
        lambda node, attributes, parts: bool(attributes.get("antialias") or attributes.get("exclude_outside")),
        "with antialias or exclude_outside weighs pixels in another way than ONNX says",
    ),
    _Row(
        frozenset(("Resize",)),
        lambda node, attributes, parts: (
            attributes.get("coordinate_transformation_mode") in (b"align_corners", b"tf_crop_and_resize")
            and not _given(node, 3)
        ),
        "with aligned corners or a crop, and with scales, samples at other places than ONNX says",
    ),
    _Row(
        frozenset(("Resize",)),
        lambda node, attributes, parts: attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch",
        "that keeps the aspect ratio makes another shape than ONNX says",
    ),
    _Row(
        frozenset(("LSTM",)),
        lambda node, attributes, parts: _given(node, 7),
        "leaves peepholes out",
    ),
    _Row(
        frozenset(("LSTM", "GRU", "RNN")),
        lambda node, attributes, parts: bool(attributes.get("layout")),
        "with layout 1 makes another shape than ONNX says",
    ),
    _Row(
        frozenset(("SpaceToDepth", "DepthToSpace")),
        lambda node, attributes, parts: node.op_type == "SpaceToDepth" and attributes.get("mode", b"DCR") != b"DCR",
        "is computed in mode DCR only",
    ),
    _Row(
        frozenset(("Reshape", "Expand", "Tile", "Squeeze", "Unsqueeze", "Split", "Trilu")),
        lambda node, attributes, parts: not _all_constant(node, parts, range(1, 2)),
        "is taken with a constant second input, whose result has a known shape",
        Reason.NOT_CONSTANT,
    ),
    _Row(
        frozenset(("Slice", "Pad", "Resize", "Upsample")),
        lambda node, attributes, parts: not _all_constant(node, parts, range(1, 5)),
        "is taken where all inputs but the first are constants",
        Reason.NOT_CONSTANT,
    ),
    _Row(
        frozenset(("Dropout",)),
        lambda node, attributes, parts: (
            _given(node, 2) or len(list(filter(None, node.output))) > 1 or not _all_constant(node, parts, range(1, 2))
        ),
        "is taken as it is at inference: no training_mode, no mask, a constant ratio",
    ),
)
