"""Behavior of sessions for every fault x phase x form x device x policy, compared with the documented behavior.

Devices wrap fake_npu, a driver in Python, and acme_c, one in C. Under `warn` results are right and there is one
warning; under `allow` there is no warning; under `forbid` an error of the package's tree has the device and the phase
in its fields. A fault that ends the process is tried in a child process. A cell is `not noticed` if only computing the
same again would show the fault.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser

import nnadapter as nna
from benchmarks.harness import ROOT, Results, command_in_process
from nnadapter.drivers import registry
from nnadapter.drivers.faulty import KINDS, WRITING, Fault, Kind, Phase, Script
from nnadapter.errors import PHASES, CacheWarning, DriverWarning, FallbackWarning, NNAdapterError
from tests.c_compiler import acme_among_devices

DEVICES = ("fake_npu", "acme_c")
FORMS = ("in process", "isolated")
POLICIES = ("warn", "allow", "forbid")
RUNS = 3
HANG_S, LIMIT_S, OPENING_S = 0.2, 2.0, 10.0
"""Seconds of a hang in this process, which cannot be ended; of the limit that kills another process; and of
the limit for opening a device there, with its imports."""
FATAL = frozenset((Kind.CRASH, Kind.EXIT))
"""Kinds that end the process."""
UNNOTICED = frozenset((Kind.NAN, Kind.FLIPPED_BITS, Kind.KEEPS_OUTPUTS))
"""Kinds that only computing the same again shows, as `Options.verify` and `shadow` do."""
HARMLESS = frozenset((Kind.SLOW, Kind.LIES_ABOUT_BLOB))
"""Kinds that only cost time."""
_MODEL = """<ir_version: 8, opset_import: ["": 17]>
matrix (float[4, 8] x) => (float[4, 8] y) {
    [first] a = Relu(x)
    [second] b = Add(a, x)
    [third] c = Add(b, b)
    [fourth] y = LAST
}"""
_LAST = {True: "Mul(c, c)", False: "Relu(c)"}
"""The last node, by whether the inner device refuses it."""
_ASKED = (Phase.JUDGE, Phase.ADMIT)


_GOOD = (
    "as promised",
    "not noticed",
    "not noticed: inputs are changed",
    "ends the process, said where",
    "ends the process",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark; each may be given several times."""
    parser.add_argument("--kind", action="append", choices=list(Kind))
    parser.add_argument("--phase", action="append", choices=list(Phase))
    parser.add_argument("--form", action="append", choices=FORMS)
    parser.add_argument("--device", action="append", choices=DEVICES)
    parser.add_argument("--policy", action="append", choices=POLICIES)


def run(options: argparse.Namespace, results: Results) -> None:
    """Try the chosen cells."""
    verdicts: dict[Cell, str] = {}
    with tempfile.TemporaryDirectory() as folder, acme_among_devices(Path(folder)):
        for cell in (candidate for candidate in cells(DEVICES) if _is_chosen(candidate, options)):
            observation = try_anywhere(cell)
            verdicts[cell] = verdict(cell, observation)
            if verdicts[cell] not in _GOOD:
                where = ", ".join(map(str, asdict(cell).values()))
                results.fail(f"{where}: {verdicts[cell]} | {observation.message[:300]}")
    table = results.table()
    for row in _summary(verdicts):
        table.add(row)
    good = sum(text in _GOOD for text in verdicts.values())
    results.note(f"{good} of {len(verdicts)} cells are as documented; {dict(Counter(verdicts.values()))}")


def _is_chosen(cell: Cell, options: argparse.Namespace) -> bool:
    return (
        cell.kind.value in (options.kind or list(Kind))
        and cell.phase.value in (options.phase or list(Phase))
        and cell.form in (options.form or FORMS)
        and cell.device in (options.device or DEVICES)
        and cell.policy in (options.policy or POLICIES)
    )


def _summary(verdicts: Mapping[Cell, str]) -> Iterator[dict[str, str]]:
    """Yield a row for each fault and phase, with a column for each form and device."""
    columns = list(dict.fromkeys((cell.form, cell.device) for cell in verdicts))
    for kind, phase in dict.fromkeys((cell.kind, cell.phase) for cell in verdicts):
        row = {"fault": kind.value, "phase": phase.value}
        for form, device in columns:
            counts = Counter(
                text
                for cell, text in verdicts.items()
                if (cell.kind, cell.phase, cell.form, cell.device) == (kind, phase, form, device)
            )
            texts = [text if len(counts) == 1 else f"{text} x{count}" for text, count in counts.items()]
            row[f"{form}, {device}"] = "; ".join(texts)
        yield row


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of the matrix."""

    kind: Kind
    phase: Phase
    device: str
    """The inner device."""
    form: str
    policy: str

    @property
    def ends_the_process(self) -> bool:
        """Check whether the fault ends this process."""
        return self.form == "in process" and self.kind in FATAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Outcome of a cell."""

    right: int = 0
    """Runs with right results."""
    wrong: int = 0
    """Runs with wrong results."""
    noted: int = 0
    """Programs that were compiled again, by the report."""
    warned: tuple[str, ...] = ()
    """Categories of warnings."""
    error: str = ""
    """Class of the raised error."""
    typed: bool = False
    """The error is an NNAdapterError."""
    device: str | None = None
    phase: str | None = None
    """Fields of the error."""
    made: bool = True
    """The fault occurred."""
    input_changed: bool = False
    """The caller's array has changed."""
    message: str = ""
    ended: str = ""
    """Exit code of a process that ended, and the line of its trace that names the call."""


