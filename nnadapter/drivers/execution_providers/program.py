"""Provider programs: device memory, executions, and serialized EPContext models.

Serialized programs are untrusted and must name no files. A strict scan accepts only listed fields in canonical
encoding. Programs that fail the scan are parsed with `onnx`. The header is JSON with provider, versions and options.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nnadapter.drivers.envelope import ADVICE, Envelope, check_seal
from nnadapter.drivers.execution_providers.backing import Backing, read_assignment
from nnadapter.drivers.failures import translated_as
from nnadapter.drivers.interface import UNLIMITED, Control, DeviceTensor, Execution, Memory, Program
from nnadapter.drivers.onnxruntime.failures import brief, translated
from nnadapter.drivers.onnxruntime.sessions import Loadable, SessionExecution, run_options, session_execution
from nnadapter.drivers.onnxruntime.values import (
    goes_by_memory,
    is_foreign_type,
    model_of_one,
    results_of,
    run_in_place_of,
)
from nnadapter.drivers.providers import BY_KERNELS, PLACES
from nnadapter.errors import DriverError, IncompatibleProgramError, OutOfMemoryError
from nnadapter.ir.operand import Array
from nnadapter.onnx.wire_format import BYTES, NUMBER, varint
from nnadapter.process.real_onnxruntime import onnxruntime
from nnadapter.process.resources import memoize
from partition.graph import DTYPE_OF_ELEMENT_TYPE

if TYPE_CHECKING:
    from nnadapter.drivers.onnxruntime.sessions import SessionProfile


Form = tuple[np.dtype[Any], tuple[int, ...]]
_BOOL = "tensor(bool)"
_KINDS = 16


class EpMemory(Memory):
    """Device memory that contains an OrtValue, a host array for unsupported types, or nothing yet."""

    def __init__(self, provider: str, nbytes: int, value: Any = None, form: Form | None = None) -> None:
        self._provider, self._value, self._is_free = provider, value, False
        self._form = form
        self.nbytes = nbytes

    def copy_in(self, array: Array) -> None:
        self._check()
        is_foreign = is_foreign_type(array.dtype)
        self._value = array.copy() if is_foreign else _placed(array, PLACES[self._provider])
        self._form = None if is_foreign else (array.dtype, array.shape)

    def copy_out(self, array: Array) -> None:
        self._check()
        source = np.zeros(self.nbytes, np.uint8) if self._value is None else self._value
        source = source if isinstance(source, np.ndarray) else np.asarray(source.numpy())
        if source.dtype == array.dtype and source.shape == array.shape:
            array[...] = source
        else:
            array.reshape(-1).view(np.uint8)[:] = (
                np.ascontiguousarray(source).reshape(-1).view(np.uint8)[: array.nbytes]
            )

    def value(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        self._check()
        if self._form == (dtype, shape):
            return self._value
        array = np.empty(shape, dtype)
        self.copy_out(array)
        return _placed(array, PLACES[self._provider])

    def free(self) -> None:
        self._value, self._form, self._is_free = None, None, True

    def dlpack_device(self) -> tuple[int, int] | None:
        self._check()
        value = self._value
        if not isinstance(value, onnxruntime.OrtValue) or not hasattr(value, "__dlpack_device__"):
            return None
        if value.data_type() == _BOOL:  # exported as uint8
            return None
        kind, number = value.__dlpack_device__()
        return int(kind), int(number)

    def dlpack(self, dtype: np.dtype[Any], shape: tuple[int, ...], **asked: Any) -> Any:
        return _copied(self.value(dtype, shape), self._provider).__dlpack__()

    def _check(self) -> None:
        if self._is_free:
            raise DriverError("the device memory was freed; allocate it again")


def import_dlpack(tensor: Any, provider: str) -> DeviceTensor | None:
    """Return a copy of a DLPack tensor; None to copy it through host memory."""
    try:
        value = onnxruntime.OrtValue.from_dlpack(tensor)
    except Exception:  # noqa: BLE001  unsupported tensor: the host copies it instead
        return None
    place = PLACES[provider]
    if value.device_name() != place or 0 in value.shape() or is_foreign_type(_dtype_of(value)):
        return None
    # A copy to the host waits for the producer's pending work.
    _placed(np.zeros(1, np.float32), place).numpy()
    return tensor_of(_copied(value, provider), provider)


def tensor_of(value: Any, provider: str) -> DeviceTensor:
    """Return an OrtValue as a device tensor; no other references to it may exist."""
    form = dtype, shape = _dtype_of(value), tuple(value.shape())
    return DeviceTensor(EpMemory(provider, value.tensor_size_in_bytes(), value, form), dtype, shape)


def _placed(array: Array, place: str) -> Any:
    # On the CPU the value would alias `array`.
    source_array = array if place != "cpu" and array.flags.c_contiguous else array.copy()
    with _allocating(place):
        return onnxruntime.OrtValue.ortvalue_from_numpy(source_array, place, 0)


def _allocating(place: str) -> AbstractContextManager[None]:
    advice = "free some, or see its message"
    return translated_as(f"ONNX Runtime cannot allocate memory on {place}", advice, OutOfMemoryError, brief)


def _copied(value: Any, provider: str) -> Any:
    binding = _identity(provider, value.element_type()).io_binding()
    with _allocating(PLACES[provider]):
        binding.bind_ortvalue_input("a", value)
        binding.bind_output("c", PLACES[provider], 0)
        binding._session.run_with_iobinding(binding._iobinding, None)
        return results_of(binding)[0]


@memoize(_KINDS)
def _identity(provider: str, element_type: int) -> onnxruntime.InferenceSession:
    """Return a session that copies, because some providers have no other device-to-device copy."""
    return Backing(provider=provider).open(Loadable(model_of_one(b"Identity", 1, element_type)))


def _dtype_of(value: Any) -> np.dtype[Any]:
    return _dtype(value.element_type())


@memoize(len(DTYPE_OF_ELEMENT_TYPE))
def _dtype(element_type: int) -> np.dtype[Any]:
    return np.dtype(DTYPE_OF_ELEMENT_TYPE[element_type])


class EpExecution(SessionExecution):
    """Stateless execution of a session on device memory."""

    def __init__(self, session: onnxruntime.InferenceSession, provider: str) -> None:
        super().__init__(session, provider)
        self._provider = provider
        self._run_in_place = None if goes_by_memory(session) else run_in_place_of(session, PLACES[provider])

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        if self._run_in_place is None:
            return None
        values = []
        for name, tensor in zip(self.input_names, inputs, strict=True):
            assert isinstance(tensor.memory, EpMemory), "memory of a device is its own"
            values.append((name, tensor.memory.value(tensor.dtype, tensor.shape)))
        with translated(self._failure, "check the inputs"):
            outputs = self._run_in_place(values, self.output_names, run_options.get())
        return [tensor_of(value, self._provider) for value in outputs]


COMPILED = "EPContext"
"""Op type of nodes that contain or name compiled data."""
_HARMLESS: Mapping[str, int | None] = {
    **dict.fromkeys(
        ("ep_cache_context", "ep_sdk_version", "hardware_architecture", "notes", "partition_name", "source")
    ),
    **dict.fromkeys(("main_context", "max_size")),
    "embed_mode": 1,
    "is_multi_soc_ep_context": 0,
}
"""Allowed attribute -> required number; None allows any value. Other attributes may name files."""
_DEPENDENCIES = "external_dependencies"
_LONGEST = 1 << 31

Field = tuple[int, int, int]
"""Tag, start and end of a protobuf field."""


class Message(NamedTuple):
    """Allowed fields of a protobuf message, and a check of its contents."""

    inner: Mapping[int, Message | None]
    check: Callable[[bytes, list[Field]], bool] | None


def external_data_text(contents: bytes) -> str:
    """Name the kind of data that a model stores in other files; return an empty text if no data is external.

    Raises:
        Exception: invalid model.
    """
    if contents[4:8] == b"ORTM":
        raise ValueError("the contents are in ORT format, expected ONNX")
    return "" if is_plain(contents) else _external_content(contents)


def is_plain(contents: bytes) -> bool:
    """Return whether all nodes of a ModelProto are EPContext nodes, with data embedded."""
    try:
        return len(contents) < _LONGEST and _holds(contents, 0, len(contents), MODEL)
    except IndexError:
        return False


def _holds(contents: bytes, start: int, stop: int, message: Message) -> bool:
    fields = list(_written(contents, start, stop))
    if not all(tag in message.inner for tag, _, _ in fields):
        return False
    inner = ((message.inner[tag], begin, end) for tag, begin, end in fields)
    return (message.check is None or message.check(contents, fields)) and all(
        submessage is None or _holds(contents, begin, end, submessage) for submessage, begin, end in inner
    )


def _written(contents: bytes, start: int, stop: int) -> Iterator[Field]:
    at = start
    while at < stop:
        tag, begin = _number(contents, at)
        if tag & 7 not in (BYTES, NUMBER):
            raise IndexError(f"the field tag {tag} has an unexpected wire type")
        number, number_end = _number(contents, begin)
        begin, end = (number_end, number_end + number) if tag & 7 == BYTES else (begin, number_end)
        if end > stop:
            raise IndexError("a field ends after the end of its message")
        yield tag, begin, end
        at = end


def _number(contents: bytes, at: int) -> tuple[int, int]:
    number, end = varint(contents, at)
    if number >> 63 or (end - at > 1 and not contents[end - 1]):
        raise IndexError(f"a varint of {end - at} bytes is too large or has needless bytes")
    return number, end


def _texts(contents: bytes, fields: list[Field], number: int) -> list[bytes]:
    return [contents[start:stop] for tag, start, stop in fields if tag == number << 3 | BYTES]


def _is_compiled(contents: bytes, fields: list[Field]) -> bool:
    return _texts(contents, fields, 4) == [COMPILED.encode()]


def _is_harmless(contents: bytes, fields: list[Field]) -> bool:
    names = [name.decode(errors="replace") for name in _texts(contents, fields, 1)]
    if len(names) != 1 or names[0] not in _HARMLESS:
        return False
    numbers = [varint(contents, start)[0] for tag, start, _ in fields if tag == 3 << 3 | NUMBER]
    return _HARMLESS[names[0]] is None or numbers == [_HARMLESS[names[0]]]


def _lists_no_files(contents: bytes, fields: list[Field]) -> bool:
    return _DEPENDENCIES.encode() not in _texts(contents, fields, 1) or not any(_texts(contents, fields, 2))


def _message(
    numbers: Iterable[int],
    texts: Iterable[int],
    messages: Mapping[int, Message] | None = None,
    check: Callable[[bytes, list[Field]], bool] | None = None,
) -> Message:
    leaves = (*(number << 3 | NUMBER for number in numbers), *(number << 3 | BYTES for number in texts))
    inner = {number << 3 | BYTES: message for number, message in (messages or {}).items()}
    return Message({**dict.fromkeys(leaves), **inner}, check)


_PROPERTY = _message((), (1, 2), check=_lists_no_files)
_OPERATOR_SET = _message((2,), (1,))
_SHAPE = _message((), (), {1: _message((1,), (2, 3))})
_TYPE = _message((), (6,), {1: _message((1,), (), {2: _SHAPE})})
_VALUE = _message((), (1, 3), {2: _TYPE, 4: _PROPERTY})
_ATTRIBUTE = _message((3, 20), (1, 4, 13), check=_is_harmless)
_NODE = _message((), (1, 2, 3, 4, 6, 7, 8), {5: _ATTRIBUTE, 9: _PROPERTY}, check=_is_compiled)
_GRAPH = _message((), (2, 10), {1: _NODE, 11: _VALUE, 12: _VALUE, 13: _VALUE, 16: _PROPERTY})
MODEL = _message((1, 5), (2, 3, 4, 6), {7: _GRAPH, 8: _OPERATOR_SET, 14: _PROPERTY})
"""Rules for a ModelProto, which allow no tensors, subgraphs or functions."""


def _external_content(contents: bytes) -> str:
    import onnx  # lazy: not needed for most programs

    for message in _messages(onnx.load_from_string(contents)):
        if isinstance(message, onnx.TensorProto):
            if message.data_location != onnx.TensorProto.DEFAULT or message.external_data:
                return "weights"
        elif isinstance(message, onnx.NodeProto):
            if message.op_type == COMPILED and not all(map(_is_known, message.attribute)):
                return "compiled data"
        elif isinstance(message, onnx.StringStringEntryProto) and message.key == _DEPENDENCIES and message.value:
            return "its dependencies"
    return ""


def _is_known(attribute: Any) -> bool:
    return attribute.name in _HARMLESS and _HARMLESS[attribute.name] in (None, attribute.i)


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for submessage in (value,) if hasattr(value, "ListFields") else value:
                yield from _messages(submessage)


_ENVELOPE = Envelope(magic=b"NNAORTEP", version=1)


class EpProgram(Program):
    """Program of one session on a provider."""

    execution_bytes = 0

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        backing: Backing,
        model: Loadable,
        profile: SessionProfile | None = None,
    ) -> None:
        self._session, self._profile = session, profile
        self._backing = backing
        self._model_bytes, self._weights = model.nbytes, model.weights
        self._contents = b"" if backing.provider in BY_KERNELS else model.contents  # no compiled form

    @property
    def memory_bytes(self) -> int:
        """Estimate: the model's size, plus the same size for its compiled form."""
        return self._model_bytes + len(self._contents)

    def create_execution(self) -> Execution:
        if self._profile is None and self._backing.has_device_memory:
            return EpExecution(self._session, self._backing.provider)
        return session_execution(self._session, self._backing.provider, self._profile)

    def serialize(self) -> bytes | None:
        contents = _compiled(self._contents, self._backing) if self._contents else None
        if contents is None:
            return None
        header = {**_needs(self._backing), **_value_names(self._session)}
        return _ENVELOPE.close(json.dumps(header).encode(), [contents])

    def close(self) -> None:
        if self._profile is not None:
            self._profile.end()


