"""Device contexts that cache programs and verdicts by digests of models."""

from __future__ import annotations

import json
import re
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from nnadapter.drivers.boundary import ask_admission, checked_program, clone_with_constants
from nnadapter.drivers.capability import ModelForm, OptionValues, Profile
from nnadapter.drivers.failures import named_call
from nnadapter.drivers.interface import Admission, Compatibility, Context, Program, SegmentModel
from nnadapter.errors import FAILURES, CompilationError, NNAdapterError, describe
from nnadapter.ir import Array, Model
from nnadapter.ir.text import Canonical, Contents, NotCanonicalError
from nnadapter.kernels.context import KernelContext
from nnadapter.options import Options
from nnadapter.process.processors import usable
from nnadapter.process.resources import Cache
from nnadapter.records import dataclass
from nnadapter.store.folder import Entry, Folder, Key, KeyPart, Miss, Outcome, folder_of, text_part, warn_unwritten
from nnadapter.store.keys import surroundings
from partition.graph import SUPPORTED, Reason, Unsupported, Verdict

_PIECE_BYTES = 1 << 24
_WORTH_BYTES = 1 << 20
_MOST_THREADS = 8
_MOST_KNOWN = 1 << 16

_by_place: Cache[Hashable, bytes] = Cache("digests of weights", _MOST_KNOWN)
_by_array: dict[int, tuple[weakref.ref[Array], bytes]] = {}
"""`id` of an array -> weak reference and digest; removed when the array is freed."""


def digest_of(constants: Sequence[Contents], *, fresh: bool = False) -> str:
    """Return one SHA-256 of all constants in order, in hexadecimal; `fresh` ignores cached digests.

    Raises:
        ModelFileError: a file with constants is gone or has changed.
    """
    cached = {
        number: digest for number, constant in enumerate(constants) if not fresh and (digest := _cached(constant))
    }
    missing = [number for number in range(len(constants)) if number not in cached]
    for number, digest in zip(missing, _computed_digests([constants[number] for number in missing]), strict=True):
        cached[number] = digest
        _note(constants[number], digest)
    hasher = sha256()
    for number, constant in enumerate(constants):
        digest = cached[number]
        hasher.update(b"%d:%b" % (constant.nbytes, digest))
    return hasher.hexdigest()


def _computed_digests(constants: Sequence[Contents]) -> Iterable[bytes]:
    if sum(constant.nbytes for constant in constants) < _WORTH_BYTES:
        return [_of_one(constant, map) for constant in constants]
    with ThreadPoolExecutor(min(usable(), _MOST_THREADS)) as pool:
        large = {number for number, constant in enumerate(constants) if constant.nbytes > _PIECE_BYTES}
        small = pool.map(
            partial(_of_one, each_piece=map), (constant for at, constant in enumerate(constants) if at not in large)
        )
        of_large = {number: _of_one(constants[number], pool.map) for number in sorted(large)}
        return [of_large[number] if number in large else next(small) for number in range(len(constants))]


def _of_one(contents: Contents, each_piece: Callable[..., Iterable[bytes]]) -> bytes:
    data = contents.read().data
    if data.nbytes <= _PIECE_BYTES:
        return sha256(data).digest()
    pieces = (data[start : start + _PIECE_BYTES] for start in range(0, data.nbytes, _PIECE_BYTES))
    return sha256(b"".join(each_piece(_sha256, pieces))).digest()


def _sha256(data: Any) -> bytes:
    return sha256(data).digest()


def _cached(contents: Contents) -> bytes | None:
    if contents.owner is None:
        return None if contents.identity is None else _by_place.get(contents.identity)
    entry = _by_array.get(id(contents.owner))
    return entry[1] if entry is not None and entry[0]() is contents.owner else None


def _note(contents: Contents, digest: bytes) -> None:
    owner = contents.owner
    if owner is None:
        if contents.identity is not None:
            _by_place.put(contents.identity, digest)
    elif not owner.flags.writeable:
        _by_array[id(owner)] = weakref.ref(owner, partial(_by_array.pop, id(owner))), digest


