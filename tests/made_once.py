"""onnx's own operator tests, whose making takes seconds, are made by the first worker that needs them."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from onnx.backend.test import loader


@contextmanager
def operator_tests_made_once(kept: Path) -> Iterator[None]:
    """In the block, onnx's loader reads its operator tests in a file, if they are there, and else keeps them there."""
    make = loader.load_node_model_tests

    @cache
    def load():
        if kept.exists():
            return pickle.loads(kept.read_bytes())
        made = make()
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
            pickle.dump(made, file)
        Path(file.name).replace(kept)  # in one step: others may read meanwhile
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "load_node_model_tests", load)
        yield
