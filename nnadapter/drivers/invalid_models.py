"""Distinction between failures of invalid models and failures of drivers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nnadapter.errors import NNAdapterError
from nnadapter.ir import Model, verify


@contextmanager
def blame_invalid_models(model: Model) -> Iterator[None]:
    """Verify `model` if the block fails unexpectedly, because drivers themselves do not verify models.

    Raises:
        InvalidModelError: the model is invalid; otherwise the failure passes unchanged.
    """
    try:
        yield
    except NNAdapterError:
        raise
    except Exception:
        verify(model)
        raise
