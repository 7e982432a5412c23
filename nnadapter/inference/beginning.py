"""Models of files whose weights are read by threads while their sessions still import modules and open devices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.selection import HOSTS, DeviceRequest, named_requests
from nnadapter.errors import NNAdapterError

if TYPE_CHECKING:
    from nnadapter.onnx.beginning import BegunModel


def begun_model(source: Any, requests: DeviceRequest | Sequence[DeviceRequest]) -> BegunModel | None:
    """Begin to read the model of a session; None where that is no file or the CPU comes first, which reads it itself.

    Args:
        source: what the session is made of. Who loads the model says what is wrong with it.
        requests: devices of the session. Who opens them says what is wrong with them.
    """
    if not isinstance(source, (str, os.PathLike)):
        return None
    try:
        if next(iter(named_requests(requests)), None) in HOSTS:
            return None
        from nnadapter.onnx.beginning import BegunModel

        return BegunModel(source)
    except NNAdapterError:
        return None