def form_of(model: SegmentModel) -> Canonical:
    """Return the canonical form of a segment; equal forms have the same program. Raises NotCanonicalError."""
    if isinstance(model, Model):
        from nnadapter.ir.text import canonical as of_ir

        return of_ir(model)
    from nnadapter.onnx.canonical import canonical as of_onnx

    return of_onnx(model)


_TOKEN = re.compile(r"[^\s'\"(),;:]+")


def _write_verdicts(verdicts: Sequence[Verdict], model: SegmentModel) -> bytes | None:
    """Serialize verdicts; return None if a refusal mentions a name, since another model has other names."""
    return None if _mention_names(verdicts, model) else json.dumps(list(map(_plain, verdicts))).encode()


def _read_verdicts(data: memoryview) -> Sequence[Verdict]:
    return [_verdict(plain) for plain in json.loads(bytes(data))]


def _write_admission(admission: Admission, model: SegmentModel) -> bytes | None:
    """Return an admission as JSON; None if its facts have no JSON form, or it mentions names of nodes or values."""
    if _mention_names((admission.verdict,), model):
        return None
    verdict, facts = _plain(admission.verdict), dict(admission.facts)
    try:
        return json.dumps({"verdict": verdict, "runs_as": list(admission.runs_as), "facts": facts}).encode()
    except (TypeError, ValueError):
        return None


def _read_admission(data: memoryview) -> Admission:
    row = json.loads(bytes(data))
    return Admission(verdict=_verdict(row["verdict"]), runs_as=tuple(row["runs_as"]), facts=row["facts"])


def _mention_names(verdicts: Sequence[Verdict], model: Any) -> bool:
    details = {verdict.detail for verdict in verdicts if isinstance(verdict, Unsupported)}
    names = {name for node in model.graph.node for name in (node.name, *node.input, *node.output)} if details else set()
    return any(not names.isdisjoint(_TOKEN.findall(detail)) for detail in details)


def _plain(verdict: Verdict) -> Any:
    return [verdict.reason.value, verdict.detail] if isinstance(verdict, Unsupported) else None


def _verdict(plain: Any) -> Verdict:
    if plain is None:
        return SUPPORTED
    reason, detail = plain
    return Unsupported(Reason(reason), str(detail))


PROGRAM, VERDICTS, ADMISSION, CHECKED = "program", "verdicts", "admission", "checked"
_SLOW_SECONDS = 0.05
_FITTING = (Compatibility.IDENTICAL, Compatibility.COMPATIBLE, None)
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, eq=False)
class _Keyed:
    key: Key
    constants: tuple[Contents, ...]


