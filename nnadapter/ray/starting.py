"""Ray on this machine, where nobody has started it."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from nnadapter.process.extras import missing_extra, require_extra


def require_ray(what: str, part: str) -> None:
    """Refuse `what` where Ray, or the part of it that `what` needs, is missing.

    Args:
        what: of ours is asked for.
        part: of Ray that it needs, as a module; each takes seconds to import, so no other is.

    Raises:
        MissingExtraError: it is.
    """
    require_extra("ray", what)
    try:
        import_module(part)
    except ImportError as error:
        raise missing_extra("ray", what) from error


def start_if_needed(**settings: Any) -> bool:
    """Start Ray on this machine alone, unless this process has one; whether it was started.

    It has no dashboard and reports nothing to anybody; who wants another one starts it before.

    Args:
        **settings: what else `ray.init` is told.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        return False
    ray.init(
        **{
            "include_dashboard": False,
            "logging_level": "warning",
            **settings,
        }
    )
    return True
