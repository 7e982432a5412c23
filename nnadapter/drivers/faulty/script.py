"""Fault scripts: kinds, phases and validated values, read from TOML."""

from __future__ import annotations

import builtins
import inspect
import json
import os
import signal as signals
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import fields, force_setattr

from nnadapter import errors
from nnadapter.errors import FaultScriptError, NNAdapterError, close_names
from nnadapter.files.documents import FileKind, check_fields
from nnadapter.records import dataclass


class Phase(StrEnum):
    """Kind of driver call in which a fault may occur."""

    OPEN = "open"
    CONTEXT = "context"
    JUDGE = "judge"
    ADMIT = "admit"
    COMPILE = "compile"
    """`Context.compile`, `compile_whole_graph` and `clone_with_constants`."""
    DESERIALIZE = "deserialize"
    """`Context.deserialize`, `Context.deserialize_view`, `Context.check_blob` and `Program.serialize`."""
    CREATE = "create"
    RUN = "run"
    """`Execution.compute` and its variants."""
    CLOSE = "close"


class Kind(StrEnum):
    """Kind of a fault, described in `KINDS`."""

    FAIL = "fail"
    RAISE = "raise"
    OUT_OF_MEMORY = "out_of_memory"
    DEVICE_LOST = "device_lost"
    CRASH = "crash"
    EXIT = "exit"
    HANG = "hang"
    SLOW = "slow"
    SAYS_YES = "says_yes"
    SAYS_NO = "says_no"
    WRONG_COUNT = "wrong_count"
    WRONG_SHAPE = "wrong_shape"
    WRONG_DTYPE = "wrong_dtype"
    NAN = "nan"
    FLIPPED_BITS = "flipped_bits"
    WRITES_INPUTS = "writes_inputs"
    KEEPS_OUTPUTS = "keeps_outputs"
    DAMAGED_BLOB = "damaged_blob"
    FOREIGN_BLOB = "foreign_blob"
    LIES_ABOUT_BLOB = "lies_about_blob"


@dataclass(frozen=True, slots=True)
class KindRow:
    """Description of a kind of fault, its phases and keys."""

    description: str
    phases: frozenset[Phase]
    keys: tuple[str, ...] = ()
    """Allowed keys, in addition to keys that select calls."""


_ANY = frozenset(Phase)
_RUN = frozenset((Phase.RUN,))
_BLOB = frozenset((Phase.DESERIALIZE,))
_VERDICT_PHASES = frozenset((Phase.JUDGE, Phase.ADMIT))

KINDS: Mapping[Kind, KindRow] = {
    Kind.FAIL: KindRow("raises an error of `nnadapter.errors`, `error`", _ANY, ("error", "message")),
    Kind.RAISE: KindRow("raises an exception of Python's own, `error`", _ANY, ("error", "message")),
    Kind.OUT_OF_MEMORY: KindRow("raises OutOfMemoryError", _ANY, ("message",)),
    Kind.DEVICE_LOST: KindRow(
        "raises DeviceLostError, now and at each later call of the context except `close`, for `seconds` or forever",
        _ANY,
        ("seconds", "message"),
    ),
    Kind.CRASH: KindRow("kills the process by a signal, `signal`", _ANY, ("signal",)),
    Kind.EXIT: KindRow("ends the process with an exit code, `code`", _ANY, ("code",)),
    Kind.HANG: KindRow("does not return, for `seconds` or forever", _ANY, ("seconds",)),
    Kind.SLOW: KindRow("takes `seconds` longer", _ANY, ("seconds",)),
    Kind.SAYS_YES: KindRow("accepts operations that the device refuses", _VERDICT_PHASES),
    Kind.SAYS_NO: KindRow("refuses operations that the device supports", _VERDICT_PHASES),
    Kind.WRONG_COUNT: KindRow("returns one verdict or output too few", frozenset((Phase.JUDGE, Phase.RUN))),
    Kind.WRONG_SHAPE: KindRow("returns outputs of another rank", _RUN, ("output",)),
    Kind.WRONG_DTYPE: KindRow("returns outputs of another data type", _RUN, ("output",)),
    Kind.NAN: KindRow("returns NaN in every element of floating-point outputs", _RUN, ("output",)),
    Kind.FLIPPED_BITS: KindRow("flips `bits` bits of outputs", _RUN, ("output", "bits")),
    Kind.WRITES_INPUTS: KindRow("writes to its inputs before it computes correctly, or fails", _RUN),
    Kind.KEEPS_OUTPUTS: KindRow("retains its outputs and writes to them at the next run", _RUN),
    Kind.DAMAGED_BLOB: KindRow("`serialize` returns damaged bytes", _BLOB),
    Kind.FOREIGN_BLOB: KindRow("`serialize` returns the previous program, or foreign bytes", _BLOB),
    Kind.LIES_ABOUT_BLOB: KindRow("`check_blob` returns the opposite", _BLOB),
}
WRITING = frozenset((Kind.DAMAGED_BLOB, Kind.FOREIGN_BLOB))
"""Kinds of faults in `Program.serialize`."""
CHECKING = frozenset((Kind.LIES_ABOUT_BLOB,))
"""Kinds of faults in `Context.check_blob`."""
READING = frozenset(Kind) - WRITING - CHECKING
"""Kinds of faults in all other calls."""


