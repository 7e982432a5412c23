"""A model as ONNX Runtime takes it: large weights by their addresses, beside a message that does not hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nnadapter.ir.operand import Array

if TYPE_CHECKING:
    import onnx
    import onnxruntime

_NUMBERS = "fiub"
"""Kinds of arrays that ONNX Runtime's Python interface takes the address of."""


@dataclass(frozen=True, slots=True)
class Loadable:
    """A model that the installed ONNX Runtime loads."""

    contents: bytes
    weights: Mapping[str, Array] = field(default_factory=dict)
    """What initializers hold that `contents` has no contents of; a session of it reads them as long as it lives."""

    @property
    def nbytes(self) -> int:
        """What it takes together."""
        return len(self.contents) + sum(array.nbytes for array in self.weights.values())

    def add_to(self, options: onnxruntime.SessionOptions) -> None:
        """Let the next session that is made with these options have the weights."""
        if self.weights:
            from nnadapter.process.real_onnxruntime import onnxruntime

            values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in self.weights.values()]
            options.add_external_initializers(list(self.weights), values)


def loadable_of(model: onnx.ModelProto, *, by_address: bool) -> Loadable:
    """Return a model at a version that ONNX Runtime loads.

    Args:
        model: the model.
        by_address: large weights may be handed over beside it. Session options keep them for good, so a caller's own
            options are not for that.

    Raises:
        InvalidModelError: a node has no such meaning in any opset that ONNX Runtime knows.
    """
    from nnadapter.onnx.building import copied
    from nnadapter.onnx.onnxruntime_limits import loadable
    from nnadapter.onnx.references import array_of, holding, inlined, is_reference

    lowered = loadable(model)
    if not by_address:
        return Loadable(inlined(lowered).SerializeToString())
    weights = {tensor.name: array_of(tensor) for tensor in filter(is_reference, lowered.graph.initializer)}
    plain = {name: array for name, array in weights.items() if array.dtype.kind in _NUMBERS}
    if len(plain) < len(weights):
        lowered = copied(lowered)
        for tensor in lowered.graph.initializer:
            if tensor.name in weights and tensor.name not in plain:
                tensor.CopyFrom(holding(tensor))
    return Loadable(lowered.SerializeToString(), plain)
