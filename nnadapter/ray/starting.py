"""Ray on this machine, where nobody has started it."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from importlib import import_module
from threading import current_thread, main_thread
from typing import Any, NoReturn

from nnadapter.process.extras import missing_extra, require_extra
from nnadapter.process.stopping import deferred_termination


def require_ray(feature: str, part: str) -> None:
    """Refuse `feature` where Ray, or the part of it that `feature` needs, is missing.

    Args:
        feature: of ours is asked for.
        part: of Ray that it needs, as a module; each takes seconds to import, so no other is.

    Raises:
        MissingExtraError: it is.
    """
    require_extra("ray", feature)
    try:
        import_module(part)
    except ImportError as error:
        raise missing_extra("ray", feature) from error


def start_if_needed(**settings: Any) -> bool:
    """Start Ray on this machine alone, unless this process has one; whether it was started.

    It has no dashboard and reports nothing to anybody; who wants another one starts it before.

    Args:
        **settings: what else `ray.init` is told.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    previous_handler = signal.getsignal(signal.SIGTERM)
    is_new, is_main = not ray.is_initialized(), current_thread() is main_thread()
    with deferred_termination() if is_main else nullcontext():
        try:
            if is_new:
                ray.init(**{"include_dashboard": False, "logging_level": "warning", **settings})
        finally:
            if is_main:
                _handle_sigterm(previous_handler)
    return is_new


def _handle_sigterm(previous_handler: Any) -> None:
    """End a program without a handler for SIGTERM by exit code 143; the handler of Ray aborts with a stack trace."""
    is_rays = getattr(previous_handler, "__module__", "").startswith("ray.")
    signal.signal(signal.SIGTERM, _exit if is_rays or previous_handler in (None, signal.SIG_DFL) else previous_handler)


def _exit(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
    raise SystemExit(128 + number)
