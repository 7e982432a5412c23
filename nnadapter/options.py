"""Options of a session, and the environment variables that supply defaults."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from math import isfinite
from typing import TYPE_CHECKING, Any

from nnadapter.errors import InvalidOptionError, close_names, near_names
from nnadapter.policies import POLICIES
from nnadapter.process.resources import new_lock
from nnadapter.records import dataclass, replace

if TYPE_CHECKING:
    from nnadapter.rules.values import Rules

FALLBACKS = ("warn", "allow", "forbid")
STAGES = ("load", "compile", "run", "accuracy")
"""Stages at which a device can fail: when opened, compiling or running, or by wrong results."""
Fallback = str | Mapping[str, str]
"""One of `FALLBACKS` for all stages, or a mapping from a stage to one."""


VERIFYING = ("once",)
PRECISIONS = ("float32", "bfloat16", "float16", "device", "auto")
_QUANTIZED = ("w8a8", "w8a16", "w8", "w4a16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a session. Raises InvalidOptionError if a value is not valid."""

    policy: str = "priority"
    """Placement policy. `priority`: the first device in the user's order that supports the node. `latency`: the
    cheapest placement found, by calibrated or simulated costs. `throughput`: for `stream`, the placement with the
    least work on its busiest device. `measured`: the fastest of several placements, timed here.
    """
    precision: str | None = None
    """Precision of floating-point computation: `float32`, `bfloat16` or `float16` on every device that has it, or
    `device`: the default of each device's own engine. `auto`: the first run compares that default with float32, and
    keeps it if all outputs agree to 30 dB. None: each device's option `precision`. That option and the precision in
    a lane's name (`openvino@bfloat16`) override this one. See docs/devices.md.
    """
    fallback: Fallback = "warn"
    """Reaction when a device's work falls back to the CPU: `warn` once per cause, `allow` silently, or `forbid` (an
    error). A mapping sets it per stage (`load`, `compile`, `run`, `accuracy`); other stages warn. See
    docs/failures.md.
    """
    rules: str | os.PathLike[str] | Rules | None = None
    """Pins, bans and limits: path of a TOML file, its text, or `Rules`."""
    plan: str | os.PathLike[str] | None = None
    """Plan file of `nnadapter report --save-plan`. Each node goes to its device in the file if that device still
    supports it.
    """
    max_plans: int = 64
    """Maximum number of compiled plans, one per set of input shapes. Plans used only once are evicted first, then the
    least recently used.
    """
    max_plan_bytes: int = 1 << 30
    """Maximum bytes of all compiled plans, as far as known, without shared weights. Plans are evicted as for
    `max_plans`, but the most recently used one remains.
    """
    background: bool = False
    """True: no run waits for a compilation. Until a thread has compiled a plan for new shapes, the CPU runs the entire
    model. The device of a run then depends on timing, and weights are in memory twice. Recurring shapes should not
    exceed `max_plans`. False: runs wait, so behavior is deterministic.
    """
    deadline_s: float | None = None
    """Maximum seconds of a run, without compilation and the wait for other runs of a stream. A slower run raises
    DeadlineExceededError before its next step, or within a step if the device can stop. Per run:
    `run_options.add_run_config_entry("nnadapter.deadline_s", "0.5")`.
    """
    isolate: bool | Collection[str] | Mapping[str, Any] | None = None
    """Devices that run in a process of their own, so that a crash or hang becomes an error (docs/failures.md). True:
    all accelerators. Otherwise names, or names with timeouts in seconds per phase: `{"openvino": {"run": 0.5}}`.
    None: as NNADAPTER_ISOLATE requires (1, or names). A device's option `isolate` overrides it.
    """
    trace: str | os.PathLike[str] | None = None
    """Trace file for ui.perfetto.dev and chrome://tracing, written when the session closes or by
    `InferenceSession.end_profiling`.
    """
    cache_dir: str | os.PathLike[str] | bool | None = None
    """Folder that caches plans and programs between sessions (docs/cache.md). True: NNADAPTER_CACHE_DIR, or the
    platform's cache folder. None: NNADAPTER_CACHE_DIR if set. False: no cache. Cached programs are executed: trust
    it as code.
    """
    max_cache_bytes: int = 1 << 32
    """Maximum bytes of the cache folder. The least recently used entries are evicted."""
    verify: str | None = None
    """`once`: compare every program with the CPU on its first feed, once per driver version. Nodes beyond tolerance
    move to other devices, and the run returns correct results. See docs/accuracy.md.
    """
    shadow: int | None = None
    """N: compare one run in N with the CPU, step by step. A device that repeatedly exceeds its tolerance is withdrawn.
    See docs/accuracy.md.
    """

    def __post_init__(self) -> None:
        _one_of("policy", self.policy, tuple(POLICIES))
        _check_precision(self.precision)
        _check_fallback(self.fallback)
        for name in ("max_plans", "max_plan_bytes", "max_cache_bytes"):
            _positive(name, getattr(self, name))
        if self.shadow is not None:
            _positive("shadow", self.shadow)
        _seconds("deadline_s", self.deadline_s)
        self._check_background()
        if self.verify is not None:
            _one_of("verify", self.verify, VERIFYING)
        _check_isolate(self.isolate)
        path = (str, os.PathLike, type(None))
        if not isinstance(self.rules, path) and not isinstance(self.rules, _rules()):
            raise _invalid("rules", "a path, TOML text or nnadapter.Rules", self.rules)
        if not isinstance(self.plan, path):
            raise _invalid("plan", "the path of a plan file", self.plan)
        if not isinstance(self.trace, path) or self.trace == "":
            raise _invalid("trace", "the path of a file to write", self.trace)
        if not isinstance(self.cache_dir, (*path, bool)) or self.cache_dir == "":
            raise _invalid("cache_dir", "the path of a folder, or True", self.cache_dir)

    def _check_background(self) -> None:
        if not isinstance(self.background, bool):
            raise _invalid("background", "True or False", self.background)
        if not self.background:
            return
        if POLICIES[self.policy].times:
            raise InvalidOptionError(
                f"option 'background' would run the CPU while policy {self.policy!r} times devices; choose "
                "another policy, or leave it out"
            )
        if self.precision == "auto":
            raise InvalidOptionError(
                "option 'background' runs the CPU first, and precision 'auto' compares the first outputs of devices; "
                "leave one of them out"
            )
        for stage in ("compile", "run"):
            if self.fallback_at(stage) == "forbid":
                raise InvalidOptionError(
                    "option 'background' runs the model on the CPU, which option 'fallback' forbids at stage "
                    f"{stage!r}; leave one of them out"
                )

    @property
    def checks(self) -> bool:
        return self.verify is not None or self.shadow is not None

    @property
    def isolated(self) -> bool | Collection[str] | Mapping[str, Any]:
        """`isolate`, or NNADAPTER_ISOLATE if that is None."""
        if self.isolate is not None:
            return self.isolate
        text = os.environ.get("NNADAPTER_ISOLATE", "").strip()
        if text.lower() in ("", "0", "1", "true", "false"):
            return text.lower() in ("1", "true")
        return tuple(name.strip() for name in text.split(",") if name.strip())

    def fallback_at(self, stage: str) -> str:
        return fallback_at(self.fallback, stage)


