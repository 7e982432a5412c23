"""Faults due at a driver call, and their effects."""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np

from nnadapter import errors
from nnadapter.drivers.envelope import PREFIX_BYTES, Envelope
from nnadapter.drivers.faulty.script import READING, Fault, Kind, Phase, Script, error_class, signal_number
from nnadapter.drivers.interface import Admission, Compatibility, DeviceTensor, SegmentModel
from nnadapter.ir.model import Model
from nnadapter.ir.operand import FLOATING, Array
from nnadapter.onnx.domains import op_name
from nnadapter.process.resources import new_lock
from nnadapter.records import dataclass, replace
from partition.graph import SUPPORTED, Reason, Unsupported, Verdict


@dataclass(frozen=True)
class Subject:
    """Operations of a driver call: their types and node names."""

    operations: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @cached_property
    def key(self) -> str:
        """Key by which calls are counted, the same in all processes and for all tensor sizes."""
        return f"{crc32(self.to_bytes()):08x}"

    def concerns(self, fault: Fault) -> bool:
        return (fault.op_type is None and fault.name is None) or next(self.positions(fault), None) is not None

    def positions(self, fault: Fault) -> Iterator[int]:
        op_type = None if fault.op_type is None else _plain(fault.op_type)
        for position, (type_, names) in enumerate(self.operations):
            if op_type is not None and op_type not in (_plain(type_), _family(type_)):
                continue
            if fault.name is None or any(fnmatchcase(name, fault.name) for name in names):
                yield position

    def to_bytes(self) -> bytes:
        return json.dumps(self.operations, separators=(",", ":")).encode()


NOTHING = Subject()


def subject_of(model: SegmentModel) -> Subject:
    """Return the operations of a model."""
    if isinstance(model, Model):
        return Subject(tuple((operation.type, operation.origins) for operation in model.operations))
    return Subject(tuple((op_name(node.domain, node.op_type), (node.name,)) for node in model.graph.node))


def subject_in(written: bytes) -> Subject:
    """Return the subject from the bytes of `Subject.to_bytes`."""
    rows = json.loads(written)
    if not isinstance(rows, list):
        raise ValueError
    return Subject(tuple((str(type_), tuple(map(str, names))) for type_, names in rows))


def _plain(type_: str) -> str:
    return type_.removeprefix("ai.onnx::").replace("_", "").lower()


def _family(type_: str) -> str:
    """Return the ONNX op that corresponds to an operation type, such as Conv for CONV_2D."""
    return _plain(type_.removesuffix("_2D").removesuffix("_NEAREST").removesuffix("_LINEAR"))


def _earlier_counts(path: str) -> tuple[dict[str, int], Counter[int]]:
    counts: dict[str, int] = {}
    fault_counts: Counter[int] = Counter()
    try:
        file = Path(path)
        text = file.read_text() if file.exists() else ""
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise errors.FaultScriptError(
            f"script of faults, key 'log': {path!r} cannot be written: {reason}; name another file", key="log"
        ) from error
    for line in text.splitlines():
        with suppress(ValueError):  # foreign or incomplete line
            noted = json.loads(line)
            if isinstance(noted, dict):
                fault_counts[noted.get("fault", 0)] += 1
                for key, count in noted.get("counts", {}).items():
                    counts[key] = max(count, counts.get(key, 0))
    return counts, fault_counts


