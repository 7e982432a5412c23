"""Whether the plans of a session can be kept, before anything is imported or read for it."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.drivers.kernel import registered_kernels
from nnadapter.drivers.selection import DeviceRequest, accelerates_first
from nnadapter.options import Options
from nnadapter.policies import POLICIES


def is_cacheable(requests: DeviceRequest | Sequence[DeviceRequest], options: Options, session_options: object) -> bool:
    """Whether all that plans hang on can be told, and a device comes first that accelerates.

    Args:
        requests: devices of the session.
        options: of the session, which has a cache.
        session_options: ONNX Runtime's own, which do not say what was set in them.
    """
    is_told = session_options is None and options.trace is None and not POLICIES[options.policy].times
    if options.shadow is not None:
        return False  # plans that were kept have nothing that their runs could be compared with
    return is_told and not registered_kernels() and accelerates_first(requests)
