"""What faults there are, in which phases they can come, and what a script may say of them: one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """When a driver is called."""

    OPEN = "open"
    """`Driver.open`."""
    CONTEXT = "context"
    """`Device.create_context`."""
    JUDGE = "judge"
    """`Context.supported`."""
    ADMIT = "admit"
    """`Context.admit`."""
    COMPILE = "compile"
    """`Context.compile`, `compile_whole` and `bind`."""
    DESERIALIZE = "deserialize"
    """Programs as bytes: `Context.deserialize`, `deserialize_view` and `check_blob`, `Program.serialize`."""
    CREATE = "create"
    """`Program.create_execution`."""
    RUN = "run"
    """`Execution.compute` and all others that compute."""
    CLOSE = "close"
    """`close` of executions, programs and contexts."""


class Kind(StrEnum):
    """What goes wrong; `KINDS` says more."""

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
    """What there is to know of a kind."""

    what: str
    """What it does."""
    phases: frozenset[Phase]
    """In which it can come."""
    keys: tuple[str, ...] = ()
    """What a script may say of it, beside when it comes."""


_ANY = frozenset(Phase)
_RUN = frozenset((Phase.RUN,))
_BLOB = frozenset((Phase.DESERIALIZE,))
_ASKED = frozenset((Phase.JUDGE, Phase.ADMIT))

KINDS: Mapping[Kind, KindRow] = {
    Kind.FAIL: KindRow("raises an error of `nnadapter.errors`, `error`", _ANY, ("error", "message")),
    Kind.RAISE: KindRow("raises an exception of Python's own, `error`", _ANY, ("error", "message")),
    Kind.OUT_OF_MEMORY: KindRow("raises OutOfMemoryError", _ANY, ("message",)),
    Kind.DEVICE_LOST: KindRow(
        "raises DeviceLostError, now and at each later call of the context but `close`, for `seconds` or for ever",
        _ANY,
        ("seconds", "message"),
    ),
    Kind.CRASH: KindRow("kills the process by a signal, `signal`", _ANY, ("signal",)),
    Kind.EXIT: KindRow("ends the process with an exit code, `code`", _ANY, ("code",)),
    Kind.HANG: KindRow("does not come back, for `seconds` or for ever", _ANY, ("seconds",)),
    Kind.SLOW: KindRow("takes `seconds` longer", _ANY, ("seconds",)),
    Kind.SAYS_YES: KindRow("says yes to what the device refuses", _ASKED),
    Kind.SAYS_NO: KindRow("says no to what the device takes", _ASKED),
    Kind.WRONG_COUNT: KindRow("gives one verdict, or one output, too few", frozenset((Phase.JUDGE, Phase.RUN))),
    Kind.WRONG_SHAPE: KindRow("gives outputs of another rank", _RUN, ("output",)),
    Kind.WRONG_DTYPE: KindRow("gives outputs of another data type", _RUN, ("output",)),
    Kind.NAN: KindRow("gives NaN in every element of floating-point outputs", _RUN, ("output",)),
    Kind.FLIPPED_BITS: KindRow("flips `bits` bits of outputs", _RUN, ("output", "bits")),
    Kind.WRITES_INPUTS: KindRow("writes to its inputs, before it fails or computes what is right", _RUN),
    Kind.KEEPS_OUTPUTS: KindRow("keeps the outputs it gave, and writes to them at the next run", _RUN),
    Kind.DAMAGED_BLOB: KindRow("`serialize` gives bytes some of which are others", _BLOB),
    Kind.FOREIGN_BLOB: KindRow("`serialize` gives the program before this one, or bytes of nobody", _BLOB),
    Kind.LIES_ABOUT_BLOB: KindRow("`check_blob` says the opposite", _BLOB),
}
"""Every kind."""
WRITING = frozenset((Kind.DAMAGED_BLOB, Kind.FOREIGN_BLOB))
"""Of `serialize`, in the phase of programs as bytes."""
CHECKING = frozenset((Kind.LIES_ABOUT_BLOB,))
"""Of `check_blob` there."""
READING = frozenset(Kind) - WRITING - CHECKING
"""Of `deserialize` there, and of all other phases."""