def _append_to_log(path: str, line: Mapping[str, object]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        os.write(file, json.dumps({**line, "process": os.getpid()}).encode() + b"\n")
    finally:
        os.close(file)


_PROGRAM_PHASES = frozenset((Phase.CREATE, Phase.RUN, Phase.CLOSE))


@dataclass(frozen=True, slots=True)
class TriggeredFault:
    """Fault that is due at one driver call."""

    fault: Fault
    number: int
    """Position in the script, from 1."""
    call: int
    draw: int

    @property
    def text(self) -> str:
        message = self.fault.message or f"injected by faulty, fault {self.number} of its script"
        return f"{message} ({self.fault.phase.value}, call {self.call})"


class Faults:
    """Faults of a script, with counts of calls and faults. Thread-safe."""

    def __init__(self, script: Script, seed: int = -1) -> None:
        self._script = script
        self._seed = script.seed if seed < 0 else seed
        self._counts, self._fault_counts = _earlier_counts(script.log) if script.log else ({}, Counter())
        self._lock = new_lock()
        self._lost: TriggeredFault | None = None
        self._lost_until = 0.0
        self._can_lose_device = any(fault.kind is Kind.DEVICE_LOST for fault in script.faults)
        self.last_blob = b""

    def moment(self, phase: Phase, subject: Subject = NOTHING, kinds: frozenset[Kind] = READING) -> CallPoint | None:
        numbered_faults = [
            (number, fault)
            for number, fault in self._script
            if fault.phase is phase and fault.kind in kinds and subject.concerns(fault)
        ]
        return CallPoint(self, phase, subject, numbered_faults) if numbered_faults or self._can_lose_device else None

    def due(self, phase: Phase, about: str, numbered_faults: Sequence[tuple[int, Fault]]) -> list[TriggeredFault]:
        if phase is not Phase.CLOSE:  # closing a lost device is allowed
            self._refuse_lost()
        return list(self._due(phase, about, numbered_faults))

    def lose(self, due: TriggeredFault) -> None:
        seconds = due.fault.seconds
        self._lost_until = float("inf") if seconds is None else time.monotonic() + seconds
        self._lost = due

    def log(self, **facts: object) -> None:
        if self._script.log:
            _append_to_log(self._script.log, {**facts, "counts": self._counts.copy()})

    def _due(self, phase: Phase, about: str, numbered_faults: Sequence[tuple[int, Fault]]) -> Iterator[TriggeredFault]:
        where = about if phase in _PROGRAM_PHASES else ""
        for number, fault in numbered_faults:
            counted = f"{number} {where}"
            with self._lock:
                call = self._counts[counted] = self._counts.get(counted, 0) + 1
            draw = self._draw(counted, call)
            if (
                _is_its_turn(fault, call)
                and draw < fault.probability * 2**64
                and self._has_occurrences_left(number, fault)
            ):
                yield TriggeredFault(fault, number, call, draw=self._draw(f"{counted} itself", call))

    def _draw(self, counted: str, call: int) -> int:
        text = f"{self._seed} {counted} {call}".encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest())

    def _has_occurrences_left(self, number: int, fault: Fault) -> bool:
        with self._lock:
            self._fault_counts[number] += 1
            count = self._fault_counts[number]
        return fault.times is None or count <= fault.times

    def _refuse_lost(self) -> None:
        lost = self._lost
        if lost is None:
            return
        if time.monotonic() < self._lost_until:
            raise errors.DeviceLostError(f"the device is lost: {lost.text}")
        self._lost = None


@dataclass(frozen=True, slots=True)
class CallPoint:
    """Driver calls of one phase about the same operations; they are counted together."""

    faults: Faults
    phase: Phase
    subject: Subject
    matching_faults: Sequence[tuple[int, Fault]]

    def due(self) -> list[TriggeredFault]:
        return self.faults.due(self.phase, self.subject.key, self.matching_faults)

    def note(self, due: TriggeredFault) -> None:
        fault, about = due.fault, self.subject.key
        self.faults.log(fault=due.number, kind=fault.kind.value, phase=fault.phase.value, about=about, call=due.call)


def _is_its_turn(fault: Fault, call: int) -> bool:
    if fault.nth is not None:
        return call == fault.nth
    first = fault.from_ or 1
    return call >= first and (call - first) % (fault.every or 1) == 0


_CODE = 3
_LONG_S = 3600.0


def act(moment: CallPoint | None) -> list[TriggeredFault]:
    """Count a call and apply its faults; return faults that alter its results."""
    return [] if moment is None else make(moment, moment.due())


def make(moment: CallPoint, due: Sequence[TriggeredFault]) -> list[TriggeredFault]:
    """Apply faults that precede a call; return faults that alter its results."""
    remaining_faults = []
    for triggered_fault in due:
        moment.note(triggered_fault)
        acts = _ACTS.get(triggered_fault.fault.kind)
        if acts is None:
            remaining_faults.append(triggered_fault)
        else:
            acts(moment, triggered_fault)
    return remaining_faults


def _raise(moment: CallPoint, due: TriggeredFault) -> None:
    kind = error_class(due.fault)
    raise kind(due.text, **_needed(kind))


def _needed(kind: type[BaseException]) -> dict[str, str]:
    if not issubclass(kind, errors.NNAdapterError):
        return {}
    parameters = inspect.signature(kind).parameters.values()
    return {
        parameter.name: ""
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    }


def _exhaust_memory(moment: CallPoint, due: TriggeredFault) -> None:
    raise errors.OutOfMemoryError(f"out of memory: {due.text}")