Text = Annotated[str, Meta(min_length=1)]
Number = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]

_OF_KINDS = ("error", "message", "signal", "code", "seconds", "output", "bits")


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Fault to inject if all conditions on the driver call hold.

    Matching calls are counted from 1. Runs, creations and closings are counted per program, other calls per context.

    Raises:
        FaultScriptError: a value is invalid, or does not apply to the kind.
    """

    kind: Kind
    phase: Phase
    op_type: Text | None = None
    """Operation in the model: type of the adapter IR, or ONNX op type. Case and underscores are ignored; `Conv` matches
    CONV_2D.
    """
    name: Text | None = None
    """Node in the model; `*` matches any characters."""
    nth: Number | None = None
    """Number of the only call with the fault."""
    from_: Number | None = None
    """Number of the first call with the fault."""
    every: Number | None = None
    """Number of calls from one occurrence to the next."""
    times: Number | None = None
    """Maximum number of occurrences."""
    probability: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Fraction of calls with the fault. The seed and the call number determine these calls, regardless of threads."""
    error: Text | None = None
    """Exception class of `fail` and `raise`."""
    message: Text | None = None
    signal: Text | None = None
    """Signal of `crash`; SIGSEGV by default."""
    code: Annotated[int, Meta(ge=0, le=255)] | None = None
    """Exit code of `exit`; 3 by default."""
    seconds: Seconds | None = None
    """Duration of `slow`, `hang` and `device_lost`. By default, `hang` and `device_lost` last forever."""
    output: Annotated[int, Meta(ge=0)] | None = None
    """Index of the output that is altered; by default all outputs."""
    bits: Number | None = None
    """Number of flipped bits per output; 1 by default."""

    def __post_init__(self) -> None:
        force_setattr(self, "kind", _enum_member(Kind, self.kind, "kind"))
        force_setattr(self, "phase", _enum_member(Phase, self.phase, "phase"))
        check_fields(self, FaultScriptError)
        row = KINDS[self.kind]
        if self.phase not in row.phases:
            allowed = " or ".join(repr(phase.value) for phase in Phase if phase in row.phases)
            raise FaultScriptError(
                f"faults of kind {self.kind.value!r} occur in phase {allowed}, not in {self.phase.value!r}", key="phase"
            )
        for key in _OF_KINDS:
            if getattr(self, key) is not None and key not in row.keys:
                takes = ", ".join(map(repr, row.keys)) or "none"
                raise FaultScriptError(
                    f"faults of kind {self.kind.value!r} have no key {key!r}; apart from keys that select calls, they "
                    f"have {takes}",
                    key=key,
                )
        if self.nth is not None and not (self.from_ is self.every is self.times is None):
            raise FaultScriptError(
                "'nth' selects one call and cannot be combined with 'from', 'every' or 'times'", key="nth"
            )
        _check_details(self)

    def to_toml(self) -> str:
        rows = (
            (field_info.encode_name, getattr(self, field_info.name), field_info.default) for field_info in fields(self)
        )
        lines = (f"{name} = {_written(value)}\n" for name, value, default in rows if value != default)
        return f"[[fault]]\n{''.join(lines)}"


