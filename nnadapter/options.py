"""Settings of a session, and the one place that reads the environment."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import TYPE_CHECKING, Any

from nnadapter.errors import InvalidOptionError, close_names, near_names
from nnadapter.policies import POLICIES

if TYPE_CHECKING:
    from nnadapter.rules.values import Rules

FALLBACKS = ("warn", "allow", "forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a session decides. Raises InvalidOptionError for a value that does not fit."""

    policy: str = "priority"
    """How nodes are placed: `priority`, the first device in the person's order that takes the node; `latency`, the
    cheapest placement found, by calibrated or simulated costs; `throughput`, by the same costs, the one whose busiest
    device has the least to do, for `stream`; `measured`, the fastest of some, timed here."""
    fallback: str = "warn"
    """When something a device should have done goes to the CPU instead: `warn`, `allow` silently (it is in the
    report all the same), or `forbid` (a typed error)."""
    rules: str | os.PathLike[str] | Rules | None = None
    """Pins, bans and limits: a TOML file, its text, or `Rules`."""
    plan: str | os.PathLike[str] | None = None
    """A file made by `nnadapter report --save-plan`: where nodes go, as long as their device takes them."""
    max_plans: int = 64
    """How many sets of input shapes keep their compiled plan; what was used once and longest ago goes first."""
    max_plan_bytes: int = 1 << 30
    """How many bytes the compiled plans may hold together, beside weights that they share, as far as their devices
    say what they hold; what was used once and longest ago goes first, the one used last stays however large it is."""
    deadline_s: float | None = None
    """Seconds that a run may take once it has its plan; in a stream, waits for its turn on a device do not count.
    Then it raises DeadlineExceededError, before its next step or, where the device can stop, in the middle of one. A
    run that came to its end gives its results, however late."""
    trace: str | os.PathLike[str] | None = None
    """A file that says, when the session is closed, what happened in it and when: it opens in ui.perfetto.dev and
    chrome://tracing. `InferenceSession.end_profiling` writes it sooner."""
    cache_dir: str | os.PathLike[str] | bool | None = None
    """A folder where what drivers compile is kept between sessions, and found again where everything that decides it is
    the same (docs/cache.md); True for the usual one, NNADAPTER_CACHE_DIR or the platform's. None, the default: nothing
    is kept. Programs in it are run: it is to be trusted as code is."""
    max_cache_bytes: int = 1 << 32
    """How many bytes that folder may hold; what was used longest ago goes first."""

    def __post_init__(self) -> None:
        """Check every value."""
        _one_of("policy", self.policy, tuple(POLICIES))
        _one_of("fallback", self.fallback, FALLBACKS)
        _positive("max_plans", self.max_plans)
        _positive("max_plan_bytes", self.max_plan_bytes)
        _positive("max_cache_bytes", self.max_cache_bytes)
        _seconds("deadline_s", self.deadline_s)
        if not isinstance(self.rules, (str, os.PathLike, type(None))) and not isinstance(self.rules, _rules()):
            raise InvalidOptionError(f"option 'rules' is a file, its text or nnadapter.Rules, got {self.rules!r}")
        if not isinstance(self.plan, (str, os.PathLike, type(None))):
            raise InvalidOptionError(f"option 'plan' is the path of a plan file, got {self.plan!r}")
        if not isinstance(self.trace, (str, os.PathLike, type(None))) or self.trace == "":
            raise InvalidOptionError(f"option 'trace' is the path of a file to be written, got {self.trace!r}")
        if not isinstance(self.cache_dir, (str, os.PathLike, bool, type(None))) or self.cache_dir == "":
            raise InvalidOptionError(f"option 'cache_dir' is the path of a folder, or True, got {self.cache_dir!r}")


def _rules() -> type[Rules]:
    """The class, imported where somebody gives rules."""
    from nnadapter.rules.values import Rules

    return Rules


def refuse_misplaced(arguments: Iterable[str], parameters: Sequence[str]) -> None:
    """Refuse arguments of a session that look like options, or like other `parameters`; ONNX Runtime ignores any.

    Raises:
        InvalidOptionError: one is a field of `Options`, or is nearly called like one or like a parameter.
    """
    known = [field.name for field in fields(Options)]
    for name in arguments:
        if name in known:
            raise InvalidOptionError(
                f"{name!r} is a field of nnadapter.Options, not an argument; pass options=nnadapter.Options({name}=...)"
            )
        from difflib import get_close_matches  # most sessions end without a wrong name

        close = get_close_matches(name, [*known, *parameters], n=1, cutoff=0.75)
        if close:
            raise InvalidOptionError(f"a session takes no argument {name!r}; did you mean {close[0]!r}?")


def options_from(options: Options | Mapping[str, Any] | None) -> Options:
    """Return `options` as a value; a dictionary names the fields.

    Raises:
        InvalidOptionError: an unknown name, or a value that does not fit.
    """
    if options is None:
        return Options()
    if isinstance(options, Options):
        return options
    known = [field.name for field in fields(Options)]
    if not isinstance(options, Mapping):
        raise InvalidOptionError(f"options are an nnadapter.Options, got {type(options).__name__}")
    for name in options:
        if name not in known:
            raise InvalidOptionError(f"there is no option {name!r}; {close_names(name, known)}")
    return Options(**options)


_process_device: list[str] = []
_lock = threading.Lock()


def set_default_devices(names: list[str]) -> None:
    """Make `names` the devices of sessions that name none."""
    with _lock:
        _process_device[:] = names


def default_devices() -> list[str]:
    """Devices of a session that names none: what was set, else NNADAPTER_DEVICES, else the CPU."""
    with _lock:
        if _process_device:
            return list(_process_device)
    named = [name.strip() for name in os.environ.get("NNADAPTER_DEVICES", "").split(",")]
    return [name for name in named if name] or ["cpu"]


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidOptionError(
            f"option {name!r} is one of {', '.join(choices)}, got {value!r}{near_names(value, choices, '; ')}"
        )


def _positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidOptionError(f"option {name!r} takes a whole number of at least 1, got {value!r}")


def _seconds(name: str, value: object) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and value > 0
    if value is not None and not number:
        raise InvalidOptionError(f"option {name!r} takes a number of seconds above 0, or None, got {value!r}")
