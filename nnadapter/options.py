"""Settings of a session, and what the environment says of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

from nnadapter.errors import InvalidOptionError, close_names, near_names
from nnadapter.policies import POLICIES
from nnadapter.process.resources import new_lock

if TYPE_CHECKING:
    from nnadapter.rules.values import Rules

FALLBACKS = ("warn", "allow", "forbid")
STAGES = ("load", "compile", "run", "accuracy")
"""Where a device may fail: when it is opened and asked, when it compiles, when it runs, and in what it computed."""
Fallback = str | Mapping[str, str]
"""One of `FALLBACKS`, or one for each of some of `STAGES`."""


VERIFYING = ("once",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a session decides. Raises InvalidOptionError for a value that does not fit."""

    policy: str = "priority"
    """How nodes are placed: `priority`, the first device in the person's order that takes the node; `latency`, the
    cheapest placement found, by calibrated or simulated costs; `throughput`, by the same costs, the one whose busiest
    device has the least to do, for `stream`; `measured`, the fastest of some, timed here."""
    fallback: Fallback = "warn"
    """When something a device should have done goes to the CPU instead: `warn`, once for each cause, `allow` silently
    (it is in the report all the same), or `forbid` (a typed error). Or one of these for each of some stages, `warn` for
    the others: `load` (a device is opened, asked what it takes, reads programs), `compile`, `run`, and `accuracy` (what
    it computes is found to be wrong). See docs/failures.md."""
    rules: str | os.PathLike[str] | Rules | None = None
    """Pins, bans and limits: a TOML file, its text, or `Rules`."""
    plan: str | os.PathLike[str] | None = None
    """A file made by `nnadapter report --save-plan`: where nodes go, as long as their device takes them."""
    max_plans: int = 64
    """How many sets of input shapes keep their compiled plan; what was used once and longest ago goes first."""
    max_plan_bytes: int = 1 << 30
    """How many bytes the compiled plans may hold together, beside weights that they share, as far as their devices
    say what they hold; what was used once and longest ago goes first, the one used last stays however large it is."""
    background: bool = False
    """True: no run waits for a device that compiles. A plan for shapes that have none as yet is made in a thread, and
    until then the CPU runs the model as it is; so which device a run has depends on the clock, and weights are held
    once more, for models of fixed shapes until their plan is made. Where more shapes come again and again than
    `max_plans`, and devices compile for each, plans are dropped before they are used. False: a run waits for its plan,
    and sessions that are used alike do alike."""
    deadline_s: float | None = None
    """Seconds that a run may take once it has its plan; in a stream over several devices, waits for its turn on one of
    them do not count. Then it raises DeadlineExceededError, before its next step or, where the device can stop, in the
    middle of one. A run that came to its end gives its results, however late. A run may have another one:
    `run_options.add_run_config_entry("nnadapter.deadline_s", "0.5")`."""
    isolate: bool | Collection[str] | Mapping[str, Any] | None = None
    """Devices that have a process of their own, so that a crash or a hang of their driver is an error
    (docs/isolation.md): True for all that accelerate, names, or names with seconds that they may take by phase, as
    `{"openvino": {"run": 0.5}}`. None, the default: those in NNADAPTER_ISOLATE (1, or names). False: none.
    `("fake_npu", {"isolate": True})` says it of one."""
    trace: str | os.PathLike[str] | None = None
    """A file that says, when the session is closed, what happened in it and when: it opens in ui.perfetto.dev and
    chrome://tracing. `InferenceSession.end_profiling` writes it sooner."""
    cache_dir: str | os.PathLike[str] | bool | None = None
    """A folder where plans and what drivers compile are kept between sessions, and found again where everything that
    decides them is the same (docs/cache.md); True for the usual one, in NNADAPTER_CACHE_DIR or the platform's folder.
    None, the default: sessions have the usual one where NNADAPTER_CACHE_DIR is set, else nothing is kept. False:
    nothing is kept. Programs in it are run: it is to be trusted as code is."""
    max_cache_bytes: int = 1 << 32
    """How many bytes that folder may hold; what was used longest ago goes first."""
    verify: str | None = None
    """`once`: a program that was never checked with this version of its driver is compared with the CPU on its first
    feed. Nodes that are beyond what the device's precision allows go elsewhere, and the run returns what is right. See
    docs/accuracy.md. None: nothing is compared."""
    shadow: int | None = None
    """N: one run in N is repeated on the CPU, step by step. A device that keeps being beyond what its precision allows
    is put aside. See docs/accuracy.md. None: no run is."""

    def __post_init__(self) -> None:
        """Check every value."""
        _one_of("policy", self.policy, tuple(POLICIES))
        _check_fallback(self.fallback)
        _positive("max_plans", self.max_plans)
        _positive("max_plan_bytes", self.max_plan_bytes)
        _positive("max_cache_bytes", self.max_cache_bytes)
        _seconds("deadline_s", self.deadline_s)
        self._check_background()
        if self.verify is not None:
            _one_of("verify", self.verify, VERIFYING)
        if self.shadow is not None:
            _positive("shadow", self.shadow)
        _check_isolate(self.isolate)
        if not isinstance(self.rules, (str, os.PathLike, type(None))) and not isinstance(self.rules, _rules()):
            raise InvalidOptionError(f"option 'rules' is a file, its text or nnadapter.Rules, got {self.rules!r}")
        if not isinstance(self.plan, (str, os.PathLike, type(None))):
            raise InvalidOptionError(f"option 'plan' is the path of a plan file, got {self.plan!r}")
        if not isinstance(self.trace, (str, os.PathLike, type(None))) or self.trace == "":
            raise InvalidOptionError(f"option 'trace' is the path of a file to be written, got {self.trace!r}")
        if not isinstance(self.cache_dir, (str, os.PathLike, bool, type(None))) or self.cache_dir == "":
            raise InvalidOptionError(f"option 'cache_dir' is the path of a folder, or True, got {self.cache_dir!r}")

    def _check_background(self) -> None:
        if not isinstance(self.background, bool):
            raise InvalidOptionError(f"option 'background' is True or False, got {self.background!r}")
        if not self.background:
            return
        if POLICIES[self.policy].times:
            raise InvalidOptionError(
                f"option 'background' has the CPU run beside what policy {self.policy!r} would time; choose another "
                "policy, or leave it out"
            )
        for stage in ("compile", "run"):
            if self.fallback_at(stage) == "forbid":
                raise InvalidOptionError(
                    f"option 'background' gives runs to the CPU, which option 'fallback' forbids at stage {stage!r}; "
                    "leave one of them out"
                )

    @property
    def checks(self) -> bool:
        """Whether runs are compared with the CPU."""
        return self.verify is not None or self.shadow is not None

    @property
    def isolated(self) -> bool | Collection[str] | Mapping[str, Any]:
        """Devices that have a process of their own, by `isolate` or, where that does not say, by NNADAPTER_ISOLATE."""
        if self.isolate is not None:
            return self.isolate
        text = os.environ.get("NNADAPTER_ISOLATE", "").strip()
        if text.lower() in ("", "0", "1", "true", "false"):
            return text.lower() in ("1", "true")
        return tuple(name.strip() for name in text.split(",") if name.strip())

    def fallback_at(self, stage: str) -> str:
        """Return what is done where a device fails at a stage: `warn`, `allow` or `forbid`."""
        return fallback_at(self.fallback, stage)


