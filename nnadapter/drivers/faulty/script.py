"""A script as values: which faults come when, checked when they are made."""

from __future__ import annotations

import builtins
import inspect
import json
import signal as signals
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import fields, force_setattr

from nnadapter import errors
from nnadapter.drivers.faulty.kinds import KINDS, Kind, Phase
from nnadapter.errors import FaultScriptError, NNAdapterError, close_names
from nnadapter.files.strict import check_fields

Text = Annotated[str, Meta(min_length=1)]
Number = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]

_OF_KINDS = ("error", "message", "signal", "code", "seconds", "output", "bits")


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """One fault, and when it comes: at the calls that match everything which is given.

    Calls are counted from 1, those alone that match `phase`, `op_type` and `name`: for each program its runs, creations
    and closings, for each context everything else.

    Raises:
        FaultScriptError: a value does not fit, or does not go with the kind.
    """

    kind: Kind
    """What goes wrong."""
    phase: Phase
    """When the driver is called."""
    op_type: Text | None = None
    """Calls about a model with such an operation: a type of the adapter IR, or an ONNX op type for devices that take
    ONNX; case and underscores do not matter, and `Conv` is CONV_2D as well."""
    name: Text | None = None
    """Calls about a model with a node of such a name; `*` stands for any characters."""
    nth: Number | None = None
    """The one call of this number."""
    from_: Number | None = None
    """Calls from this number on."""
    every: Number | None = None
    """Of those, the first and then every so many-th."""
    times: Number | None = None
    """At most so often."""
    probability: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Of these calls so many, chosen by the seed: for each program the same ones, whatever the threads."""
    error: Text | None = None
    """What `fail` and `raise` raise: the name of a class."""
    message: Text | None = None
    """What the error says."""
    signal: Text | None = None
    """The signal of `crash`; SIGSEGV unless said otherwise."""
    code: Annotated[int, Meta(ge=0, le=255)] | None = None
    """The exit code of `exit`; 3 unless said otherwise."""
    seconds: Seconds | None = None
    """How long `slow` takes, and `hang` and `device_lost` last; these for ever unless it is said."""
    output: Annotated[int, Meta(ge=0)] | None = None
    """Which output is wrong, counted from 0; all of them unless it is said."""
    bits: Number | None = None
    """How many bits `flipped_bits` flips in each output; 1 unless said otherwise."""

    def __post_init__(self) -> None:
        """Check every value by itself, then against the kind."""
        force_setattr(self, "kind", _known(Kind, self.kind, "kind"))
        force_setattr(self, "phase", _known(Phase, self.phase, "phase"))
        check_fields(self, FaultScriptError)
        row = KINDS[self.kind]
        if self.phase not in row.phases:
            allowed = " or ".join(repr(phase.value) for phase in Phase if phase in row.phases)
            raise FaultScriptError(f"{self.kind.value!r} comes in {allowed}, not in {self.phase.value!r}", key="phase")
        for key in _OF_KINDS:
            if getattr(self, key) is not None and key not in row.keys:
                takes = ", ".join(map(repr, row.keys)) or "nothing"
                raise FaultScriptError(f"{self.kind.value!r} takes no {key!r}; beside when it comes: {takes}", key=key)
        if self.nth is not None and not (self.from_ is self.every is self.times is None):
            raise FaultScriptError("'nth' is one call, and goes with none of 'from', 'every' and 'times'", key="nth")
        _check_details(self)

    def to_toml(self) -> str:
        """The fault as a script has it."""
        rows = (
            (field_info.encode_name, getattr(self, field_info.name), field_info.default) for field_info in fields(self)
        )
        lines = (f"{name} = {_written(value)}\n" for name, value, default in rows if value != default)
        return f"[[fault]]\n{''.join(lines)}"


class Script(Struct, frozen=True, kw_only=True):
    """What the device `faulty` does wrong.

    Raises:
        FaultScriptError: a value is of the wrong type.
    """

    faults: tuple[Fault, ...] = ()
    """In the order in which they are made where several come at one call."""
    seed: Seed = 0
    """Decides what `probability` and the faults themselves leave open."""
    log: str = ""
    """A file that gets a line of JSON for each fault; counts of another process, or another context, go on from it."""

    def __post_init__(self) -> None:
        """Check every value."""
        force_setattr(self, "faults", tuple(self.faults))
        check_fields(self, FaultScriptError)

    def __iter__(self) -> Iterator[tuple[int, Fault]]:
        """Each fault behind its number, counted from 1."""
        return enumerate(self.faults, 1)

    def to_toml(self) -> str:
        """The script as a text: the option `script` of the device, or what a file holds."""
        head = f"seed = {self.seed}\n" + (f"log = {_written(self.log)}\n" if self.log else "")
        return "\n".join((head, *(fault.to_toml() for fault in self.faults)))


def error_class(fault: Fault) -> type[BaseException]:
    """The class that `fail` or `raise` raises.

    Raises:
        FaultScriptError: there is no such class.
    """
    if fault.error is None:
        return _USUAL[fault.phase] if fault.kind is Kind.FAIL else RuntimeError
    classes = _ours() if fault.kind is Kind.FAIL else _pythons()
    if fault.error not in classes:
        where = "nnadapter.errors" if fault.kind is Kind.FAIL else "Python's own exceptions"
        raise FaultScriptError(
            f"{fault.error!r} is none of {where} that a fault can be; {close_names(fault.error, classes)}", key="error"
        )
    return classes[fault.error]


def signal_number(fault: Fault) -> signals.Signals:
    """The signal of a crash.

    Raises:
        FaultScriptError: the system has no such signal.
    """
    name = "SIGSEGV" if fault.signal is None else fault.signal
    if name not in signals.Signals.__members__:
        raise FaultScriptError(
            f"{name!r} is no signal of this system; {close_names(name, signals.Signals.__members__)}", key="signal"
        )
    return signals.Signals[name]


_USUAL: dict[Phase, type[NNAdapterError]] = {
    Phase.OPEN: errors.DriverError,
    Phase.CONTEXT: errors.DriverError,
    Phase.JUDGE: errors.DriverError,
    Phase.ADMIT: errors.DriverError,
    Phase.COMPILE: errors.CompilationError,
    Phase.DESERIALIZE: errors.IncompatibleProgramError,
    Phase.CREATE: errors.ExecutionError,
    Phase.RUN: errors.ExecutionError,
    Phase.CLOSE: errors.DriverError,
}
"""What `fail` raises where a script does not say."""


@cache
def _ours() -> dict[str, type[BaseException]]:
    kinds = ((name, kind) for name, kind in vars(errors).items() if inspect.isclass(kind) and not name.startswith("_"))
    return {name: kind for name, kind in kinds if issubclass(kind, NNAdapterError)}


@cache
def _pythons() -> dict[str, type[BaseException]]:
    kinds = ((name, kind) for name, kind in vars(builtins).items() if inspect.isclass(kind))
    return {name: kind for name, kind in kinds if issubclass(kind, BaseException) and _is_plain(kind)}


def _is_plain(kind: type[BaseException]) -> bool:
    """Whether a text is enough for it, and nobody else raises it at will, as Ctrl-C does."""
    if issubclass(kind, (Warning, KeyboardInterrupt)):
        return False
    try:
        kind("")
    except TypeError:
        return False
    return True


def _check_details(fault: Fault) -> None:
    if fault.kind in (Kind.FAIL, Kind.RAISE):
        error_class(fault)
    if fault.kind is Kind.CRASH:
        signal_number(fault)
    if fault.kind is Kind.SLOW and fault.seconds is None:
        raise FaultScriptError("'slow' needs 'seconds'", key="seconds")


def _known(kind: Any, value: object, key: str) -> Any:
    """A member of an enumeration, which may be given by its value."""
    names = [member.value for member in kind]
    if value not in names:
        raise FaultScriptError(f"{value!r} is no {key}; {close_names(value, names)}", key=key)
    return kind(value)


def _written(value: object) -> str:
    """A value in TOML; its texts are those of JSON."""
    return json.dumps(value) if isinstance(value, str) else repr(value)