def cells(devices: tuple[str, ...], forms: tuple[str, ...] = FORMS) -> Iterator[Cell]:
    """Yield every fault x phase x device x form x policy."""
    for kind, row in KINDS.items():
        for phase in (phase_choice for phase_choice in Phase if phase_choice in row.phases):
            for device in devices:
                for form in forms:
                    for policy in POLICIES:
                        yield Cell(kind=kind, phase=phase, device=device, form=form, policy=policy)


def fault_of(cell: Cell) -> Fault:
    """Return the fault of a cell, which occurs once, except in questions, which are asked again."""
    more: dict[str, Any] = {} if cell.phase in _ASKED and cell.kind not in FATAL else {"times": 1}
    if cell.kind is Kind.SLOW or (cell.kind is Kind.HANG and cell.form == "in process"):
        more["seconds"] = HANG_S
    return Fault(kind=cell.kind, phase=cell.phase, **more)


def forget_process(device: str) -> None:
    """End the process of an isolated device, so that the next cell starts a new one; a lost process would rest."""
    isolated = registry._isolated.pop(f"faulty:{device}", None)
    if isolated is not None:
        isolated.close()


def try_cell(cell: Cell) -> Seen:
    """Run a session with one fault: open, a few runs, close. If programs are read, compile them first."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        log = Path(folder, "log")
        script = Script(faults=(fault_of(cell),), log=str(log)).to_toml()
        x = np.random.default_rng(0).standard_normal((4, 8), np.float32)
        original = x.copy()
        counts = {"right": 0, "wrong": 0, "noted": 0}
        fields: dict[str, Any] = {}
        try:
            with _opened_by(cell, script) as devices:
                _session(cell, devices, Path(folder, "compiled.nna"), x, counts)
        except Exception as error:  # noqa: BLE001  any error is an outcome
            fields = _fields_of(error)
        forget_process(cell.device)
        was_injected = log.exists() and '"kind"' in log.read_text()
    ours = (FallbackWarning, DriverWarning, CacheWarning)
    warned = tuple(warning.category.__name__ for warning in caught_warnings if issubclass(warning.category, ours))
    message = fields.pop("message", "") or " | ".join(str(warning.message) for warning in caught_warnings)
    changed = not np.array_equal(x, original)
    return Seen(**counts, warned=warned, **fields, made=was_injected, input_changed=changed, message=message)


def try_anywhere(cell: Cell) -> Seen:
    """Try a cell in this process if the process survives it and has not opened the device, in a child otherwise."""
    if not cell.ends_the_process and not (cell.phase is Phase.OPEN and cell.form == "in process"):
        return try_cell(cell)
    command = command_in_process(try_plain_cell, asdict(cell))
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    if process.returncode == 0 and process.stdout.strip():
        plain = json.loads(process.stdout.splitlines()[-1])
        return Seen(**{**plain, "warned": tuple(plain["warned"])})
    line = next((line for line in process.stderr.splitlines() if "call '" in line), process.stderr.strip()[-200:])
    return Seen(ended=f"{process.returncode}: {line}", message=line)


def try_plain_cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Try a cell, and return the observed behavior; both are plain data."""
    return asdict(try_cell(Cell(**{**cell, "kind": Kind(cell["kind"]), "phase": Phase(cell["phase"])})))


def _fields_of(error: Exception) -> dict[str, Any]:
    return {
        "error": type(error).__name__,
        "typed": isinstance(error, NNAdapterError),
        "device": getattr(error, "device", None),
        "phase": getattr(error, "phase", None),
        "message": str(error),
    }


@contextmanager
def _opened_by(cell: Cell, script: str) -> Iterator[list[Any]]:
    """Yield the devices of the session, with faults of opening in the environment."""
    if cell.phase is not Phase.OPEN:
        yield [(f"faulty:{cell.device}", {"script": script, **_isolation(cell), **_refusing(cell)})]
        return
    os.environ["NNADAPTER_FAULTS"] = script
    try:
        yield [(f"faulty:{cell.device}", _isolation(cell))]
    finally:
        del os.environ["NNADAPTER_FAULTS"]