class Script(Struct, frozen=True, kw_only=True):
    """Script of faults."""

    faults: tuple[Fault, ...] = ()
    seed: Seed = 0
    log: str = ""
    """Path of a log. If the file exists, counts continue from it."""

    def __post_init__(self) -> None:
        force_setattr(self, "faults", tuple(self.faults))
        check_fields(self, FaultScriptError)

    def __iter__(self) -> Iterator[tuple[int, Fault]]:
        return enumerate(self.faults, 1)

    def to_toml(self) -> str:
        head = f"seed = {self.seed}\n" + (f"log = {_written(self.log)}\n" if self.log else "")
        return "\n".join((head, *(fault.to_toml() for fault in self.faults)))


def error_class(fault: Fault) -> type[BaseException]:
    """Return the exception class of `fail` or `raise`."""
    if fault.error is None:
        return _DEFAULT_ERRORS[fault.phase] if fault.kind is Kind.FAIL else RuntimeError
    classes = _nnadapter_errors() if fault.kind is Kind.FAIL else _builtin_exceptions()
    if fault.error not in classes:
        where = "nnadapter.errors" if fault.kind is Kind.FAIL else "Python"
        raise FaultScriptError(
            f"{fault.error!r} is no exception of {where} that a fault can raise; {close_names(fault.error, classes)}",
            key="error",
        )
    return classes[fault.error]


def signal_number(fault: Fault) -> signals.Signals:
    """Return the signal of a crash."""
    name = "SIGSEGV" if fault.signal is None else fault.signal
    if name not in signals.Signals.__members__:
        raise FaultScriptError(
            f"{name!r} is not a signal of this system; {close_names(name, signals.Signals.__members__)}", key="signal"
        )
    return signals.Signals[name]


_DEFAULT_ERRORS: dict[Phase, type[NNAdapterError]] = {
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


@cache
def _nnadapter_errors() -> dict[str, type[BaseException]]:
    kinds = ((name, kind) for name, kind in vars(errors).items() if inspect.isclass(kind) and not name.startswith("_"))
    return {name: kind for name, kind in kinds if issubclass(kind, NNAdapterError)}


@cache
def _builtin_exceptions() -> dict[str, type[BaseException]]:
    kinds = ((name, kind) for name, kind in vars(builtins).items() if inspect.isclass(kind))
    return {name: kind for name, kind in kinds if issubclass(kind, BaseException) and _is_plain(kind)}


def _is_plain(kind: type[BaseException]) -> bool:
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
        raise FaultScriptError("a fault of kind 'slow' needs the key 'seconds'", key="seconds")


def _enum_member(kind: Any, value: object, key: str) -> Any:
    names = [member.value for member in kind]
    if value not in names:
        raise FaultScriptError(f"{value!r} is not a {key}; {close_names(value, names)}", key=key)
    return kind(value)


def _written(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


VARIABLE = "NNADAPTER_FAULTS"
TEXT = "the script's text"
"""Name of an inline script in messages."""


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    fault: tuple[Fault, ...] = ()
    seed: Seed = 0
    log: str = ""


_FILE = FileKind(
    name="script of faults",
    contents=_Document,
    error=FaultScriptError,
    advice="change the script; docs/failures.md has one of every kind",
    parse=tomllib.loads,
    hints={"fault": "write [[fault]], with two brackets"},
)


def read_script(source: str | os.PathLike[str]) -> Script:
    """Read a script from a TOML file, or from text with several lines.

    Raises:
        FaultScriptError: unreadable, invalid TOML, unknown key or invalid value.
    """
    if isinstance(source, str) and "\n" in source:
        document = _FILE.parsed(source.removeprefix("\ufeff"), TEXT)
    else:
        document = _FILE.read(source)
    return Script(faults=document.fault, seed=document.seed, log=document.log)


def script_in(environment: Mapping[str, str]) -> Script:
    """Return the script named by the environment."""
    named = environment.get(VARIABLE, "").strip("\ufeff ")
    return read_script(named) if named else Script()
