"""Choice of the trace of a session, and a trace that logs rare events."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nnadapter.errors import InvalidOptionError, describe, near_names
from nnadapter.traces.trace import COMPILE, FALLBACK, PLAN, SILENT, Trace

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.traces.recorder import Recorder


VARIABLE = "NNADAPTER_LOG"
"""Environment variable with the lowest level of messages to write to standard error."""
_LEVELS = ("debug", "info", "warning", "error")
_ROOT = logging.getLogger("nnadapter")
_LEVEL_OF_CATEGORY = {PLAN: logging.DEBUG, COMPILE: logging.INFO, FALLBACK: logging.WARNING}


def is_enabled() -> bool:
    """Return True if the environment or `logging` asks for messages. Raises InvalidOptionError for an unknown level."""
    level = os.environ.get(VARIABLE, "").strip().lower()
    if level:
        _write_from(level)
    elif _HANDLER in _ROOT.handlers:
        _ROOT.removeHandler(_HANDLER)
        _ROOT.setLevel(_HANDLER.level_before)
    return bool(level) or _ROOT.isEnabledFor(logging.INFO)


def _write_from(level: str) -> None:
    if level not in _LEVELS:
        near = near_names(level, _LEVELS, "; ")
        raise InvalidOptionError(f"{VARIABLE} is {level!r}, expected {', '.join(_LEVELS)}{near}")
    number = logging.getLevelNamesMapping()[level.upper()]
    _HANDLER.setLevel(number)
    if _HANDLER not in _ROOT.handlers:
        _HANDLER.level_before = _ROOT.level
        _ROOT.addHandler(_HANDLER)
    if not _ROOT.isEnabledFor(number):
        _ROOT.setLevel(number)


class _StandardError(logging.Handler):
    """Handler for standard error, silent while another handler writes there."""

    level_before = logging.NOTSET

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr
        if stream is None or any(_writes_to(stream, handler, record) for handler in _handlers_of(record)):
            return
        try:
            stream.write(f"{self.format(record)}\n")
            if hasattr(stream, "flush"):
                stream.flush()
        except (OSError, ValueError):  # it is closed
            return
        except Exception:  # noqa: BLE001  logging must not end a session
            self.handleError(record)


def _handlers_of(record: logging.LogRecord) -> Iterator[logging.Handler]:
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None:
        yield from logger.handlers
        logger = logger.parent if logger.propagate else None


def _writes_to(stream: object, handler: logging.Handler, record: logging.LogRecord) -> bool:
    is_there = getattr(handler, "stream", None) is stream and record.levelno >= handler.level
    return is_there and bool(handler.filter(record))


_HANDLER = _StandardError()
_HANDLER.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))


class LogTrace(Trace):
    """Trace that logs plans, compilations and fallbacks."""

    is_logging = True

    def timestamp(self) -> int:
        return time.perf_counter_ns()

    def span(self, lane: str, category: str, name: str, **facts: Any) -> _LoggedSpan:
        return _LoggedSpan(lane, category, name, facts)

    def mark(self, lane: str, category: str, name: str, **facts: Any) -> None:
        _tell(category, f"{lane}: {name}", facts)


class _LoggedSpan:
    __slots__ = ("_category", "_facts", "_start", "_what")

    def __init__(self, lane: str, category: str, name: str, facts: dict[str, Any]) -> None:
        self._category, self._what, self._facts, self._start = category, f"{lane}: {name}", facts, 0.0

    def __enter__(self) -> dict[str, Any]:
        self._start = time.perf_counter()
        return self._facts

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        milliseconds = (time.perf_counter() - self._start) * 1e3
        how = "" if error is None else f", failed: {describe(error)}"
        _tell(self._category, f"{self._what}: {milliseconds:.1f} ms{how}", self._facts)


def _tell(category: str, message: str, facts: Mapping[str, Any]) -> None:
    level = _LEVEL_OF_CATEGORY.get(category)
    if level is not None:
        details = "; ".join(f"{name}: {value}" for name, value in facts.items() if not isinstance(value, list))
        _ROOT.getChild(category).log(level, "%s", _one_line(f"{message} ({details})" if details else message))


def _one_line(text: str) -> str:
    """Escape control characters, so that names from models cannot forge log lines."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def trace_for(path: str | os.PathLike[str] | None, session_options: onnxruntime.SessionOptions | None) -> Trace:
    """Return the trace of a new session: a recorder if `path` or the session options ask for one, otherwise a log.

    Raises InvalidOptionError if `path` cannot be written.
    """
    if path is not None:
        recorder = _recorder(Path(path))
        recorder.check()
        return recorder
    if session_options is None or not session_options.enable_profiling:
        return _log_trace()
    # ONNX Runtime's naming of profiles
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f")[:-3]
    return _recorder(Path(f"{session_options.profile_file_prefix}_{stamp}.json"), of_session_options=True)


def _log_trace() -> Trace:
    if "logging" not in sys.modules and not os.environ.get("NNADAPTER_LOG"):
        return SILENT

    return LogTrace() if is_enabled() else SILENT


def _recorder(path: Path, *, of_session_options: bool = False) -> Recorder:
    from nnadapter.traces.recorder import Recorder  # lazily: most sessions have none

    return Recorder(path, of_session_options=of_session_options)
