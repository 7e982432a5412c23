"""What happens to an operation that a tensor's device does not take: as in sessions, the host does it, and says so."""

from __future__ import annotations

import sys
import warnings

from nnadapter.errors import FallbackWarning, InvalidOptionError, NotDelegatedError
from nnadapter.options import FALLBACKS

_rule = ["warn"]
_OURS = ("nnadapter", "numpy")


def set_eager_fallback(rule: str) -> str:
    """Say what happens to operations on tensors that their device does not take, and return what was said before.

    Args:
        rule: `warn`, numpy computes it with a FallbackWarning; `allow`, without; `forbid`, it is a NotDelegatedError.

    Raises:
        InvalidOptionError: it is none of these.
    """
    if rule not in FALLBACKS:
        raise InvalidOptionError(f"the fallback of tensors is one of {', '.join(FALLBACKS)}, got {rule!r}")
    previous_rule, _rule[0] = _rule[0], rule
    return previous_rule


def fall_back(device: str, operation: str, reason: str) -> None:
    """Say that the host does something in the place of a device, as the rule wants it said.

    Raises:
        NotDelegatedError: the rule forbids it.
    """
    message = f"device {device!r} does not do {operation}: {reason}"
    if _rule[0] == "forbid":
        raise NotDelegatedError(
            f"{message}; fallback is forbidden, so cast the tensors, register a kernel, or move them with .to('cpu')",
            device=device,
        )
    if _rule[0] == "warn":
        warnings.warn(f"{message}; numpy does it on the host instead", FallbackWarning, stacklevel=_levels() + 1)


def _levels() -> int:
    """How far away the person's own line is, by which warnings are told apart."""
    frame, level = sys._getframe(1), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]
    return level