def fallback_at(fallback: Fallback, stage: str) -> str:
    """Return the value of `Options.fallback` for a stage."""
    return fallback if isinstance(fallback, str) else fallback.get(stage, "warn")


def fallback_text(fallback: Fallback) -> str:
    """Return `Options.fallback` as text."""
    if isinstance(fallback, str):
        return fallback
    return ", ".join(f"{stage}: {fallback_at(fallback, stage)}" for stage in STAGES)


def _rules() -> type[Rules]:
    from nnadapter.rules.values import Rules

    return Rules


def refuse_misplaced(arguments: Iterable[str], parameters: Sequence[str]) -> None:
    """Raise InvalidOptionError if an unknown argument's name is an option, or resembles an option or a parameter."""
    field_names = [field.name for field in fields(Options)]
    for name in arguments:
        if name in field_names:
            raise InvalidOptionError(
                f"{name!r} is a field of nnadapter.Options, not an argument; pass options=nnadapter.Options({name}=...)"
            )
        from difflib import get_close_matches  # lazily: most sessions have no wrong name

        close = get_close_matches(name, [*field_names, *parameters], n=1, cutoff=0.75)
        if close:
            raise InvalidOptionError(f"a session takes no argument {name!r}; did you mean {close[0]!r}?")


def options_from(options: Options | Mapping[str, Any] | None) -> Options:
    """Return `options` as an `Options`; a mapping holds its fields by name. Raises InvalidOptionError."""
    if options is None:
        return Options()
    if isinstance(options, Options):
        return options
    field_names = [field.name for field in fields(Options)]
    if not isinstance(options, Mapping):
        raise InvalidOptionError(f"options must be nnadapter.Options or a mapping, got {type(options).__name__}")
    for name in options:
        if name not in field_names:
            raise InvalidOptionError(f"there is no option {name!r}; {close_names(name, field_names)}")
    return Options(**options)