class CachedContext(Context):
    """Device context that reads programs and verdicts from the cache before it asks the driver's context, `inner`.

    As thread-safe as `inner`. `options` are all options of the device.
    """

    def __init__(self, inner: Context, device: str, form: ModelForm, options: OptionValues, folder: Folder) -> None:
        self.inner = inner
        self._device, self._form, self._options, self._folder = device, form, dict(options), folder
        self._outcomes: WeakKeyDictionary[Program, Outcome] = WeakKeyDictionary()
        self._entries: WeakKeyDictionary[Program, Key] = WeakKeyDictionary()
        self._last: tuple[object, Canonical] | None = None
        self._was_spared = False

    def outcome(self, program: Program) -> Outcome | None:
        return self._outcomes.get(program)

    def entry(self, program: Program) -> Key | None:
        return self._entries.get(program)

    def checked(self, model: SegmentModel) -> bytes | None:
        keyed, _ = self._keyed(CHECKED, model, is_sole=False)
        contents = None if keyed is None else self._folder.contents(keyed.key)
        return bytes(contents) if isinstance(contents, memoryview) else None

    def keep_checked(self, model: SegmentModel, contents: bytes) -> None:
        keyed, _ = self._keyed(CHECKED, model, is_sole=False)
        if keyed is not None:
            self._stored(keyed, contents, 0.0)

    @property
    def path(self) -> Path:
        return self._folder.path

    def look(self, model: SegmentModel, *, is_sole: bool) -> Outcome:
        """Look up a segment's program in the cache; `is_sole` if the segment is the entire plan."""
        keyed, reason = self._keyed(PROGRAM, model, is_sole=is_sole)
        entry = Miss(reason) if keyed is None else self._folder.find(keyed.key)
        return Outcome(True) if isinstance(entry, Entry) else Outcome(False, entry.reason)

    def supported(self, model: SegmentModel) -> Sequence[Verdict]:
        return self._answered(VERDICTS, model, self.inner.supported, _write_verdicts, _read_verdicts)

    def admit(self, model: SegmentModel) -> Admission:
        return self._answered(ADMISSION, model, self.inner.admit, _write_admission, _read_admission)

    def profile(self) -> Profile | None:
        return self.inner.profile()

    def compile(self, model: SegmentModel) -> Program:
        return self._compiled(model, self.inner.compile, is_sole=False)

    def compile_whole_graph(self, model: SegmentModel) -> Program:
        return self._compiled(model, self.inner.compile_whole_graph, is_sole=True)

    def clone_with_constants(self, program: Program, model: SegmentModel) -> Program | None:
        """Clone a program with a segment's constants; return None if the driver cannot or the clone is cached."""
        keyed, miss = self._keyed(PROGRAM, model, is_sole=False)
        if keyed is not None and self._folder.has(keyed.key):
            return None
        started = time.perf_counter()
        bound = clone_with_constants(self.inner, program, model)
        if bound is not None:
            self._keep(keyed, miss or "a compiled program could be cloned for it", bound, time.perf_counter() - started)
        return bound

    def deserialize(self, blob: bytes) -> Program:
        return self.inner.deserialize(blob)

    def deserialize_view(self, blob: memoryview) -> Program:
        return self.inner.deserialize_view(blob)

    def check_blob(self, blob: memoryview) -> Compatibility | None:
        return self.inner.check_blob(blob)

    def close(self) -> None:
        self._last = None
        self.inner.close()

    def _compiled(self, model: SegmentModel, compile_: Callable[[Any], Program], *, is_sole: bool) -> Program:
        keyed, reason = self._keyed(PROGRAM, model, is_sole=is_sole)
        self._last = None
        if keyed is not None:
            cached = self._deserialized(keyed.key)
            if isinstance(cached, Program):
                self._outcomes[cached], self._entries[cached] = Outcome(True), keyed.key
                return cached
            reason = self._folder.warn_of_miss(cached)
        if self._was_spared:
            self._ask_after_all(model)
        started = time.perf_counter()
        program = checked_program(compile_(model))
        self._keep(keyed, reason, program, time.perf_counter() - started)
        return program

    def _deserialized(self, key: Key) -> Program | Miss:
        blob = self._folder.contents(key)
        if isinstance(blob, Miss):
            return blob
        try:
            compatibility = named_call(self._device, "check_blob")(self.inner.check_blob, blob)
            if compatibility not in _FITTING:
                return Miss(f"there is an entry, but its driver rejects it ({compatibility})")
            return checked_program(named_call(self._device, "deserialize")(self.inner.deserialize_view, blob))
        except FAILURES as error:  # a driver may raise anything
            return Miss(f"there is an entry, but its driver rejects it: {describe(error)}", is_defect=True)

    def _ask_after_all(self, model: SegmentModel) -> None:
        verdict = ask_admission(self.inner, model).verdict
        if isinstance(verdict, Unsupported):
            raise CompilationError(f"the device refuses the segment: {verdict.detail}", device=self._device)

    def _keep(self, keyed: _Keyed | None, reason: str, program: Program, seconds: float) -> None:
        not_kept = "" if keyed is None else self._written(keyed, program, seconds)
        self._outcomes[program] = Outcome(False, f"{reason}; not cached: {not_kept}" if not_kept else reason)

    def _written(self, keyed: _Keyed, program: Program, seconds: float) -> str:
        try:
            blob = named_call(self._device, "serialize")(program.serialize)
        except FAILURES as error:
            return f"its driver failed to serialize it: {describe(error)}"
        if blob is None:
            return "its driver does not serialize it"
        reason = self._stored(keyed, blob, seconds)
        if not reason:
            self._entries[program] = keyed.key
        return reason

    def _stored(self, keyed: _Keyed, contents: bytes, seconds: float) -> str:
        key = keyed.key
        if self._constants(keyed.constants, fresh=True).digest != key.parts["constants"].digest:
            return "its weights were changed during compilation"
        reason = self._folder.keep(key, contents, seconds)
        if reason:
            warn_unwritten(reason)
        return reason

    def _answered(
        self,
        kind: str,
        model: SegmentModel,
        ask: Callable[[Any], _Answer],
        written: Callable[[_Answer, SegmentModel], bytes | None],
        read: Callable[[memoryview], _Answer],
    ) -> _Answer:
        keyed = self._keyed(kind, model, is_sole=False)[0] if self._form is ModelForm.ONNX else None
        contents = None if keyed is None else self._folder.contents(keyed.key)
        if isinstance(contents, memoryview):
            try:
                answer = read(contents)
                self._was_spared = True
                return answer
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                contents = Miss(f"there is an entry, but {describe(error)}", is_defect=True)
        if isinstance(contents, Miss):
            self._folder.warn_of_miss(contents)
        started = time.perf_counter()
        answer = ask(model)
        seconds = time.perf_counter() - started
        if keyed is not None and seconds >= _SLOW_SECONDS:
            contents_written = written(answer, model)
            if contents_written is not None:
                self._stored(keyed, contents_written, seconds)
        return answer

    def _keyed(self, kind: str, model: SegmentModel, *, is_sole: bool) -> tuple[_Keyed | None, str]:
        if kind == PROGRAM and not self._writes_programs:
            return None, "its driver does not serialize programs"
        try:
            form = self._canonical(model)
            constants = self._constants(form.constants)
        except NotCanonicalError as error:
            return None, f"it cannot be cached: {error}"
        except (NNAdapterError, OSError, TypeError, ValueError) as error:
            return None, f"its weights cannot be read: {describe(error)}"
        parts = {**self._surroundings, **self._of_model(form, is_sole=is_sole), "constants": constants}
        return _Keyed(Key(kind, parts), form.constants), ""

    def _of_model(self, form: Canonical, *, is_sole: bool) -> Mapping[str, KeyPart]:
        return {
            "options": text_part({**self._options, "runs alone": is_sole}),
            "structure": KeyPart(form.structure, {"operations": form.operations}),
            "shapes": KeyPart(form.shapes, {"inputs": form.inputs}),
        }

    def _constants(self, constants: Sequence[Contents], *, fresh: bool = False) -> KeyPart:
        nbytes = sum(constant.nbytes for constant in constants)
        return KeyPart(digest_of(constants, fresh=fresh), {"count": str(len(constants)), "bytes": str(nbytes)})

    def _canonical(self, model: SegmentModel) -> Canonical:
        last = self._last
        if last is not None and last[0] is model:
            return last[1]
        form = form_of(model)
        self._last = model, form
        return form

    @cached_property
    def _surroundings(self) -> Mapping[str, KeyPart]:
        return surroundings(self._device, takes_onnx=self._form is ModelForm.ONNX)

    @cached_property
    def _writes_programs(self) -> bool:
        driver = self.inner.inner if isinstance(self.inner, KernelContext) else self.inner
        kind = type(driver)
        return not (kind.deserialize is Context.deserialize and kind.deserialize_view is Context.deserialize_view)


def cached_context(
    context: Context, device: str, form: ModelForm, options: OptionValues, session: Options
) -> CachedContext:
    """Return a driver's context with the cache of a session around it."""
    return CachedContext(context, device, form, options, folder_of(session))
