"""A context of a driver in C. Calls that name it come one at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nnadapter.drivers.control import UNLIMITED, Control
from nnadapter.drivers.interface import Admission, Compatibility, Context, Program
from nnadapter.drivers.native.calls import Seat, Sized
from nnadapter.drivers.native.codes import COMPATIBILITIES
from nnadapter.drivers.native.control import build_control
from nnadapter.drivers.native.functions import Functions
from nnadapter.drivers.native.models import build, contents
from nnadapter.drivers.native.open_borders import DynamicSignatures
from nnadapter.drivers.native.program import NativeProgram
from nnadapter.drivers.native.serialized import Border, unseal, written_by
from nnadapter.drivers.native.sizes import NumberedSizes, untold
from nnadapter.drivers.native.streams import NativeStream
from nnadapter.drivers.native.structures import Holder, StructPool, make
from nnadapter.drivers.native.templates import ModelTemplates
from nnadapter.drivers.native.verdicts import VerdictSink
from nnadapter.errors import CompilationError, IncompatibleProgramError
from nnadapter.ir.filled_model import SpecializedModel
from nnadapter.ir.model import Model, Operation
from nnadapter.ir.verifying import verify
from nnadapter.process.closing import close_all
from nnadapter.process.forking import new_lock
from nnadapter.process.lending import ObjectPool
from partition.verdict import Reason, Unsupported, Verdict

_SMALL = 16
"""Operations of a model whose verdicts are written where others were."""


class _Built(NamedTuple):
    """A model in C, what keeps it alive, and the sizes that its runs are told; None where it leaves none open."""

    held: Holder
    address: int
    sizes: NumberedSizes | None = None


_NONE_BUILT = None, _Built(Holder(), 0)


class NativeContext(Context):
    """Asks and compiles."""

    def __init__(self, functions: Functions, device: int, handle: int) -> None:
        self._functions, self._device, self._handle = functions, device, handle
        self._lock = new_lock()
        self._seats = ObjectPool(_new_slot, functions, device)
        self._last: tuple[Model | None, _Built] = _NONE_BUILT
        self._admitted = VerdictSink(1, supported=True)
        self._admission = StructPool("Admission", [{"verdict": self._admitted.addresses[0]}])
        self._unlimited = Holder()
        self._compiling = StructPool("CompileRequest", [{"control": build_control(UNLIMITED, self._unlimited)}])
        """What all calls have that nobody may stop, as long as they hold the lock."""
        self._borders = DynamicSignatures()
        self._sinks: dict[int, VerdictSink] = {}
        """Room for the verdicts of small models, by their number, which come often."""

    def supported(self, model: Model) -> Sequence[Verdict]:
        """See `Context.supported`.

        Raises:
            InvalidModelError: the model contradicts itself. Drivers in C get none such.
        """
        _holder, address, _ = self._built(model)  # another thread may ask about another model meanwhile
        with self._lock:
            verdicts = self._sink(model.operation_count)
            self._functions.call("supported", self._handle, address, verdicts.array)
            answers = verdicts.read()
        return list(map(_told, model.operations, answers)) if model.is_open else answers

    def admit(self, model: Model) -> Admission:
        """See `Context.admit`."""
        if "admit" not in self._functions:
            return Admission()
        _holder, address, _ = self._built(model)  # another thread may ask about another model meanwhile
        with self._lock:
            verdicts = self._admitted.cleared()
            self._admission.clear()
            self._functions.call("admit", self._handle, address, self._admission.addresses[0])
            (verdict,), nbytes = verdicts.read(), int(self._admission.structures[0].memory_bytes)
        return Admission(verdict=verdict, facts={"memory_bytes": nbytes}) if nbytes else Admission(verdict=verdict)

    def compile(self, model: Model) -> NativeProgram:
        """See `Context.compile`."""
        return self.compile_within(model, UNLIMITED)

    def compile_within(self, model: Model, control: Control) -> NativeProgram:
        """As `compile`, with a deadline, somebody who may cancel, and somebody who is told how far it is.

        Raises:
            InvalidModelError: the model contradicts itself.
            CancelledError: the driver was told that nobody wants the program, and stopped.
            CompilationError: the deadline passed, or the driver failed.
        """
        holder, address, sizes = self._taken(model)
        with self._lock:
            _passing, request = self._request(address, control)
            handle = self._functions.made(
                "compile", self._handle, request, failure=CompilationError, misuse=CompilationError
            )
        by_run = None if sizes is None else self._borders.of(model, sizes)
        return NativeProgram(self._functions, self._device, handle, _sized(model), holder, self._seats, by_run)

    def bind(self, program: Program, model: Model) -> NativeProgram | None:
        """See `Context.bind`."""
        assert isinstance(program, NativeProgram), "programs of a context are its own"
        return self.bind_within(program, model, UNLIMITED)

    def bind_within(self, program: NativeProgram, model: Model, control: Control) -> NativeProgram | None:
        """As `bind`, with what `compile_within` has and raises."""
        if "bind" not in self._functions:
            return None
        holder, address, _ = self._taken(model)
        with self._lock:
            _passing, request = self._request(address, control)
            handle = program.bound(request)
        return (
            None
            if handle is None
            else NativeProgram(self._functions, self._device, handle, _sized(model), holder, self._seats)
        )

    def deserialize(self, blob: bytes) -> NativeProgram:
        """See `Context.deserialize`."""
        if "deserialize" not in self._functions:
            return super().deserialize(blob)  # type: ignore[return-value]  # it raises
        return self._deserialized(blob)

    def deserialize_view(self, blob: memoryview) -> Program:
        """See `Context.deserialize_view`: the driver reads from the view, which its program keeps."""
        if "deserialize" not in self._functions:
            return super().deserialize_view(blob)
        return self._deserialized(blob, is_checked=True)

    def _deserialized(self, blob: bytes | memoryview, *, is_checked: bool = False) -> NativeProgram:
        border, data = unseal(self._functions.driver, blob, is_checked=is_checked)
        holder, passing = Holder(), Holder()
        array = holder.keep(np.frombuffer(data, np.uint8))
        request = make(
            "DeserializeRequest", data=contents(array), bytes=array.nbytes, control=build_control(UNLIMITED, passing)
        )
        with self._lock:
            handle = self._functions.made(
                "deserialize",
                self._handle,
                ctypes.addressof(request),
                failure=IncompatibleProgramError,
                misuse=IncompatibleProgramError,
            )
        return NativeProgram(self._functions, self._device, handle, Sized(border), holder, self._seats)

    def check_blob(self, blob: memoryview) -> Compatibility | None:
        """See `Context.check_blob`; a code that is none of ours is taken for "recompile", which is always right."""
        if "check_blob" not in self._functions:
            return None
        written = written_by(self._functions.driver, blob)
        if written is None:
            return Compatibility.NO
        array = np.frombuffer(written, np.uint8)
        with self._lock:
            code = self._functions.plain("check_blob", self._handle, contents(array), array.nbytes)
        return COMPATIBILITIES.get(code, Compatibility.RECOMPILE) if code else None

    def _request(self, model: int, control: Control) -> tuple[Holder, int]:
        """A request to compile a model, as long as what keeps it alive does and the lock is held, and its address."""
        if control is not UNLIMITED:
            passing = Holder()
            return passing, passing.make("CompileRequest", model=model, control=build_control(control, passing))
        self._compiling.clear()
        self._compiling.structures[0].model = model
        return self._unlimited, self._compiling.addresses[0]

    def _sink(self, count: int) -> VerdictSink:
        """Room for so many verdicts, as if it were new."""
        if count > _SMALL:
            return VerdictSink(count)
        sink = self._sinks.get(count)
        if sink is None:
            sink = self._sinks[count] = VerdictSink(count)
        return sink.cleared()

    def _taken(self, model: Model) -> _Built:
        """A model in C for a program, which keeps it from here on."""
        built = self._built(model)
        self._last = _NONE_BUILT
        return built

    def _built(self, model: Model) -> _Built:
        """A model in C; the last one asked about is kept, as it is compiled next.

        Of segments that are filled all are asked about before the first is compiled: each keeps its own.

        Raises:
            InvalidModelError: the model contradicts itself.
        """
        if isinstance(model, SpecializedModel):
            filled: _Built = model.prepared(_filled, _filled)
            return filled
        last, built = self._last
        if last is not model:
            verify(model)
            holder, sizes = Holder(), NumberedSizes(model) if model.is_open else None
            built = _Built(holder, build(model, holder, sizes), sizes)
            self._last = model, built
        return built

    def close(self) -> None:
        """See `Context.close`."""
        self._last = _NONE_BUILT
        close_all(self._seats.clear())
        self._functions.plain("destroy_context", self._handle)


def _new_slot(functions: Functions, device: int) -> Seat:
    return Seat(NativeStream(functions, device) if "create_stream" in functions else None)


def _told(operation: Operation, verdict: Verdict) -> Verdict:
    """What a driver says of an operation of an open model, if it is told all of its attributes."""
    name = untold(operation) if verdict else ""
    detail = f"{name} of {operation.type} is a real number that hangs on sizes, which drivers in C are not told"
    return Unsupported(Reason.UNSUPPORTED_ATTRIBUTE, detail) if name else verdict


def _filled(model: SpecializedModel) -> _Built:
    verify(model)
    templates: ModelTemplates = model.of.together.prepared(ModelTemplates, ModelTemplates)
    holder = Holder()
    address = templates.build(model, holder)
    return _Built(holder, build(model, holder) if address is None else address)


def _sized(model: Model) -> Sized:
    """What goes into a program of the model and comes out of it; shared by layers that are filled together."""
    if isinstance(model, SpecializedModel):
        sized: Sized = model.of_border(Sized, lambda border: Sized(Border(*border)))
        return sized
    return Sized(Border(*(tuple(map(model.type_at, operands)) for operands in (model.inputs, model.outputs))))
