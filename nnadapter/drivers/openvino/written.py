"""Which programs the engine reads again as it wrote them."""

from __future__ import annotations

import onnx

from nnadapter.onnx.parts import Parts

_RECURRENT = frozenset(("LSTM", "GRU", "RNN"))
"""Read again, they mix the sequences of a batch up, without a word. Seen with OpenVINO 2026.4."""


def is_read_as_written(model: onnx.ModelProto) -> bool:
    """Whether a program of this model computes the same after `export_model` and `import_model`.

    A program that does not is not serialized: who would keep it compiles it anew.
    """
    recurrent = [node for node in model.graph.node if node.op_type in _RECURRENT and not node.domain]
    if not recurrent:
        return True
    parts = Parts(model)
    return all(_is_of_one_sequence(parts, node.input[0]) for node in recurrent)


def _is_of_one_sequence(parts: Parts, name: str) -> bool:
    """Of [steps, batch, features]: another layout is not taken."""
    value = parts.value(name)
    shape = value.shape if value is not None else None
    return shape is not None and len(shape) == 3 and shape[1] == 1