def fallback_at(fallback: Fallback, stage: str) -> str:
    """Return what `Options.fallback` says of a stage, one of `STAGES`."""
    return fallback if isinstance(fallback, str) else fallback.get(stage, "warn")


def fallback_text(fallback: Fallback) -> str:
    """Return what `Options.fallback` says, in words."""
    if isinstance(fallback, str):
        return fallback
    return ", ".join(f"{stage}: {fallback_at(fallback, stage)}" for stage in STAGES)


def _rules() -> type[Rules]:
    """The class, imported where somebody gives rules."""
    from nnadapter.rules.values import Rules

    return Rules


def refuse_misplaced(arguments: Iterable[str], parameters: Sequence[str]) -> None:
    """Refuse arguments of a session that look like options, or like other `parameters`; ONNX Runtime ignores any.

    Raises:
        InvalidOptionError: one is a field of `Options`, or is nearly called like one or like a parameter.
    """
    field_names = [field.name for field in fields(Options)]
    for name in arguments:
        if name in field_names:
            raise InvalidOptionError(
                f"{name!r} is a field of nnadapter.Options, not an argument; pass options=nnadapter.Options({name}=...)"
            )
        from difflib import get_close_matches  # most sessions end without a wrong name

        close = get_close_matches(name, [*field_names, *parameters], n=1, cutoff=0.75)
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
    field_names = [field.name for field in fields(Options)]
    if not isinstance(options, Mapping):
        raise InvalidOptionError(f"options are an nnadapter.Options, got {type(options).__name__}")
    for name in options:
        if name not in field_names:
            raise InvalidOptionError(f"there is no option {name!r}; {close_names(name, field_names)}")
    return Options(**options)


def of_session(options: Options) -> Options:
    """Return options with the usual cache, where they do not speak of one and NNADAPTER_CACHE_DIR names a folder."""
    is_named = options.cache_dir is None and os.environ.get("NNADAPTER_CACHE_DIR", "").strip()
    return replace(options, cache_dir=True) if is_named else options


_process_device: list[str] = []
_lock = new_lock()


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


def _check_fallback(fallback: object) -> None:
    if isinstance(fallback, Mapping):
        for stage, stage_fallback in fallback.items():
            _one_of("fallback", stage_fallback, FALLBACKS)
            if stage not in STAGES:
                raise InvalidOptionError(f"option 'fallback' knows no stage {stage!r}; {close_names(stage, STAGES)}")
    else:
        _one_of("fallback", fallback, FALLBACKS)


def _check_isolate(isolate: object) -> None:
    names = isolate if isinstance(isolate, Collection) and not isinstance(isolate, (str, bytes)) else None
    if not (isolate is None or isinstance(isolate, bool)) and (
        names is None or not all(isinstance(name, str) for name in names)
    ):
        raise InvalidOptionError(f"option 'isolate' is True, False, or names of devices, got {isolate!r}")


def _positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidOptionError(f"option {name!r} takes a whole number of at least 1, got {value!r}")


def _seconds(name: str, value: object) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and value > 0
    if value is not None and not number:
        raise InvalidOptionError(f"option {name!r} takes a number of seconds above 0, or None, got {value!r}")