def _lose_device(moment: CallPoint, due: TriggeredFault) -> None:
    moment.faults.lose(due)
    raise errors.DeviceLostError(f"the device is lost: {due.text}")


def _crash(moment: CallPoint, due: TriggeredFault) -> None:
    signal.raise_signal(signal_number(due.fault))
    _exit(moment, due)  # the signal was caught or ignored


def _exit(moment: CallPoint, due: TriggeredFault) -> None:
    sys.stderr.flush()
    os._exit(_CODE if due.fault.code is None else due.fault.code)


def _wait(moment: CallPoint, due: TriggeredFault) -> None:
    """Sleep without checking for cancellation, like a C call."""
    end = float("inf") if due.fault.seconds is None else time.monotonic() + due.fault.seconds
    while (remaining := end - time.monotonic()) > 0:
        time.sleep(min(remaining, _LONG_S))


_ACTS: Mapping[Kind, Callable[[CallPoint, TriggeredFault], None]] = {
    Kind.FAIL: _raise,
    Kind.RAISE: _raise,
    Kind.OUT_OF_MEMORY: _exhaust_memory,
    Kind.DEVICE_LOST: _lose_device,
    Kind.CRASH: _crash,
    Kind.EXIT: _exit,
    Kind.HANG: _wait,
    Kind.SLOW: _wait,
}


_FOREIGN = b"a program of somebody else"


def alter_verdicts(verdicts: Sequence[Verdict], due: Sequence[TriggeredFault], subject: Subject) -> Sequence[Verdict]:
    """Return verdicts altered by faults."""
    altered_verdicts = list(verdicts)
    for triggered_fault in due:
        if triggered_fault.fault.kind is Kind.WRONG_COUNT:
            altered_verdicts = altered_verdicts[:-1]
            continue
        for position in subject.positions(triggered_fault.fault):
            altered_verdicts[position : position + 1] = [_verdict(triggered_fault)][: len(altered_verdicts) - position]
    return altered_verdicts


def alter_admission(admission: Admission, due: Sequence[TriggeredFault]) -> Admission:
    """Return an admission altered by faults."""
    return replace(admission, verdict=_verdict(due[-1])) if due else admission


def alter_compatibility(compatibility: Compatibility | None) -> Compatibility:
    """Return an answer that contradicts `compatibility`."""
    wrong = (Compatibility.RECOMPILE, Compatibility.INCOMPATIBLE)
    return Compatibility.IDENTICAL if compatibility in wrong else Compatibility.INCOMPATIBLE


