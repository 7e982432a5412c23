"""Telling a model that contradicts itself from a fault of the driver.

The host hands drivers valid models, so a driver need not spend time on checking each. But whoever uses a context
directly may hand it anything; where the driver then fails, the model is checked, and the model is blamed if it deserves
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nnadapter.errors import NNAdapterError
from nnadapter.ir import Model, verify


@contextmanager
def invalid_models_told(model: Model) -> Iterator[None]:
    """Check `model` where what is done within fails in a way that nobody planned.

    Raises:
        InvalidModelError: it failed, and the model is invalid; else the failure passes as it is.
    """
    try:
        yield
    except NNAdapterError:
        raise
    except Exception:
        verify(model)
        raise