def _isolation(cell: Cell) -> dict[str, Any]:
    if cell.form != "isolated":
        return {}
    return {"isolate": {**dict.fromkeys(PHASES, LIMIT_S), "open": OPENING_S} if cell.kind is Kind.HANG else True}


def _refusing(cell: Cell) -> dict[str, Any]:
    """Return options that make the inner device refuse the last node."""
    return {"switched_off": "Mul"} if cell.kind is Kind.SAYS_YES and cell.device == "fake_npu" else {}


def _session(cell: Cell, devices: list[Any], file: Path, x: np.ndarray, counts: dict[str, int]) -> None:
    options = nna.Options(fallback=cell.policy, cache_dir=False)
    model: Any = onnx.parser.parse_model(_MODEL.replace("LAST", _LAST[cell.kind is Kind.SAYS_YES]))
    if cell.phase is Phase.DESERIALIZE:
        nna.compile(model, file, devices=devices, options=options, keep_model=True)
        model = file
    with nna.InferenceSession(model, devices=devices, options=options) as session:
        outputs: list[tuple[np.ndarray, np.ndarray]] = []
        for _ in range(RUNS):
            right = _right(x, squared=cell.kind is Kind.SAYS_YES)
            (y,) = session.run(None, {"x": x})
            outputs.append((y, right))
        counts["noted"] = sum("was compiled again" in note for note in session.report().notes)
        for y, right in outputs:  # compared late: a device may write to its outputs after it returned them
            counts["right" if np.allclose(y, right, rtol=1e-5, atol=1e-6) else "wrong"] += 1


def _right(x: np.ndarray, *, squared: bool) -> np.ndarray:
    last = 2 * (np.maximum(x, 0) + x)
    return last * last if squared else np.maximum(last, 0)


def verdict(cell: Cell, observation: Seen) -> str:
    """Return `as promised`, `not noticed`, or a description of the wrong behavior."""
    if cell.ends_the_process:
        return _of_the_dead(cell, observation)
    if not observation.made:
        return "the fault did not come"
    if observation.error and not observation.typed:
        return f"an error of another tree: {observation.error}"
    all_right = not observation.error and observation.right == RUNS
    if cell.kind in UNNOTICED:
        return "not noticed" if not observation.error else f"raised {observation.error}"
    if cell.kind is Kind.WRITES_INPUTS:
        return "as promised" if all_right and not observation.input_changed else "not noticed: inputs are changed"
    if cell.kind in WRITING and all_right and not observation.warned and not observation.noted:
        return "not noticed"  # the device's own check of bytes missed them, or they were not read
    if cell.kind in HARMLESS or (cell.kind is Kind.HANG and cell.form == "in process"):
        return "as promised" if all_right else _wrong(observation)
    if all_right and (cell.kind is Kind.SAYS_YES or cell.phase is Phase.DESERIALIZE):
        return "as promised"  # it can do it after all, or refused in time; a program is compiled again, with a note
    if cell.policy == "forbid":
        return _of_forbidden(cell, observation, all_right=all_right)
    if not all_right:
        return _wrong(observation)
    if cell.policy == "allow":
        allowed = {"DriverWarning", "CacheWarning"}
        return "as promised" if set(observation.warned) <= allowed else f"warned: {', '.join(observation.warned)}"
    return "as promised" if len(observation.warned) == 1 else f"{len(observation.warned)} warnings"


def _of_the_dead(cell: Cell, observation: Seen) -> str:
    if not observation.ended:
        return "the process did not end"
    if cell.kind is Kind.EXIT:
        return "ends the process"
    return (
        "ends the process, said where" if f"'faulty:{cell.device}'" in observation.ended else "ends the process, unsaid"
    )


def _of_forbidden(cell: Cell, observation: Seen, *, all_right: bool) -> str:
    if cell.phase is Phase.CLOSE:  # nothing falls back: the work is done
        return "as promised" if all_right else _wrong(observation)
    if not observation.error:
        return "no error"
    if observation.device != f"faulty:{cell.device}":
        return f"{observation.error} has device {observation.device!r}"
    if cell.phase in _ASKED and observation.error == "NotDelegatedError":
        return "as promised"  # the device refused, no more
    stages = (cell.phase.value, "compile" if cell.kind in (Kind.SAYS_YES, Kind.DEVICE_LOST) else "")
    return "as promised" if observation.phase in stages else f"{observation.error} has phase {observation.phase!r}"


def _wrong(observation: Seen) -> str:
    return f"raised {observation.error}" if observation.error else f"{observation.wrong} results are wrong"