def alter_blob(blob: bytes, previous_blob: bytes, due: TriggeredFault) -> bytes:
    """Return a damaged program or, for the kind `foreign_blob`, the previous program."""
    if due.fault.kind is Kind.FOREIGN_BLOB:
        return previous_blob or _FOREIGN
    damaged, random = bytearray(blob), Random(due.draw)
    for _ in range(1 + len(blob) // 1000 if blob else 0):
        damaged[random.randrange(len(blob))] ^= random.randrange(1, 256)
    return bytes(damaged)


def _verdict(due: TriggeredFault) -> Verdict:
    return SUPPORTED if due.fault.kind is Kind.SAYS_YES else Unsupported(Reason.DEVICE_REFUSED, due.text)


_OTHER_KINDS = {"f": "i", "V": "u", "i": "u", "u": "i", "b": "u"}
_FLOATING = frozenset(dtype.value for dtype in FLOATING)


def alter_results(results: Sequence[Array], due: Sequence[TriggeredFault]) -> list[Array]:
    """Return results altered by faults."""
    altered_results = list(results)
    for triggered_fault in due:
        if triggered_fault.fault.kind is Kind.WRONG_COUNT:
            altered_results = altered_results[:-1]
        elif triggered_fault.fault.kind in _CHANGES:
            altered_results = [
                _alter_result(triggered_fault, position, array) for position, array in enumerate(altered_results)
            ]
    return altered_results


def alter_device_results(results: Sequence[DeviceTensor], due: Sequence[TriggeredFault]) -> list[DeviceTensor]:
    """Return results in device memory altered by faults."""
    arrays = alter_results([_copied(tensor) for tensor in results], due)
    for tensor in results[len(arrays) :]:
        tensor.memory.free()
    altered_tensors = []
    for tensor, array in zip(results, arrays, strict=False):
        tensor.memory.copy_in(np.ascontiguousarray(array).reshape(array.shape))
        altered_tensors.append(DeviceTensor(tensor.memory, array.dtype, array.shape))
    return altered_tensors


def overwrite_inputs(inputs: Sequence[Array]) -> list[Array]:
    """Overwrite arrays, even read-only ones, and return copies of their original contents."""
    originals = [array.copy() for array in inputs]
    for array in inputs:
        _invert_bits(array)
    return originals


def overwrite_device_tensors(inputs: Iterable[DeviceTensor]) -> None:
    """Overwrite tensors in device memory."""
    for tensor in inputs:
        array = _copied(tensor)
        _invert_bits(array)
        with suppress(*errors.FAILURES):  # it may be freed already
            tensor.memory.copy_in(array)


def _invert_bits(array: Array) -> None:
    if array.dtype.hasobject or not array.nbytes or not array.flags.c_contiguous:
        return
    address = array.ctypes.data
    contents = np.frombuffer(ctypes.string_at(address, array.nbytes), np.uint8)
    ctypes.memmove(address, (contents ^ 0xFF).tobytes(), array.nbytes)


def _copied(tensor: DeviceTensor) -> Array:
    array = np.empty(tensor.shape, tensor.dtype)
    tensor.memory.copy_out(array)
    return array


def _alter_result(due: TriggeredFault, position: int, array: Array) -> Array:
    output_index = due.fault.output
    return array if output_index is not None and output_index != position else _CHANGES[due.fault.kind](due, array)


def _writable(array: Array) -> Array:
    return array if array.flags.writeable and array.flags.c_contiguous else array.copy()


def _add_axis(due: TriggeredFault, array: Array) -> Array:
    return array[None]


def _reinterpret(due: TriggeredFault, array: Array) -> Array:
    other: Any = _OTHER_KINDS.get(array.dtype.kind)
    if other is None:
        return np.zeros(array.shape, np.float32)
    return np.ascontiguousarray(array).reshape(array.shape).view(f"{other}{array.dtype.itemsize}")


def _fill_with_nan(due: TriggeredFault, array: Array) -> Array:
    if array.dtype.name not in _FLOATING:
        return array
    array = _writable(array)
    array[...] = np.nan
    return array


def _flip_bits(due: TriggeredFault, array: Array) -> Array:
    if array.dtype.hasobject or not array.nbytes:
        return array
    array = _writable(array)
    flat, random = array.reshape(-1).view(np.uint8), Random(due.draw)
    for bit in random.sample(range(flat.size * 8), min(due.fault.bits or 1, flat.size * 8)):
        flat[bit // 8] ^= 1 << bit % 8
    return array


_CHANGES = {
    Kind.WRONG_SHAPE: _add_axis,
    Kind.WRONG_DTYPE: _reinterpret,
    Kind.NAN: _fill_with_nan,
    Kind.FLIPPED_BITS: _flip_bits,
}


class RetainedOutputs:
    """Outputs that a fault retains, to overwrite them during the next run."""

    def __init__(self) -> None:
        self._writers: list[Any] = []

    def write(self) -> None:
        writers, self._writers = self._writers, []
        for write in writers:
            write()

    def keep(self, results: Sequence[Array] | Sequence[DeviceTensor]) -> None:
        for result in results:
            write = (
                partial(overwrite_device_tensors, [result])
                if isinstance(result, DeviceTensor)
                else partial(_invert_bits, result)
            )
            self._writers.append(write)


_ENVELOPE = Envelope(magic=b"NNAFAULT", version=1)
_ALIGNMENT = 64
"""Alignment in bytes of the serialized program, which devices may read in place."""


def wrapped(blob: bytes, subject: Subject) -> bytes:
    """Serialize the subject and a serialized program in one blob."""
    header = subject.to_bytes()
    padding = -(PREFIX_BYTES + len(header)) % _ALIGNMENT
    return _ENVELOPE.close(header + b" " * padding, (blob,))


def unwrapped(blob: memoryview) -> tuple[memoryview, Subject]:
    """Return the program's bytes and the subject from the blob of `wrapped`."""
    if _ENVELOPE.header_of(blob) is None:
        return blob, NOTHING
    header, contents = _ENVELOPE.open(blob, is_checked=True)
    try:
        return contents, subject_in(header)
    except ValueError as error:
        raise errors.IncompatibleProgramError(
            "the list of operations in a serialized program is damaged; compile the program again"
        ) from error
