"""Which programs the engine reads again as it wrote them."""

from __future__ import annotations

from typing import Any

import onnx

from nnadapter.onnx.parts import Parts

_RECURRENT = frozenset(("LSTM", "GRU", "RNN"))
"""Read again, they mix the sequences of a batch up, without a word. Seen with OpenVINO 2026.4."""

_ROTARY_EMBEDDING = "RoPE"
"""As the engine calls it."""


def is_read_as_written(model: onnx.ModelProto) -> bool:
    """Whether a program of this model computes the same after `export_model` and `import_model`.

    A program that does not is not serialized: who would keep it compiles it anew.
    """
    recurrent = [node for node in model.graph.node if node.op_type in _RECURRENT and not node.domain]
    if not recurrent:
        return True
    parts = Parts(model)
    return all(_is_of_one_sequence(parts, node.input[0]) for node in recurrent)


def turns_by_narrow_tables(compiled: Any) -> bool:
    """Whether one of the engine's compiled models has rotary embeddings by tables half as wide as what is turned.

    What it writes does not say how wide they are: read again, the program looks behind their end. Seen with OpenVINO
    2026.4. Tables of that width that are for half of the features cannot be told from these, and are right.
    """
    try:
        operations = compiled.get_runtime_model().get_ordered_ops()
    except Exception:  # noqa: BLE001  not every device of the engine has one
        return False
    return any(map(_has_narrow_tables, operations))


def _has_narrow_tables(operation: Any) -> bool:
    information = operation.get_rt_info()
    if "layerType" not in information or information["layerType"].astype(str) != _ROTARY_EMBEDDING:
        return False
    turned, table = (operation.get_input_partial_shape(port) for port in (0, 1))
    widths = [shape[len(shape) - 1] for shape in (turned, table)]
    return all(width.is_static for width in widths) and widths[0].get_length() == 2 * widths[1].get_length()


def _is_of_one_sequence(parts: Parts, name: str) -> bool:
    """Of [steps, batch, features]: another layout is not taken."""
    value = parts.value(name)
    shape = value.shape if value is not None else None
    return shape is not None and len(shape) == 3 and shape[1] == 1