def of_session(options: Options) -> Options:
    """Return the options, with `cache_dir` True if it is None and NNADAPTER_CACHE_DIR is set."""
    is_named = options.cache_dir is None and os.environ.get("NNADAPTER_CACHE_DIR", "").strip()
    return replace(options, cache_dir=True) if is_named else options


_process_device: list[str] = []
_lock = new_lock()


def set_default_devices(names: list[str]) -> None:
    """Set the devices of sessions that request none."""
    with _lock:
        _process_device[:] = names


def default_devices() -> list[str]:
    """Return the devices of sessions that request none: as set, otherwise NNADAPTER_DEVICES, otherwise the CPU."""
    with _lock:
        if _process_device:
            return list(_process_device)
    named = [name.strip() for name in os.environ.get("NNADAPTER_DEVICES", "").split(",")]
    return [name for name in named if name] or ["cpu"]


def _invalid(name: str, expected: str, value: object, advice: str = "") -> InvalidOptionError:
    return InvalidOptionError(f"option {name!r} must be {expected}, got {value!r}{advice}")


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise _invalid(name, f"one of {', '.join(choices)}", value, near_names(value, choices, "; "))


def _check_precision(precision: object) -> None:
    if precision in _QUANTIZED:
        raise InvalidOptionError(
            f"option 'precision' is {precision!r}, which is for quantized models: use `nnadapter quantize` first"
        )
    if precision is not None:
        _one_of("precision", precision, PRECISIONS)


def _check_fallback(fallback: object) -> None:
    for stage, reaction in fallback.items() if isinstance(fallback, Mapping) else [(STAGES[0], fallback)]:
        _one_of("fallback", reaction, FALLBACKS)
        if stage not in STAGES:
            raise InvalidOptionError(f"option 'fallback' has no stage {stage!r}; {close_names(stage, STAGES)}")


def _check_isolate(isolate: object) -> None:
    names = isolate if isinstance(isolate, Collection) and not isinstance(isolate, (str, bytes)) else None
    if not (isolate is None or isinstance(isolate, bool)) and (
        names is None or not all(isinstance(name, str) for name in names)
    ):
        raise _invalid("isolate", "True, False, or names of devices", isolate)


def _positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _invalid(name, "an integer of at least 1", value)


def _seconds(name: str, value: object) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and value > 0
    if value is not None and not number:
        raise _invalid(name, "a number of seconds above 0, or None", value)