class DeserializedProgram(EpProgram):
    """Program loaded from bytes. It cannot be serialized again."""

    def serialize(self) -> bytes | None:
        return None


def deserialize_program(blob: bytes | memoryview, backing: Backing, *, is_checked: bool = False) -> Program:
    """Load a program of `EpProgram.serialize`.

    Raises:
        IncompatibleProgramError: damaged, or from another provider, version or options.
    """
    header, contents = _ENVELOPE.open(blob, is_checked=is_checked)
    fields, model = _read(header), Loadable(bytes(contents))
    check_seal(fields, _needs(backing))
    _check_self_contained(model.contents)
    try:
        session = backing.open(model)
    except Exception as error:
        raise IncompatibleProgramError(f"{backing.provider} refuses the program: {brief(error)}; {ADVICE}") from error
    is_whole = not read_assignment(session, backing.provider).cpu_work
    if not is_whole or any(fields.get(kind) != names for kind, names in _value_names(session).items()):
        raise IncompatibleProgramError(
            f"{backing.provider} leaves parts of the program to the CPU, or has other inputs or outputs than recorded; "
            f"{ADVICE}"
        )
    return DeserializedProgram(session, backing, model)


def _value_names(session: onnxruntime.InferenceSession) -> dict[str, list[str]]:
    values = {"inputs": session.get_inputs(), "outputs": session.get_outputs()}
    return {kind: [value.name for value in values_of_kind] for kind, values_of_kind in values.items()}


