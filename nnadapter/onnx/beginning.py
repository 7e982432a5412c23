"""A model that is loaded, whose weights are still being read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nnadapter.onnx.files import load_model
from nnadapter.onnx.reading_ahead import ReadingAhead

if TYPE_CHECKING:
    import onnx

    from nnadapter.ir.operand import Array


class BegunModel:
    """Threads read the weights of a model's file, until it is finished or stopped."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Load the model, and begin to read. Raises what `load_model` does."""
        self._model = load_model(path)
        self._reading = ReadingAhead(self._model.graph.initializer)

    def finish(self) -> tuple[onnx.ModelProto, list[Array]]:
        """Return the model, and the arrays of its weights, which are the ones that it refers to while they are held."""
        return self._model, self._reading.finish()

    def stop(self) -> None:
        """Have no more read."""
        self._reading.stop()