def _needs(backing: Backing) -> dict[str, Any]:
    return {
        "provider": backing.provider,
        "version": backing.version,
        "onnxruntime": onnxruntime.__version__,
        "options": {name: value for name, value in sorted(backing.options.items()) if not name.endswith("_path")},
        "optimization": backing.optimization,
    }


def _read(header: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(header)
    except ValueError as error:
        raise IncompatibleProgramError(f"the program's header is not JSON: {error}; {ADVICE}") from error
    if not isinstance(fields, dict):
        raise IncompatibleProgramError(f"the program's header is {type(fields).__name__}, expected an object; {ADVICE}")
    return fields


def _compiled(contents: bytes, backing: Backing) -> bytes | None:
    try:
        compiler = onnxruntime.ModelCompiler(
            backing.session_options(),
            contents,
            embed_compiled_data_into_model=True,
            graph_optimization_level=backing.level,
        )
        compiled_bytes: bytes = compiler.compile_to_bytes()
    except Exception:  # noqa: BLE001  providers without compiled form fail in various ways
        return None
    import onnx  # lazy: not needed for loaded programs

    if all(node.op_type != COMPILED for node in onnx.load_from_string(compiled_bytes).graph.node):
        return None
    return None if external_data_text(compiled_bytes) else compiled_bytes


def _check_self_contained(contents: bytes) -> None:
    try:
        elsewhere = external_data_text(contents)
    except Exception as error:
        raise IncompatibleProgramError(f"the program contains no ONNX model: {error}; {ADVICE}") from error
    if elsewhere:
        raise IncompatibleProgramError(f"the program stores {elsewhere} in another file; {ADVICE}")
